// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// placed.cc: the expected content of a whole buffer, made and compared in chunks, so that many
// small messages cost few copies between device and host.
#include "bench/common/placed.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace gpusm::bench {

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

// What [begin, begin + len) of the buffer is to hold. `first` is the first message that may reach
// into it or beyond; it moves on from chunk to chunk.
void make_image(unsigned char *image, std::size_t begin, std::size_t len_bytes,
                std::span<const placed_message> messages, std::size_t *first)
{
    std::memset(image, poison_byte, len_bytes);
    const std::size_t end = begin + len_bytes;
    while (*first < messages.size() &&
           messages[*first].offset + messages[*first].len_bytes <= begin) {
        ++*first;
    }
    for (std::size_t i = *first; i < messages.size() && messages[i].offset < end; ++i) {
        const placed_message &m = messages[i];
        const std::size_t from = std::max(begin, m.offset);
        const std::size_t to = std::min(end, m.offset + m.len_bytes);
        if (from < to) {
            write_pattern(image + (from - begin), to - from, m.seed,
                          m.position + (from - m.offset));
        }
    }
}

// "message 3: byte 5", "guard byte 0 after message 3", "guard byte 1 before message 0"
std::string name_position(std::size_t position, std::span<const placed_message> messages,
                          const std::string &noun)
{
    std::size_t after = 0; // messages that start at or before the position
    while (after < messages.size() && messages[after].offset <= position) {
        ++after;
    }
    if (0 == after || messages.empty()) {
        const std::size_t before = messages.empty() ? 0 : messages[0].offset - position - 1;
        return "guard byte " + std::to_string(before) + " before " + noun + " 0";
    }
    const placed_message &m = messages[after - 1];
    const std::string name = noun + " " + std::to_string(after - 1);
    const std::size_t inside = position - m.offset;
    return inside < m.len_bytes
               ? name + ": byte " + std::to_string(inside)
               : "guard byte " + std::to_string(inside - m.len_bytes) + " after " + name;
}

} // namespace

placement placement::spaced(std::size_t len_bytes, std::size_t wanted, std::size_t most_bytes)
{
    const std::size_t fitting = 0 == len_bytes ? wanted : most_bytes / len_bytes;
    return {len_bytes, std::clamp<std::size_t>(fitting, 1, wanted)};
}

std::string fill_placed(buffer &memory, std::size_t end, std::span<const placed_message> messages)
{
    std::vector<unsigned char> image(std::min(chunk_bytes, end));
    std::size_t first = 0;
    std::string error;
    for (std::size_t done = 0; done < end && error.empty(); done += image.size()) {
        const std::size_t now = std::min(image.size(), end - done);
        make_image(image.data(), done, now, messages, &first);
        error = memory.write(done, image.data(), now);
    }
    return error;
}

std::string compare_placed(const buffer &memory, std::size_t end,
                           std::span<const placed_message> messages, const std::string &noun)
{
    std::vector<unsigned char> image(std::min(chunk_bytes, end));
    std::vector<unsigned char> found(image.size());
    std::size_t first = 0;
    for (std::size_t done = 0; done < end; done += image.size()) {
        const std::size_t now = std::min(image.size(), end - done);
        make_image(image.data(), done, now, messages, &first);
        const std::string error = memory.read(done, found.data(), now);
        if (!error.empty()) {
            return error;
        }
        if (0 != std::memcmp(found.data(), image.data(), now)) {
            const auto wrong = std::mismatch(found.begin(), found.end(), image.begin());
            const auto position = done + static_cast<std::size_t>(wrong.first - found.begin());
            char values[48];
            std::snprintf(values, sizeof(values), " is 0x%02x, expected 0x%02x", *wrong.first,
                          *wrong.second);
            return name_position(position, messages, noun) + values;
        }
    }
    return {};
}

} // namespace gpusm::bench
