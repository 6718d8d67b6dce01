// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_mixed_test.cc: small and large copies beside each other: neither kind waits for the
// other, and none of them for ever; on a scripted driver.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::copy_request;
using gpusm::copy_way;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::fake_launch;
using gpusm_test::handle_of;

constexpr std::size_t large = 4U << 20;

class CopyEngineMixed : public copy_engine_fixture {
  protected:
    CopyEngineMixed() { make_engine({}); }

    std::size_t launches() const { return fake().launches.size(); }
    std::size_t recorded() const { return fake().recorded.size(); }
};

TEST_F(CopyEngineMixed, ALoneSmallCopyDoesNotWaitForALargeOneInFlight)
{
    (void)submit(0, large);
    (void)submit_small(0, 100);
    ASSERT_EQ(launches(), 1U) << "at once, and not behind the large one in its stream";
    const fake_launch &made = fake().launches[0];
    EXPECT_EQ(fake().streams.count(made.stream), 1U);
    EXPECT_NE(made.stream, device(0).stream);
    ASSERT_EQ(made.arguments.copies, 1U);
    EXPECT_EQ(made.arguments.copy[0].source, request(1).source);
    EXPECT_EQ(made.arguments.copy[0].len_bytes, 100U);
    EXPECT_EQ(submissions(copy_way::kernel), 1U);
    EXPECT_EQ(collect(), "");
    fake().finish_launch(0);
    EXPECT_EQ(collect(true), "1 ") << "also when the caller is busy";
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
}

TEST_F(CopyEngineMixed, SmallCopiesOneByOneAllComeBackWhileALargeOneIsInFlight)
{
    (void)submit(0, large);
    for (std::size_t i = 1; i <= 20; ++i) {
        (void)submit_small(0);
        ASSERT_EQ(launches(), i);
        fake().finish_launch(i - 1);
        EXPECT_EQ(collect(), std::to_string(i) + " ");
    }
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    (void)submit_small(0);
    EXPECT_EQ(launches(), 20U) << "by the driver again";
    EXPECT_EQ(recorded(), 2U);
}

TEST_F(CopyEngineMixed, TheLargeOneOfAnotherDeviceDoesNotMatter)
{
    (void)submit(0, large);
    (void)submit_small(1);
    EXPECT_EQ(launches(), 0U);
    EXPECT_EQ(fake().copies.size(), 2U);
}

TEST_F(CopyEngineMixed, ALargeOneThatOnlyWaitsDoesNotMatter)
{
    engine().hold(true);
    (void)submit(0, large - 1);
    (void)submit_small(0);
    EXPECT_TRUE(fake().calls.count("memcpy_async") == 0) << "both wait";
    (void)collect(); // the small one is first
    ASSERT_EQ(fake().copies.size(), 2U);
    EXPECT_EQ(fake().copies[0].source, request(1).source);
    EXPECT_EQ(launches(), 0U);
}

TEST_F(CopyEngineMixed, WhatIsNotForTheKernelIsNotForItBehindALargeOneEither)
{
    make_engine({.kernel_bytes = 1000});
    (void)submit(0, large);
    const copy_request others[] = {
        {.len_bytes = 64, .for_kernel = false},
        {.len_bytes = 0, .for_kernel = true},
        {.len_bytes = 1001, .for_kernel = true},
        {.len_bytes = 64, .wait_for = handle_of<CUevent>(0x77), .for_kernel = true},
    };
    for (const copy_request &each : others) {
        (void)submit(0, each);
    }
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 ");
    EXPECT_EQ(launches(), 0U);
}

// One is on the bus, and one is begun meanwhile.
TEST_F(CopyEngineMixed, OverTheBusTwoSubmissionsAreInFlightBeforeFurtherCopiesGather)
{
    const copy_request over_bus{.len_bytes = 64, .over_bus = true};
    for (int i = 0; i < 5; ++i) {
        (void)submit(0, over_bus);
        EXPECT_EQ(fake().copies.size(), std::min<std::size_t>(i + 1, 2)) << i;
    }
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().copies.size(), 5U) << "the other three go out together";
    EXPECT_EQ(recorded(), 3U);
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 ");
}

// The processor has enough to do with what has come before.
TEST_F(CopyEngineMixed, OverTheBusCopiesGatherAsLongAsTheyAreToldTo)
{
    const copy_request over_bus{.len_bytes = 64, .over_bus = true};
    engine().gather_over_bus(true);
    for (int i = 0; i < 3; ++i) {
        (void)submit(0, over_bus);
    }
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().copies.size(), 0U) << "though the device is idle";
    engine().gather_over_bus(false);
    (void)collect();
    EXPECT_EQ(fake().copies.size(), 3U);
    EXPECT_EQ(recorded(), 1U);
    EXPECT_EQ(collect_until_idle(), "0 1 2 ");
}

TEST_F(CopyEngineMixed, NoOtherCopyWaitsForThoseOverTheBus)
{
    engine().gather_over_bus(true);
    (void)submit(0, {.len_bytes = 64, .over_bus = true});
    EXPECT_EQ(fake().copies.size(), 0U);
    (void)submit(0, {.len_bytes = 64}); // between devices
    EXPECT_EQ(fake().copies.size(), 2U) << "they go out together";
    EXPECT_EQ(collect_until_idle(), "0 1 ");
    (void)submit(0, {.len_bytes = 64, .over_bus = true});
    EXPECT_EQ(fake().copies.size(), 2U) << "and then those gather again";
    (void)engine().cancel_all();
    (void)submit(0, {.len_bytes = 64});
    EXPECT_EQ(fake().copies.size(), 3U) << "nothing is left of what was cancelled";
    EXPECT_EQ(collect_until_idle(), "3 ");
}

