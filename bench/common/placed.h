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
#include <span>
#include <string>

namespace gpusm::bench {

// Where messages of one size lie, in bytes from the start of a buffer. Guard bytes come before the
// first place and after each.
struct placement {
    // At least so many guard bytes. A first place keeps the alignment of the buffer.
    static constexpr std::size_t guard_bytes = 64;
    static constexpr std::size_t alignment = 256;

    std::size_t len_bytes = 0; // of one message
    std::size_t places = 1;

    // As many places as hold most_bytes of messages, but at least one and not more than `wanted`.
    static placement spaced(std::size_t len_bytes, std::size_t wanted, std::size_t most_bytes);

    // From one place to the next.
    std::size_t stride() const
    {
        return (len_bytes + guard_bytes + alignment - 1) / alignment * alignment;
    }
    // Message number `message`; it shares its place with message + places.
    std::size_t at(std::size_t message) const { return alignment + message % places * stride(); }
    // Behind the last guard byte: the buffer's size.
    std::size_t end() const { return at(places - 1) + len_bytes + guard_bytes; }
};

struct placed_message {
    std::size_t offset = 0; // from the start of the buffer
    std::size_t len_bytes = 0;
    std::uint64_t seed = 0;   // of its content, see write_pattern
    std::size_t position = 0; // there, of its first byte
};

// For both, messages are in rising order of their offsets, without overlap, and end before `end`.
// Both are empty on success, otherwise one sentence.

// Writes [0, end) of the buffer: the messages, and poison between them. Finished when it returns.
[[nodiscard]] std::string fill_placed(buffer &memory, std::size_t end,
                                      std::span<const placed_message> messages);

// Compares all of it; what is between the messages must still hold what buffer::poison wrote. The
// sentence names the first wrong byte; `noun` is what a message is called.
[[nodiscard]] std::string compare_placed(const buffer &memory, std::size_t end,
                                         std::span<const placed_message> messages,
                                         const std::string &noun = "message");

} // namespace gpusm::bench

#endif
