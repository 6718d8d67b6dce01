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

// As memcpy, which it calls for more than 64 bytes. The most common lengths come first: headers and
// single numbers.
[[gnu::always_inline]] inline void short_copy(void *to_any, const void *from_any,
                                              std::size_t len_bytes)
{
    struct sixteen_bytes {
        std::uint64_t half[2];
    };
    auto *to = static_cast<unsigned char *>(to_any);
    const auto *from = static_cast<const unsigned char *>(from_any);
    // The first and the last so many bytes as `first` has, which may overlap: enough for twice as
    // many. Both are read before one is written.
    const auto copy_both_ends =
        [ to, from ](auto first, std::size_t at, std::size_t len) __attribute__((always_inline))
    {
        auto last = first;
        std::memcpy(&first, from + at, sizeof(first));
        std::memcpy(&last, from + at + len - sizeof(last), sizeof(last));
        std::memcpy(to + at, &first, sizeof(first));
        std::memcpy(to + at + len - sizeof(last), &last, sizeof(last));
    };
    if (len_bytes >= 8) {
        if (len_bytes <= 16) {
            copy_both_ends(std::uint64_t{}, 0, len_bytes);
            return;
        }
        if (len_bytes <= 32) {
            copy_both_ends(sixteen_bytes{}, 0, len_bytes);
            return;
        }
        if (len_bytes > 64) {
            std::memcpy(to, from, len_bytes);
            return;
        }
        copy_both_ends(sixteen_bytes{}, 0, 32);
        copy_both_ends(sixteen_bytes{}, len_bytes - 32, 32);
    } else if (len_bytes >= 4) {
        copy_both_ends(std::uint32_t{}, 0, len_bytes);
    } else if (len_bytes >= 2) {
        copy_both_ends(std::uint16_t{}, 0, len_bytes);
    } else if (len_bytes > 0) {
        *to = *from;
    }
}

} // namespace gpusm

#endif
