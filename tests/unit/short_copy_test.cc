// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/short_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace gpusm {
namespace {

constexpr std::size_t margin = 64; // around what is copied, and must stay as it is
constexpr unsigned char untouched = 0xee;

TEST(ShortCopy, CopiesWhatItIsToldAndNothingElse)
{
    for (std::size_t len_bytes = 0; len_bytes <= 100; ++len_bytes) {
        for (std::size_t offset = 0; offset < 8; ++offset) {
            // As long as the copy, so that a sanitizer sees what is read beside it.
            std::vector<unsigned char> from(len_bytes);
            std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
            std::vector<unsigned char> to(len_bytes + 2 * margin, untouched);
            std::vector<unsigned char> expected = to;
            std::copy(from.begin(), from.end(),
                      expected.begin() + static_cast<std::ptrdiff_t>(margin + offset));
            short_copy(to.data() + margin + offset, from.data(), len_bytes);
            ASSERT_TRUE(to == expected) << len_bytes << " bytes, offset " << offset;
        }
    }
}

} // namespace
} // namespace gpusm
