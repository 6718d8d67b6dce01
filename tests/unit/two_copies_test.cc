// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/two_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpusm {
namespace {

constexpr std::size_t kibi = 1024;
constexpr std::size_t most = 20 * kibi;
constexpr std::uint64_t call_ns = 1500;
constexpr std::uint64_t fast = 70; // ns per KiB
constexpr std::uint64_t slow = 350;

TEST(TwoCopiesWorth, FollowsTheSystemCall)
{
    for (const std::uint64_t cheap : {0U, 900U, 1071U, 1100U}) {
        EXPECT_EQ(8448U, two_copies_worth::beside(cheap).alone_bytes) << cheap;
        EXPECT_EQ(20 * kibi + 256, two_copies_worth::beside(cheap).in_rows_bytes) << cheap;
    }
    std::size_t before = 0;
    for (std::uint64_t ns = 0; ns < 2000; ns += 10) {
        const two_copies_worth worth = two_copies_worth::beside(ns);
        EXPECT_GE(worth.alone_bytes, before) << ns;
        EXPECT_GT(worth.in_rows_bytes, worth.alone_bytes) << ns;
        before = worth.alone_bytes;
    }
    EXPECT_NEAR(static_cast<double>(two_copies_worth::beside(1186).alone_bytes), 32.0 * kibi, kibi);
    EXPECT_EQ(64 * kibi + 256, two_copies_worth::beside(1310).alone_bytes);
    EXPECT_EQ(64 * kibi + 256, two_copies_worth::beside(UINT64_MAX).alone_bytes);
}

class TwoCopies : public testing::Test {
  protected:
    // Messages of that length, as long as they go in two copies. Returns how many were timed.
    int send(int messages, std::size_t bytes, std::uint64_t ns_per_kib)
    {
        int timed = 0;
        for (int i = 0; i < messages; ++i) {
            if (bytes > watched_.limit()) {
                changes_ += watched_.went_singly(bytes) ? 1 : 0;
            } else if (watched_.is_due(bytes)) {
                ++timed;
                changes_ += watched_.timed(bytes, ns_per_kib * bytes / kibi) ? 1 : 0;
            }
        }
        return timed;
    }

    // So many messages of 16 KiB; of those that go in two copies one behind the other, the first
    // `fast_ones` are fast. Returns how many went in two, and the longest row of them.
    struct tried {
        int in_two = 0;
        int longest_row = 0;
    };
    tried send_rows(int messages, int fast_ones)
    {
        tried seen;
        int row = 0;
        for (int i = 0; i < messages; ++i) {
            const bool two = 16 * kibi <= watched_.limit();
            row = two ? row + 1 : 0;
            seen.in_two += two ? 1 : 0;
            seen.longest_row = std::max(seen.longest_row, row);
            send(1, 16 * kibi, row > fast_ones ? slow : fast);
        }
        return seen;
    }

