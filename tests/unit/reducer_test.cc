// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reducer_test.cc: reductions in flight on a device: their streams, events, slots and ends, and
// what is answered when something fails; on a scripted driver.
#include "opal/mca/common/gpusm/gpu/reducer.h"

#include "tests/unit/fake_driver.h"

#include <optional>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

reduction sum_of_two(std::uint64_t elements = 1 << 20)
{
    reduction made = {};
    made.sources[0] = made.targets[0] = 0x10000000;
    made.sources[1] = made.targets[1] = 0x7000000000;
    made.source_count = made.target_count = 2;
    made.elements = elements;
    made.op = reduce_op::sum;
    made.type = reduce_type::float32;
    return made;
}

class Reducer : public testing::Test {
  protected:
    Reducer()
    {
        on_.context = handle_of<CUcontext>(0xc0);
        fake().stack = {on_.context};
        make({.kernel_blocks = 4});
    }
    ~Reducer() override { reducer_->close(true); }

    void make(const copy_limits &limits)
    {
        if (reducer_) {
            reducer_->close(true);
        }
        reducer_.emplace(api_, on_, limits);
    }
    status start(completion *end, std::span<const CUevent> wait_for = {})
    {
        return reducer_->start(sum_of_two(), wait_for, end);
    }
    // Asks so often that the driver is asked, too.
    status outcome(completion *end)
    {
        status s = status::busy;
        for (int i = 0; i < 2000 && status::busy == s; ++i) {
            s = reducer_->ask(end);
        }
        return s;
    }

    driver_api api_ = reset_fake();
    device on_;
    std::optional<reducer> reducer_;
};

TEST_F(Reducer, EachEndIsSeenByItsFlagAndStreamsTakeTurns)
{
    completion ends[3];
    for (completion &each : ends) {
        ASSERT_EQ(start(&each), status::ok);
        EXPECT_EQ(reducer_->ask(&each), status::busy);
    }
    const std::vector<fake_launch> &made = fake().launches;
    ASSERT_EQ(made.size(), 3U);
    EXPECT_NE(made[0].stream, made[1].stream);
    EXPECT_EQ(made[0].stream, made[2].stream);
    EXPECT_EQ(made[0].blocks, 8U) << "twice kernel_blocks";
    EXPECT_EQ(std::memcmp(&made[0].reduce.what.sources, sum_of_two().sources, 16), 0);
    const int asked = fake().calls["stream_query"];
    for (const std::size_t nth : {2U, 0U, 1U}) {
        fake().finish_launch(nth);
        for (std::size_t i = 0; i < 3; ++i) {
            if (i == nth) {
                EXPECT_EQ(reducer_->ask(&ends[i]), status::ok);
            } else if (!fake().launches[i].finished) {
                EXPECT_EQ(reducer_->ask(&ends[i]), status::busy);
            }
        }
    }
    EXPECT_EQ(fake().calls["stream_query"], asked) << "the flags say enough";
}

TEST_F(Reducer, IsBusyWhileAllSlotsAreInFlightAndUsesThemAgain)
{
    completion ends[reduce_slots + 1];
    for (std::uint32_t i = 0; i < reduce_slots; ++i) {
        ASSERT_EQ(start(&ends[i]), status::ok);
    }
    completion &more = ends[reduce_slots];
    EXPECT_EQ(start(&more), status::busy);
    EXPECT_EQ(fake().launches.size(), std::size_t{reduce_slots});
    fake().finish_launch(5);
    EXPECT_EQ(start(&more), status::busy) << "until somebody has asked for the end";
    EXPECT_EQ(reducer_->ask(&ends[5]), status::ok);
    ASSERT_EQ(start(&more), status::ok);
    EXPECT_EQ(fake().launches.back().reduce.slot, fake().launches[5].reduce.slot);
    EXPECT_EQ(reducer_->ask(&more), status::busy);
    fake().finish_all();
    EXPECT_EQ(reducer_->ask(&more), status::ok);
}

