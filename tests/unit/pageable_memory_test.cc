// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pageable_memory_test.cc: what is known of memory is believed for a while, and of that memory
// only.
#include "opal/mca/btl/gpusm/gpu/pageable_memory.h"

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

namespace {

using gpusm::pageable_memory;

constexpr std::uint64_t address = 0x7f0000001000;
constexpr std::size_t len = 65536;

constexpr std::uint64_t believed = pageable_memory::believed_ns;

TEST(PageableMemory, IsBelievedForAWhile)
{
    pageable_memory memory;
    // The second and the third time are where 32 bits of microseconds, and of nanoseconds, end.
    for (const std::uint64_t now :
         {std::uint64_t{5}, (std::uint64_t{1} << 42) - 5, (std::uint64_t{1} << 32) - 5}) {
        EXPECT_FALSE(memory.is_known(address, len, now)) << now;
        memory.note(address, len, now);
        EXPECT_TRUE(memory.is_known(address, len, now)) << now;
        EXPECT_TRUE(memory.is_known(address, len, now + believed - 2000)) << now;
        EXPECT_TRUE(memory.is_known(address, len, now)) << "however often";
        EXPECT_FALSE(memory.is_known(address, len, now + believed + 2000)) << now;
        EXPECT_FALSE(memory.is_known(address, len, now + 1000 * believed)) << now;
    }
}

TEST(PageableMemory, OfOtherPlacesOrLengthsIsNotKnown)
{
    pageable_memory memory;
    memory.note(address, len, 0);
    for (std::uint64_t away = 1; away < 100000; ++away) {
        ASSERT_FALSE(memory.is_known(address + away, len, 0));
        ASSERT_FALSE(memory.is_known(address - away, len, 0));
        ASSERT_FALSE(memory.is_known(address, len + away, 0));
    }
    EXPECT_TRUE(memory.is_known(address, len, 0));
    EXPECT_FALSE(memory.is_known(0, 0, 0)) << "a place that nothing has been noted in";
}

TEST(PageableMemory, OfAWindowOfBuffersIsKept)
{
    pageable_memory memory;
    unsigned known = 0;
    for (unsigned i = 0; i < 128; ++i) {
        known += memory.is_known(address + i % 64 * len, len, i) ? 1 : 0;
        memory.note(address + i % 64 * len, len, i);
    }
    EXPECT_GE(known, 32U) << "some may share a place";
}

} // namespace
