// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reach_test.cc: base/reach.h: every event in every state, and when something is tried again.
#include "opal/mca/common/gpusm/base/reach.h"

#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

constexpr std::int64_t second_ns = reach::first_pause_ns;
std::int64_t time_ns;
int questions; // to the clock

std::int64_t test_clock()
{
    ++questions;
    return time_ns;
}

class Reach : public testing::Test {
  protected:
    Reach() { time_ns = 1000 * second_ns; }

    // Fails until it is refused.
    void refuse()
    {
        while (!fact_.is_refused()) {
            (void)fact_.failed(status::driver_failed);
        }
    }
    // Waits for the end of the pause, and not longer; in seconds.
    std::int64_t pause()
    {
        const std::int64_t begin = time_ns;
        time_ns = fact_.next_try_ns() - 1;
        EXPECT_FALSE(fact_.may_try());
        ++time_ns;
        EXPECT_TRUE(fact_.may_try());
        return (time_ns - begin) / second_ns;
    }

    reach fact_{test_clock};
};

TEST_F(Reach, WhatWorksIsTriedWithoutALookAtTheClock)
{
    questions = 0;
    for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(fact_.may_try());
        EXPECT_FALSE(fact_.worked());
    }
    EXPECT_EQ(0, questions);
    EXPECT_EQ(reach_state::works, fact_.state());
}

TEST_F(Reach, FourFailuresInARowRefuse)
{
    for (unsigned i = 1; i < failures_in_a_row; ++i) {
        EXPECT_FALSE(fact_.failed(status::no_memory));
        EXPECT_EQ(reach_state::failing, fact_.state());
        EXPECT_EQ(i, fact_.failures());
        EXPECT_TRUE(fact_.may_try());
    }
    EXPECT_TRUE(fact_.failed(status::system_failed)); // worth a line
    EXPECT_EQ(reach_state::waits, fact_.state());
    EXPECT_EQ(status::system_failed, fact_.why());
    EXPECT_FALSE(fact_.may_try());
}

TEST_F(Reach, ASuccessBetweenThemForgetsThem)
{
    for (int i = 0; i < 100; ++i) {
        EXPECT_FALSE(fact_.failed(status::no_memory));
        EXPECT_FALSE(fact_.failed(status::no_memory));
        EXPECT_FALSE(fact_.worked());
        EXPECT_EQ(reach_state::works, fact_.state());
    }
}

TEST_F(Reach, OneRefusalIsEnough)
{
    EXPECT_TRUE(fact_.refused(status::unsupported));
    EXPECT_EQ(reach_state::waits, fact_.state());
    EXPECT_EQ(status::unsupported, fact_.why());
    EXPECT_EQ(1, pause());
}

TEST_F(Reach, PausesDoubleUpToTheirBound)
{
    refuse();
    for (const std::int64_t seconds : {1, 2, 4, 8, 16, 32, 64, 64, 64}) {
        EXPECT_EQ(seconds, pause());
        EXPECT_FALSE(fact_.failed(status::driver_failed)); // said already
        EXPECT_EQ(reach_state::waits, fact_.state());
    }
}

TEST_F(Reach, ARefusalAfterThePauseDoublesItToo)
{
    (void)fact_.refused(status::unsupported);
    EXPECT_EQ(1, pause());
    EXPECT_FALSE(fact_.refused(status::unsupported));
    EXPECT_EQ(2, pause());
}

TEST_F(Reach, WhatHadBeenTriedBeforeDoesNotDoubleThePause)
{
    refuse();
    const std::int64_t next = fact_.next_try_ns();
    time_ns += second_ns / 2;
    EXPECT_FALSE(fact_.failed(status::no_memory));
    EXPECT_FALSE(fact_.refused(status::no_memory));
    EXPECT_EQ(next, fact_.next_try_ns());
    EXPECT_EQ(status::driver_failed, fact_.why());
}

TEST_F(Reach, ASuccessAfterThePauseEndsTheRefusal)
{
    refuse();
    (void)pause();
    EXPECT_TRUE(fact_.worked());
    EXPECT_EQ(reach_state::works, fact_.state());
    questions = 0;
    EXPECT_TRUE(fact_.may_try());
    EXPECT_FALSE(fact_.worked());
    EXPECT_EQ(0, questions);
}

TEST_F(Reach, ALateSuccessEndsTheRefusalWithinThePause)
{
    refuse();
    EXPECT_TRUE(fact_.worked());
    EXPECT_TRUE(fact_.may_try());
}