    two_copies watched_{most, call_ns};
    int changes_ = 0;
};

TEST_F(TwoCopies, WithoutAnythingToWatchNothingIsTimed)
{
    watched_ = two_copies(most);
    EXPECT_EQ(send(1000, 0, slow), 0);
    EXPECT_FALSE(watched_.is_due(8 * kibi));
    EXPECT_FALSE(watched_.went_singly(8 * kibi));
    EXPECT_FALSE(watched_.are_slow());
    EXPECT_FALSE(watched_.stop());
    EXPECT_EQ(watched_.limit(), most);
}

TEST_F(TwoCopies, FastOnesChangeNothingAndFewAreTimed)
{
    const int timed = send(10000, 8 * kibi, fast);
    EXPECT_GT(timed, 100);
    EXPECT_LT(timed, 10000 / 10);
    EXPECT_EQ(watched_.limit(), most);
    EXPECT_FALSE(watched_.are_slow());
    EXPECT_EQ(changes_, 0);
}

TEST_F(TwoCopies, ShortOnesAreNotTimed)
{
    EXPECT_EQ(send(10000, 2 * kibi, slow), 0);
    EXPECT_EQ(watched_.limit(), most);
}

TEST_F(TwoCopies, SlowOnesLowerTheLimitToWhatTheCallIsWorth)
{
    send(1000, 16 * kibi, slow);
    // 2500 ns at 2 x 350 - 32 ns per KiB would be less.
    EXPECT_GE(watched_.limit(), two_copies::least_bytes);
    EXPECT_LE(watched_.limit(), 4 * kibi + 400);
    EXPECT_EQ(changes_, 1);
    EXPECT_TRUE(watched_.are_slow());
    watched_.stop();
    EXPECT_FALSE(watched_.are_slow()) << "nobody looks any more";
}

TEST_F(TwoCopies, WhatIsNeitherFastNorSlowLowersTheLimitLess)
{
    send(1000, 16 * kibi, 100);
    // 2500 ns, where two copies take 2 x 100 - 32 more.
    EXPECT_EQ(watched_.limit(), 2500 * kibi / 168);
    EXPECT_FALSE(watched_.are_slow());
    send(2000, 16 * kibi, 70);
    EXPECT_EQ(watched_.limit(), most) << "an attempt";
    send(1000, 16 * kibi, 249);
    EXPECT_EQ(watched_.limit(), two_copies::least_unless_slow_bytes);
    EXPECT_FALSE(watched_.are_slow());
}

TEST_F(TwoCopies, TheLimitIsNeverBeyondItsBounds)
{
    send(1000, 16 * kibi, 100000);
    EXPECT_EQ(watched_.limit(), two_copies::least_bytes);
    watched_ = two_copies(most, 1000000); // a very slow call
    send(1000, 16 * kibi, slow);
    EXPECT_EQ(watched_.limit(), most);
}

TEST_F(TwoCopies, SomeSlowOnesAreNothing)
{
    for (int i = 0; i < 4000; ++i) {
        if (watched_.is_due(8 * kibi)) {
            EXPECT_FALSE(watched_.timed(8 * kibi, 8 * (i % 3 == 0 ? 100 * slow : fast)));
        }
    }
    EXPECT_EQ(watched_.limit(), most);
}

TEST_F(TwoCopies, AfterManySingleCopiesTwoAreTriedAgain)
{
    send(1000, 16 * kibi, slow);
    ASSERT_LT(watched_.limit(), most);
    const tried seen = send_rows(10000, 0);
    EXPECT_GT(seen.in_two, 0);
    EXPECT_LE(seen.longest_row, 10);
    EXPECT_LT(seen.in_two, 10000 / 50);

    send(2000, 16 * kibi, fast);
    EXPECT_EQ(watched_.limit(), most);
    const int before = changes_;
    send(10000, 16 * kibi, fast);
    EXPECT_EQ(changes_, before);
}

TEST_F(TwoCopies, WhereNineInARowAreFastAndManyAreNotTheyAreTriedLessAndLess)
{
    const tried seen = send_rows(1000000, 9);
    EXPECT_GT(seen.in_two, 1000);
    EXPECT_LT(seen.in_two, 1000000 / 100);

    send(200000, 16 * kibi, fast); // until the next attempt and after it
    ASSERT_EQ(watched_.limit(), most);
    send(200, 16 * kibi, slow);
    ASSERT_LT(watched_.limit(), most);
    send(1100, 16 * kibi, fast);
    EXPECT_EQ(watched_.limit(), most) << "the next attempt comes early again";
}

TEST_F(TwoCopies, LongerMessagesThanTheFirstLimitSayNothing)
{
    send(1000, 16 * kibi, slow);
    const std::size_t lowered = watched_.limit();
    send(10000, most + 1, fast);
    EXPECT_EQ(watched_.limit(), lowered);
}

TEST_F(TwoCopies, WithoutSingleCopiesTheFirstLimitIsBackForGood)
{
    send(1000, 16 * kibi, slow);
    ASSERT_LT(watched_.limit(), most);
    EXPECT_TRUE(watched_.stop());
    EXPECT_EQ(watched_.limit(), most);
    EXPECT_FALSE(watched_.stop());
    EXPECT_EQ(send(1000, 16 * kibi, slow), 0);
    EXPECT_EQ(watched_.limit(), most);
}

TEST_F(TwoCopies, ALimitThatIsLowAnywayIsNotWatched)
{
    watched_ = two_copies(two_copies::least_bytes, call_ns);
    EXPECT_EQ(send(1000, 4 * kibi, slow), 0);
}

TEST_F(TwoCopies, LongerOnesGoSoOnceItIsKnownWhereTheyGo)
{
    EXPECT_FALSE(watched_.up_to(most));
    EXPECT_TRUE(watched_.up_to(2 * most));
    EXPECT_EQ(watched_.limit(), 2 * most);
    send(1000, 16 * kibi, slow);
    ASSERT_TRUE(watched_.are_slow());
    EXPECT_FALSE(watched_.up_to(3 * most)) << "not as long as they are slow";
    send(2000, 16 * kibi, fast / 2);
    EXPECT_EQ(watched_.limit(), 3 * most);
}

TEST_F(TwoCopies, IntoDevicesOnlyShorterOnesGoFromThenOn)
{
    constexpr std::size_t for_devices = 8 * kibi;
    EXPECT_TRUE(watched_.at_most(for_devices));
    EXPECT_EQ(watched_.limit(), for_devices);
    EXPECT_EQ(watched_.most(), for_devices);
    EXPECT_FALSE(watched_.at_most(for_devices));
    send(1000000, 16 * kibi, fast);
    send(10000, 6 * kibi, fast);
    EXPECT_EQ(watched_.limit(), for_devices);
    // That holds where they are slow as well, and when they are fast again.
    send(1000, 6 * kibi, slow);
    EXPECT_TRUE(watched_.are_slow());
    EXPECT_FALSE(watched_.at_most(for_devices));
    send(1000000, 6 * kibi, fast);
    EXPECT_EQ(watched_.limit(), for_devices);
}

TEST_F(TwoCopies, WhatTheUserHasSetStays)
{
    watched_ = two_copies(most);
    EXPECT_FALSE(watched_.at_most(8 * kibi));
    EXPECT_EQ(watched_.limit(), most);
    EXPECT_EQ(watched_.most(), most);
}

} // namespace
} // namespace gpusm
