// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/short_copy.h: copies of a few bytes without a call. memcpy of a length that the compiler
// does not know is a call through a table, before which the caller has to put away what it holds in
// registers: for a small message that costs more than the copy.
#ifndef GPUSM_BASE_SHORT_COPY_H
#define GPUSM_BASE_SHORT_COPY_H

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpusm {

inline constexpr std::size_t short_copy_most = 64;

namespace short_copy_detail {

struct sixteen_bytes {
    std::uint64_t half[2];
};

// The first and the last so many bytes, which may overlap: enough for twice as many. Both are read
// before one is written.
template <typename Part>
[[gnu::always_inline]] inline void copy_both_ends(unsigned char *to, const unsigned char *from,
                                                  std::size_t len_bytes)
{
    Part first;
    Part last;
    std::memcpy(&first, from, sizeof(Part));
    std::memcpy(&last, from + len_bytes - sizeof(Part), sizeof(Part));
    std::memcpy(to, &first, sizeof(Part));
    std::memcpy(to + len_bytes - sizeof(Part), &last, sizeof(Part));
}

} // namespace short_copy_detail

// As memcpy, for short_copy_most bytes at most. The most common lengths come first: headers and
// single numbers.
[[gnu::always_inline]] inline void short_copy(void *to_any, const void *from_any,
                                              std::size_t len_bytes)
{
    using namespace short_copy_detail;
    auto *to = static_cast<unsigned char *>(to_any);
    const auto *from = static_cast<const unsigned char *>(from_any);
    if (len_bytes >= 8) {
        if (len_bytes <= 16) {
            copy_both_ends<std::uint64_t>(to, from, len_bytes);
            return;
        }
        if (len_bytes <= 32) {
            copy_both_ends<sixteen_bytes>(to, from, len_bytes);
            return;
        }
        copy_both_ends<sixteen_bytes>(to, from, 32);
        copy_both_ends<sixteen_bytes>(to + len_bytes - 32, from + len_bytes - 32, 32);
    } else if (len_bytes >= 4) {
        copy_both_ends<std::uint32_t>(to, from, len_bytes);
    } else if (len_bytes >= 2) {
        copy_both_ends<std::uint16_t>(to, from, len_bytes);
    } else if (len_bytes > 0) {
        *to = *from;
    }
}

// Of 8 to 16 bytes, as ob1's header of a short message has 14: without a branch.
[[gnu::always_inline]] inline void header_copy(void *to, const void *from, std::size_t len_bytes)
{
    short_copy_detail::copy_both_ends<std::uint64_t>(
        static_cast<unsigned char *>(to), static_cast<const unsigned char *>(from), len_bytes);
}

constexpr bool suits_header_copy(std::size_t len_bytes)
{
    return len_bytes >= 8 && len_bytes <= 16;
}

} // namespace gpusm

#endif
