// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// sizes.cc: message sizes as people write them.
#include "bench/common/sizes.h"

#include <cctype>
#include <cstdlib>

namespace gpusm::bench {

bool parse_size(const std::string &text, std::size_t *bytes)
{
    std::size_t digits = 0;
    while (digits < text.size() && 0 != std::isdigit(static_cast<unsigned char>(text[digits]))) {
        ++digits;
    }
    if (0 == digits || digits > 12 || text.size() > digits + 1) {
        return false;
    }
    unsigned long long value = std::strtoull(text.c_str(), nullptr, 10);
    if (text.size() > digits) {
        switch (std::toupper(static_cast<unsigned char>(text[digits]))) {
        case 'K':
            value <<= 10;
            break;
        case 'M':
            value <<= 20;
            break;
        case 'G':
            value <<= 30;
            break;
        default:
            return false;
        }
    }
    *bytes = value;
    return value <= max_size_bytes;
}

} // namespace gpusm::bench