TEST_F(Reducer, WaitsForTheEventAndStartsNothingWhenItCannot)
{
    completion end;
    const auto event = handle_of<CUevent>(0xe0);
    ASSERT_EQ(start(&end, {&event, 1}), status::ok);
    EXPECT_EQ(fake().waited, std::vector<CUevent>{event});
    fake().fail("stream_wait_event", 1, CUDA_ERROR_INVALID_HANDLE);
    completion other;
    EXPECT_EQ(start(&other, {&event, 1}), status::driver_failed);
    EXPECT_EQ(fake().launches.size(), 1U);
    fake().finish_launch(0);
    EXPECT_EQ(reducer_->ask(&end), status::ok);
}

TEST_F(Reducer, RefusesAReductionThatIsNotValid)
{
    completion end;
    EXPECT_EQ(reducer_->start(sum_of_two(0), {}, &end), status::bad_argument);
    reduction undefined = sum_of_two();
    undefined.op = reduce_op::lor;
    EXPECT_EQ(reducer_->start(undefined, {}, &end), status::bad_argument);
    EXPECT_TRUE(fake().launches.empty());
    EXPECT_EQ(start(&end), status::ok) << "and goes on";
}

TEST_F(Reducer, LaunchesThatTheDriverRefusesTakeNoSlotAndAreLeftAloneForAWhile)
{
    completion end;
    fake().fail("launch_kernel", 0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    for (unsigned i = 0; i < failures_in_a_row; ++i) {
        EXPECT_EQ(start(&end), status::driver_failed);
    }
    const int tried = fake().calls["launch_kernel"];
    EXPECT_EQ(start(&end), status::unsupported);
    EXPECT_FALSE(reducer_->is_ready());
    EXPECT_EQ(fake().calls["launch_kernel"], tried);
    fake().heal();
    make({.kernel_blocks = 4});
    completion ends[reduce_slots];
    for (completion &each : ends) {
        EXPECT_EQ(start(&each), status::ok);
    }
}

TEST_F(Reducer, ALaunchThatGoesWrongIsToldAndItsSlotIsFree)
{
    completion ends[reduce_slots];
    for (completion &each : ends) {
        ASSERT_EQ(start(&each), status::ok);
    }
    fake().finish_launch(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(outcome(&ends[0]), status::driver_failed);
    EXPECT_GT(fake().calls["stream_synchronize"], 0) << "it must not run any more";
    EXPECT_EQ(start(&ends[0]), status::ok);
    EXPECT_EQ(fake().launches.back().reduce.slot, fake().launches[0].reduce.slot);
}

TEST_F(Reducer, AStreamThatIsIdleWithoutTheFlagHasFailed)
{
    completion end;
    ASSERT_EQ(start(&end), status::ok);
    fake().stream_answer[end.stream] = CUDA_SUCCESS;
    EXPECT_EQ(outcome(&end), status::driver_failed);
}

TEST_F(Reducer, WithoutKernelsOrTheirCodeThereAreNone)
{
    completion end;
    make({.kernel_blocks = 0});
    EXPECT_FALSE(reducer_->load());
    EXPECT_EQ(start(&end), status::unsupported);
    make({.kernel_blocks = 4});
    fake().fail("module_load_data", 0, CUDA_ERROR_INVALID_PTX);
    EXPECT_FALSE(reducer_->load());
    EXPECT_EQ(start(&end), status::unsupported);
    EXPECT_TRUE(fake().launches.empty());
    EXPECT_TRUE(fake().registered.empty());
}

TEST_F(Reducer, CloseWaitsAndGivesEverythingBackAndItCanBeLoadedAgain)
{
    completion end;
    ASSERT_TRUE(reducer_->load());
    EXPECT_TRUE(reducer_->is_ready());
    EXPECT_EQ(fake().streams.size(), std::size_t{kernel_streams});
    ASSERT_EQ(start(&end), status::ok);
    reducer_->close(true);
    EXPECT_EQ(fake().calls["stream_synchronize"], static_cast<int>(kernel_streams));
    EXPECT_TRUE(fake().streams.empty());
    EXPECT_TRUE(fake().modules.empty());
    EXPECT_TRUE(fake().registered.empty());
    completion ends[reduce_slots];
    for (completion &each : ends) {
        EXPECT_EQ(start(&each), status::ok) << "no slot is taken any more";
    }
}

} // namespace