TEST_F(Reach, WhatHasWorkedForAWhileBeginsWithAShortPauseAgain)
{
    refuse();
    for (int i = 0; i < 3; ++i) {
        (void)pause();
        (void)fact_.failed(status::driver_failed);
    }
    EXPECT_EQ(8, pause());
    EXPECT_TRUE(fact_.worked());
    time_ns += 8 * second_ns;
    refuse();
    EXPECT_EQ(1, pause());
}

TEST_F(Reach, WhatFailsSoonAfterASuccessPausesLonger)
{
    refuse();
    for (const std::int64_t seconds : {1, 2, 4}) {
        EXPECT_EQ(seconds, pause());
        EXPECT_TRUE(fact_.worked());
        time_ns += seconds * second_ns - 1;
        refuse();
    }
}

TEST_F(Reach, AFailureAfterThePauseNeedsNoFurtherOnes)
{
    refuse();
    (void)pause();
    (void)fact_.failed(status::driver_failed);
    EXPECT_FALSE(fact_.may_try());
}

TEST_F(Reach, WhatCannotWorkIsNotTriedAgain)
{
    EXPECT_TRUE(fact_.never_again(status::unsupported));
    EXPECT_FALSE(fact_.never_again(status::unsupported));
    EXPECT_EQ(reach_state::never, fact_.state());
    EXPECT_EQ(status::unsupported, fact_.why());
    time_ns += 1'000'000 * second_ns;
    EXPECT_FALSE(fact_.may_try());
    EXPECT_FALSE(fact_.failed(status::no_memory));
    EXPECT_FALSE(fact_.refused(status::no_memory));
    EXPECT_FALSE(fact_.worked());
    EXPECT_EQ(reach_state::never, fact_.state());
    EXPECT_FALSE(fact_.may_try());
}

TEST_F(Reach, WhatWasRefusedCanTurnOutToBeImpossible)
{
    refuse();
    EXPECT_FALSE(fact_.never_again(status::unsupported)); // that it is refused has been said
    EXPECT_EQ(reach_state::never, fact_.state());
}

// Whatever fails five times and then never is back after seven seconds.
TEST_F(Reach, FiveFailuresAreOverSoon)
{
    int failures = 5;
    const std::int64_t begin = time_ns;
    while (!(fact_.may_try() && 0 == failures)) {
        if (fact_.may_try()) {
            (void)fact_.failed(status::driver_failed);
            --failures;
        }
        time_ns += second_ns / 100;
    }
    EXPECT_TRUE(fact_.worked());
    EXPECT_LE(time_ns - begin, 7 * second_ns);
}

TEST(ReachClock, TheSystemsOneGoesOn)
{
    reach fact;
    EXPECT_TRUE(fact.refused(status::unsupported));
    EXPECT_FALSE(fact.may_try());
    EXPECT_GT(fact.next_try_ns(), coarse_now_ns());
    EXPECT_LE(fact.next_try_ns(), coarse_now_ns() + reach::first_pause_ns);
}

TEST(ReachThreads, FailuresOfSeveralThreadsAreToldOnce)
{
    reach fact;
    std::atomic<int> told{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int j = 0; j < 1000; ++j) {
                if (fact.may_try()) {
                    told += fact.failed(status::driver_failed) ? 1 : 0;
                }
                (void)(j % 100 == 0 && fact.worked());
            }
        });
    }
    for (std::thread &each : threads) {
        each.join();
    }
    EXPECT_EQ(1, told);
}

TEST(ReachTable, FactsAreApart)
{
    reach_table<int> facts;
    EXPECT_TRUE(facts.may_try(1));
    EXPECT_FALSE(facts.worked(1));
    EXPECT_FALSE(facts.is_refused(1));
    EXPECT_TRUE(facts.refused(1, status::unsupported));
    EXPECT_FALSE(facts.may_try(1));
    EXPECT_TRUE(facts.is_refused(1));
    EXPECT_TRUE(facts.may_try(2));
    for (unsigned i = 0; i < failures_in_a_row; ++i) {
        EXPECT_TRUE(facts.may_try(2));
        EXPECT_EQ(i + 1 == failures_in_a_row, facts.failed(2, status::no_memory));
    }
    EXPECT_FALSE(facts.may_try(2));
    EXPECT_TRUE(facts.worked(1));
    EXPECT_TRUE(facts.may_try(1));
    EXPECT_FALSE(facts.may_try(2));
}

} // namespace
