// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/host_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {
namespace {

constexpr std::size_t margin = 256; // around what is copied, and must stay as it is
constexpr unsigned char untouched = 0xee;

// Every length around the limits at which another way of copying begins, at every alignment of both
// sides within a line.
constexpr std::size_t lengths[] = {0,     1,     63,    64,     65,      4095,    16383,
                                   16384, 16385, 16447, 131071, 1048575, 1048576, 1048577};
constexpr std::size_t offsets[] = {0, 1, 31, 32, 63};

template <typename Copy> void expect_exact(const Copy &copy)
{
    for (const std::size_t len : lengths) {
        for (const std::size_t from_offset : offsets) {
            for (const std::size_t to_offset : offsets) {
                std::vector<unsigned char> from(len + 2 * margin);
                std::uint32_t state = 1;
                for (unsigned char &each : from) {
                    state = state * 1664525 + 1013904223;
                    each = static_cast<unsigned char>(state >> 24);
                }
                std::vector<unsigned char> to(len + 2 * margin, untouched);
                std::vector<unsigned char> expected = to;
                std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(from_offset), len,
                            expected.begin() + static_cast<std::ptrdiff_t>(margin + to_offset));
                copy(to.data() + margin + to_offset, from.data() + from_offset, len);
                ASSERT_TRUE(to == expected)
                    << len << " bytes from " << from_offset << " to " << to_offset;
            }
        }
    }
}

TEST(HostCopy, IntoARingIsExact)
{
    expect_exact(
        [](void *to, const void *from, std::size_t len) { copy_into_ring(to, from, len); });
}

TEST(HostCopy, PastTheCacheIsExact)
{
    expect_exact(
        [](void *to, const void *from, std::size_t len) { copy_past_cache(to, from, len); });
}

// Parts of a short message and of a long one, of which some go past the cache.
TEST(HostCopy, OutOfARingIsExact)
{
    for (const std::size_t message : {std::size_t{4096}, std::size_t{1} << 30}) {
        copies_out_of_rings out;
        expect_exact([&out, message](void *to, const void *from, std::size_t len) {
            out.copy(to, from, len, message);
        });
    }
}

} // namespace
} // namespace gpusm
