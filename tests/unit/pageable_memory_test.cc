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

TEST(PageableMemory, IsBelievedAFewTimes)
{
    pageable_memory memory;
    EXPECT_FALSE(memory.is_known(address, len));
    for (int again = 0; again < 3; ++again) {
        memory.note(address, len);
        for (std::uint64_t i = 0; i < pageable_memory::times; ++i) {
            EXPECT_TRUE(memory.is_known(address, len)) << i;
        }
        EXPECT_FALSE(memory.is_known(address, len));
        EXPECT_FALSE(memory.is_known(address, len));
    }
}

TEST(PageableMemory, OfOtherPlacesOrLengthsIsNotKnown)
{
    pageable_memory memory;
    memory.note(address, len);
    for (std::uint64_t away = 1; away < 100000; ++away) {
        ASSERT_FALSE(memory.is_known(address + away, len));
        ASSERT_FALSE(memory.is_known(address - away, len));
        ASSERT_FALSE(memory.is_known(address, len + away));
    }
    EXPECT_TRUE(memory.is_known(address, len));
    EXPECT_FALSE(memory.is_known(0, 0)) << "a place that nothing has been noted in";
}

TEST(PageableMemory, OfAWindowOfBuffersIsKept)
{
    constexpr unsigned buffers = 64;
    pageable_memory memory;
    unsigned known = 0;
    for (unsigned round = 0; round < 2; ++round) {
        for (unsigned i = 0; i < buffers; ++i) {
            known += memory.is_known(address + i * len, len) ? 1 : 0;
            memory.note(address + i * len, len);
        }
    }
    EXPECT_GE(known, buffers / 2) << "some may share a place";
}

} // namespace
