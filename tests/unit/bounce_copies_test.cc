// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// bounce_copies_test.cc: when gpu/bounce_copies.h asks for registered memory. The copies themselves
// are in tests of whole messages.
#include "opal/mca/common/gpusm/gpu/bounce_copies.h"

#include "tests/unit/copy_engine_support.h"
#include "tests/unit/test_clock.h"

#include <vector>

namespace {

using namespace gpusm;
using namespace gpusm_test;

class BounceMemory : public copy_engine_fixture, public bounce_services {
  protected:
    status bounce_memory(std::size_t bytes, unsigned char **out) override
    {
        asked_bytes_.push_back(bytes);
        const bool fits = status::no_memory == answer_ && bytes <= room_bytes_;
        *out = memory_;
        return fits ? status::ok : answer_;
    }
    bool kernel_touches(gpusm::device &, const unsigned char *) override { return false; }
    status read(void *, void *, std::uint64_t, std::size_t) override { return status::ok; }
    status write(void *, const void *, std::uint64_t, std::size_t) override { return status::ok; }

    // How often memory was asked for.
    std::size_t asked() const { return asked_bytes_.size(); }

    status answer_ = status::ok;
    std::size_t room_bytes_ = 0;
    std::vector<std::size_t> asked_bytes_;
    unsigned char memory_[1] = {};
    bounce_copies copies_{engine(), *this, 0};
};

TEST_F(BounceMemory, WhatThereIsIsNotAskedForAgain)
{
    EXPECT_TRUE(copies_.available());
    EXPECT_TRUE(copies_.available());
    EXPECT_EQ(std::vector{bounce_copies::memory_bytes()}, asked_bytes_);
}

TEST_F(BounceMemory, WhereThereIsNoRoomForAllAQuarterWillDo)
{
    answer_ = status::no_memory;
    room_bytes_ = bounce_copies::memory_bytes() / 2;
    EXPECT_TRUE(copies_.available());
    EXPECT_EQ((std::vector{bounce_copies::memory_bytes(), bounce_copies::memory_bytes(4)}),
              asked_bytes_);
}

TEST_F(BounceMemory, WhatCannotBeRegisteredIsAskedForAgainAfterAPause)
{
    answer_ = status::driver_failed;
    for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(copies_.available());
    }
    EXPECT_EQ(failures_in_a_row, asked());
    clock_gained_ns += reach::first_pause_ns;
    EXPECT_FALSE(copies_.available());
    EXPECT_FALSE(copies_.available());
    EXPECT_EQ(failures_in_a_row + 1, asked());
    answer_ = status::ok;
    clock_gained_ns += 2 * reach::first_pause_ns;
    EXPECT_TRUE(copies_.available());
    EXPECT_TRUE(copies_.available());
    EXPECT_EQ(failures_in_a_row + 2, asked());
}

TEST_F(BounceMemory, WhatTheUserHasSwitchedOffIsNot)
{
    answer_ = status::unsupported;
    EXPECT_FALSE(copies_.available());
    clock_gained_ns += 1000 * reach::longest_pause_ns;
    answer_ = status::ok;
    EXPECT_FALSE(copies_.available());
    EXPECT_EQ(1U, asked());
}

} // namespace
