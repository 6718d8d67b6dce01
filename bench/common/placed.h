// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// placed.h: many messages in one buffer, each at a place of its own with guard bytes around it, and
// the check of all of them at once.
#ifndef GPUSM_BENCH_PLACED_H
#define GPUSM_BENCH_PLACED_H

#include "bench/common/buffer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace gpusm::bench {

// Where the messages of one size lie, in bytes from the start of a buffer. Guard bytes come before
// the first place, after the last, and after every place where the places are spaced.
struct placement {
    // At least so many guard bytes. A first place keeps the alignment of the buffer.
    static constexpr std::size_t guard_bytes = 64;
    static constexpr std::size_t alignment = 256;

    std::size_t len_bytes = 0; // of one message
    std::size_t stride = 0;    // from one place to the next, in bytes
    std::size_t places = 1;
    std::size_t begin = 0;         // of the guard bytes before the first place
    std::size_t first = alignment; // the first place

    // Each place starts at a multiple of `alignment`, with guard bytes behind it. As many places as
    // hold most_bytes of messages, but at least one and not more than `wanted`.
    static placement spaced(std::size_t len_bytes, std::size_t wanted, std::size_t most_bytes);
    // One right after the other, as the blocks of a collective lie.
    static placement packed(std::size_t len_bytes, std::size_t places);

    // The same places behind those of `other`: no byte, nor guard byte, belongs to both.
    placement behind(const placement &other) const;

    // Message number `message`; it shares its place with message + places.
    std::size_t at(std::size_t message) const { return first + message % places * stride; }
    // Behind a place and the guard bytes after it.
    std::size_t end_of(std::size_t place) const { return at(place) + len_bytes + guard_bytes; }
    std::size_t end() const { return end_of(places - 1); } // of the guard bytes; the buffer's size
};

struct placed_message {
    std::size_t offset = 0; // from the start of the buffer
    std::size_t len_bytes = 0;
    std::uint64_t seed = 0; // of its content, see write_pattern
};

// Writes the bytes [position, position + len) of the message made from `seed`, as write_pattern
// does. Messages are asked for in pieces, which begin and end at their ends and at whole MiB of the
// buffer.
using content_writer =
    std::function<void(void *to, std::size_t len_bytes, std::uint64_t seed, std::size_t position)>;

// What the bytes [begin, end) of a buffer hold: the messages, and poison between them. The messages
// are in rising order of their offsets, inside of it and without overlap.
struct placed_content {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::span<const placed_message> messages;
    content_writer write = write_pattern;
    std::string noun = "message"; // what a message is called, before its number in the list
};

// Both are empty on success, otherwise one sentence.

// Writes all of it. Finished when it returns.
[[nodiscard]] std::string fill_placed(buffer &memory, const placed_content &content);

// Compares all of it; what is between the messages must still hold what buffer::poison wrote. The
// sentence names the first wrong byte.
[[nodiscard]] std::string compare_placed(const buffer &memory, const placed_content &content);

// The same of [0, end), with messages that are patterns.
[[nodiscard]] inline std::string fill_placed(buffer &memory, std::size_t end,
                                             std::span<const placed_message> messages)
{
    return fill_placed(memory, {0, end, messages, write_pattern, "message"});
}
[[nodiscard]] inline std::string compare_placed(const buffer &memory, std::size_t end,
                                                std::span<const placed_message> messages,
                                                const std::string &noun = "message")
{
    return compare_placed(memory, {0, end, messages, write_pattern, noun});
}

} // namespace gpusm::bench

#endif
