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

// Where the messages of one size lie, in bytes from the start of a buffer. Guard bytes come before
// the first place, after the last, and after every place where the places are spaced.
struct placement {
    std::size_t len_bytes = 0; // of one message
    std::size_t stride = 0;    // from one place to the next, in bytes
    std::size_t places = 1;

    // At least so many guard bytes. A first place keeps the alignment of the buffer.
    static constexpr std::size_t guard_bytes = 64;
    static constexpr std::size_t alignment = 256;

    // Each place starts at a multiple of `alignment`, with guard bytes behind it. As many places as
    // hold most_bytes of messages, but at least one and not more than `wanted`.
    static placement spaced(std::size_t len_bytes, std::size_t wanted, std::size_t most_bytes);
    // One right after the other, as the blocks of a collective lie.
    static placement packed(std::size_t len_bytes, std::size_t places);

    // Message number `message`; it shares its place with message + places.
    std::size_t at(std::size_t message) const { return alignment + message % places * stride; }
    // Behind a place and the guard bytes after it.
    std::size_t end_of(std::size_t place) const { return at(place) + len_bytes + guard_bytes; }
    std::size_t end() const { return end_of(places - 1); } // the size of the buffer
};

struct placed_message {
    std::size_t offset = 0; // from the start of the buffer
    std::size_t len_bytes = 0;
    std::uint64_t seed = 0; // of its content, see write_pattern
};

// Both take messages in rising order of their offsets, without overlap, that end at or before
// `end`. Empty on success, otherwise one sentence.

// Writes all of [0, end): the messages, and poison between them. Finished when it returns.
[[nodiscard]] std::string fill_placed(buffer &memory, std::size_t end,
                                      std::span<const placed_message> messages);

// Compares all of [0, end): the messages, and that what is between them still holds what
// buffer::poison wrote. The sentence names the first wrong byte; `noun` is what a message is called
// there, before its number in the list.
[[nodiscard]] std::string compare_placed(const buffer &memory, std::size_t end,
                                         std::span<const placed_message> messages,
                                         const std::string &noun = "message");

} // namespace gpusm::bench

#endif