TEST_F(CopyEngineMixed, SmallCopiesOverTheBusDoNotGatherBehindLargeOnes)
{
    engine().gather_over_bus(true);
    (void)submit(0, {.len_bytes = 64, .over_bus = true});
    (void)submit(0, {.len_bytes = 64, .for_kernel = true, .over_bus = true});
    EXPECT_EQ(fake().copies.size() + launches(), 1U);
    engine().gather_over_bus(false);
    EXPECT_EQ(collect_until_idle(), "1 0 ");
}

TEST_F(CopyEngineMixed, AFullSubmissionOverTheBusGoesOutAtOnce)
{
    make_engine({.batch_copies = 4});
    engine().gather_over_bus(true);
    for (int i = 0; i < 5; ++i) {
        (void)submit(0, {.len_bytes = 64, .over_bus = true});
        EXPECT_EQ(fake().copies.size(), i < 3 ? 0U : 4U) << i;
    }
    engine().gather_over_bus(false);
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 ");
}

TEST_F(CopyEngineMixed, OverTheBusTheKernelCopiesWhatItMay)
{
    const copy_request over_bus{.len_bytes = 64, .for_kernel = true, .over_bus = true};
    engine().hold(true);
    for (int i = 0; i < 4; ++i) {
        (void)submit(0, over_bus);
    }
    EXPECT_EQ(launches(), 0U) << "held";
    engine().hold(false);
    (void)collect();
    EXPECT_EQ(launches(), 1U);
    (void)submit(0, over_bus); // alone, so it is the driver's, and not behind the launch
    EXPECT_EQ(launches(), 1U);
    EXPECT_EQ(fake().copies.size(), 1U);
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 ");
}

TEST_F(CopyEngineMixed, WithoutTheKernelALoneSmallCopyGoesByTheDriverAtOnce)
{
    make_engine({.kernel_blocks = 0});
    (void)submit(0, large);
    (void)submit_small(0);
    EXPECT_EQ(fake().copies.size(), 2U);
    EXPECT_EQ(collect_until_idle(), "0 1 ");
}

TEST_F(CopyEngineMixed, ALoneSmallCopyWhoseLaunchIsRefusedGoesByTheDriver)
{
    const gpusm_test::log_capture log;
    (void)submit(0, large);
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    (void)submit_small(0);
    ASSERT_EQ(fake().copies.size(), 2U);
    EXPECT_EQ(fake().copies[1].stream, device(0).stream);
    EXPECT_EQ(collect_until_idle(), "0 1 ");
}

TEST_F(CopyEngineMixed, LargeCopiesLeaveAPlaceToSmallOnes)
{
    for (const std::uint32_t depth : {2U, 3U, 8U}) {
        SCOPED_TRACE("depth " + std::to_string(depth));
        drop_engine();
        fake().recorded.clear();
        fake().launches.clear();
        make_engine({.depth = depth, .batch_copies = 4});
        submit_many(0, 200, large);
        EXPECT_EQ(recorded(), depth - 1);
        const std::size_t number = requests_.size();
        (void)submit_small(0);
        ASSERT_EQ(launches(), 1U) << "no large one has to end before";
        submit_many(0, 20, large);
        EXPECT_EQ(recorded(), depth - 1) << "the place stays the small ones'";
        fake().finish_launch(0);
        EXPECT_EQ(collect(), std::to_string(number) + " ");
        fake().finish(0);
        EXPECT_NE(collect(), "");
        EXPECT_EQ(recorded(), depth) << "one large submission follows another";
    }
}

TEST_F(CopyEngineMixed, WithOnePlaceLargeCopiesHaveIt)
{
    make_engine({.depth = 1});
    (void)submit(0, large);
    (void)submit_small(0);
    EXPECT_EQ(recorded(), 1U);
    EXPECT_EQ(launches(), 0U);
    EXPECT_EQ(collect_until_idle(), "0 1 ");
}

// What comes of one kind keeps every place taken, and submissions end one at a time: a place that
// becomes free must not go to the same kind for ever.
TEST_F(CopyEngineMixed, NeitherKindKeepsTheOtherWaitingForEver)
{
    for (const unsigned blocks : {0U, 32U}) {
        for (const std::uint32_t depth : {1U, 2U, 4U}) {
            for (const bool small_waits : {true, false}) {
                drop_engine();
                requests_.clear();
                fake().recorded.clear();
                fake().launches.clear();
                make_engine({.depth = depth, .batch_copies = 4, .kernel_blocks = blocks});
                const auto submit_others = [&] {
                    for (int i = 0; i < 8; ++i) {
                        (void)(small_waits ? submit(0, large) : submit_small(0));
                    }
                };
                submit_others();
                submit_others();
                const std::size_t wanted = requests_.size();
                (void)(small_waits ? submit_small(0) : submit(0, large));
                std::size_t ended_records = 0;
                std::size_t ended_launches = 0;
                bool back = false;
                for (int round = 0; round < 40 && !back; ++round) {
                    submit_others();
                    // The oldest launch, or else the oldest of the driver's.
                    if (ended_launches < launches()) {
                        fake().finish_launch(ended_launches++);
                    } else if (ended_records < recorded()) {
                        fake().finish(ended_records++);
                    }
                    const auto list = gpusm_test::numbers_of(requests_, engine().collect());
                    back = std::find(list.begin(), list.end(), wanted) != list.end();
                    if (!small_waits && fake().copies.back().source == request(wanted).source) {
                        fake().finish_all(); // it has been started, which is what counts
                    }
                }
                EXPECT_TRUE(back) << (small_waits ? "a small one" : "a large one") << ", depth "
                                  << depth << ", " << blocks << " blocks";
            }
        }
    }
}

} // namespace
