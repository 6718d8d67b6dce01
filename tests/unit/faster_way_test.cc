// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/faster_way.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace gpusm {
namespace {

struct ways_taken {
    int first = 0;
    int second = 0;
};

// Steps that cost what is said, but for every ninth, which is interrupted.
ways_taken walk(faster_way *way, int steps, std::uint64_t first, std::uint64_t second)
{
    ways_taken taken;
    for (int i = 0; i < steps; ++i) {
        const bool is_second = way->is_second();
        ++(is_second ? taken.second : taken.first);
        way->took(0 == i % 9 ? 1000000 : is_second ? second : first);
    }
    return taken;
}

TEST(FasterWay, BeginsWithTheFirstAndTimesBoth)
{
    faster_way way;
    ways_taken timed;
    EXPECT_FALSE(way.is_second());
    while (way.is_trial()) {
        ++(way.is_second() ? timed.second : timed.first);
        way.took(1);
    }
    EXPECT_GT(timed.first, 0);
    EXPECT_EQ(timed.first, timed.second);
    EXPECT_FALSE(way.is_second()) << "equally fast, so as at the beginning";
}

TEST(FasterWay, TheFasterOneIsTakenThoughSomeAreInterrupted)
{
    faster_way first;
    EXPECT_LE(walk(&first, 1000, 10, 12).second, 100);
    faster_way second;
    EXPECT_LE(walk(&second, 1000, 12, 10).first, 100);
}

TEST(FasterWay, FollowsAChangeSoon)
{
    faster_way way;
    walk(&way, 1000, 10, 20);
    walk(&way, 300, 30, 20);
    EXPECT_LE(walk(&way, 1000, 30, 20).first, 100);
}

} // namespace
} // namespace gpusm
