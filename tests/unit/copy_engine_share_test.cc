// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_share_test.cc: copies above kernel_bytes of which the kernel does some and the driver
// does some; on a scripted driver.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>

namespace {

using gpusm::copy_request;
using gpusm::copy_way;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::fake_launch;
using gpusm_test::handle_of;

constexpr std::size_t kib = 1024;
constexpr std::size_t middle = 1024 * kib; // the kernel's only as a share

class CopyEngineShare : public copy_engine_fixture {
  protected:
    CopyEngineShare() { make(true); }

    // `on`: with shares.
    void make(bool on)
    {
        make_engine({.kernel_bytes = 512 * kib,
                     .shared_bytes = 2 * middle,
                     .early_bytes = middle,
                     .batches = false});
        engine().share(on);
    }
    std::size_t launches() const { return fake().launches.size(); }
    // So many gather and go out together.
    void submit_together(int count, std::size_t len_bytes = middle)
    {
        engine().hold(true);
        for (int i = 0; i < count; ++i) {
            (void)submit_small(0, len_bytes);
        }
        engine().hold(false);
        EXPECT_EQ(collect(), "");
    }
};

TEST_F(CopyEngineShare, WhoHasLessInFlightGetsWhatHasGathered)
{
    submit_together(2);
    ASSERT_EQ(launches(), 1U) << "the launch is there earlier";
    EXPECT_EQ(fake().launches[0].arguments.copies, 2U);
    submit_together(2);
    EXPECT_EQ(launches(), 1U);
    EXPECT_EQ(fake().copies.size(), 2U) << "the driver has had nothing";
    submit_together(4);
    ASSERT_EQ(launches(), 2U) << "as much as the driver";
    EXPECT_EQ(fake().launches[1].arguments.copies, 4U);
    submit_together(6);
    EXPECT_EQ(launches(), 2U) << "the driver has less";
    EXPECT_EQ(submissions(copy_way::kernel), 2U);
    fake().finish_launch(0);
    EXPECT_EQ(collect(), "0 1 ");
    EXPECT_EQ(collect_until_idle(), "2 3 4 5 6 7 8 9 10 11 12 13 ");
}

TEST_F(CopyEngineShare, ALoneCopyIsTheDrivers)
{
    (void)submit_small(0, middle);
    (void)submit_small(0, middle);
    EXPECT_EQ(launches(), 0U) << "neither on an idle device nor beside another";
    EXPECT_EQ(collect_until_idle(), "0 1 ");
}

TEST_F(CopyEngineShare, NothingIsSharedThatIsTooLongOrNotForTheKernel)
{
    const copy_request others[] = {
        {.len_bytes = 2 * middle + 1, .on_device = true},
        {.len_bytes = middle, .on_device = false},
        {.len_bytes = middle, .wait_for = handle_of<CUevent>(0x77), .on_device = true},
        {.len_bytes = 0, .on_device = true},
    };
    for (const copy_request &other : others) {
        for (const bool other_first : {false, true}) {
            const std::size_t number = requests_.size();
            engine().hold(true);
            for (const bool is_other : {other_first, !other_first}) {
                (void)(is_other ? submit(0, other) : submit_small(0, middle));
            }
            engine().hold(false);
            const std::string both = std::to_string(number) + " " + std::to_string(number + 1);
            EXPECT_EQ(collect_until_idle(), both + " ");
        }
    }
    EXPECT_EQ(launches(), 0U);
}

TEST_F(CopyEngineShare, NothingIsSharedUnlessTheCallerSaysSo)
{
    make(false);
    submit_together(4);
    EXPECT_EQ(launches(), 0U);
    engine().share(true);
    submit_together(4);
    EXPECT_EQ(launches(), 1U);
    engine().share(false);
    submit_together(8);
    EXPECT_EQ(launches(), 1U);
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 ");
}

TEST_F(CopyEngineShare, SmallCopiesDoNotWaitInTheStreamOfAShare)
{
    submit_together(2);
    submit_together(2);
    for (int i = 0; i < 2; ++i) {
        (void)submit_small(0);
        ASSERT_EQ(launches(), static_cast<std::size_t>(2 + i));
        EXPECT_NE(fake().launches.back().stream, fake().launches[0].stream);
        fake().finish_launch(static_cast<std::size_t>(1 + i));
        EXPECT_EQ(collect(), std::to_string(4 + i) + " ");
    }
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 ");
}

// The program's own kernels may keep a launch from starting for as long as they run.
TEST_F(CopyEngineShare, WhileALaunchDoesNotStartTheDriverGoesOnAlone)
{
    submit_together(4);
    ASSERT_EQ(launches(), 1U);
    submit_together(1);
    EXPECT_EQ(fake().copies.size(), 0U) << "gathers, as the device has enough to do";
    for (int look = 0; look < 1100; ++look) {
        ASSERT_EQ(collect(), "");
    }
    EXPECT_EQ(fake().copies.size(), 1U) << "does not wait for what may never begin";
    fake().finish(0);
    EXPECT_EQ(collect(), "4 ");
    for (std::size_t round = 0; round < 100; ++round) {
        const std::size_t number = requests_.size();
        submit_together(2);
        fake().finish(round + 1);
        EXPECT_EQ(collect(), std::to_string(number) + " " + std::to_string(number + 1) + " ");
    }
    EXPECT_EQ(launches(), 1U);
    fake().finish_launch(0);
    EXPECT_EQ(collect(), "0 1 2 3 ");
    submit_together(2);
    EXPECT_EQ(launches(), 2U) << "and then it has its share again";
    EXPECT_EQ(collect_until_idle(), "205 206 ");
}

TEST_F(CopyEngineShare, AtMostTwoLaunchesAreInFlight)
{
    submit_together(2);
    submit_together(30);
    submit_together(2);
    ASSERT_EQ(launches(), 2U);
    submit_together(2);
    EXPECT_EQ(launches(), 2U) << "though the driver has more in flight";
    (void)collect_until_idle();
}

TEST_F(CopyEngineShare, AShareWhoseLaunchIsRefusedIsTheDrivers)
{
    const gpusm_test::log_capture log;
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    submit_together(2);
    EXPECT_EQ(launches(), 0U);
    EXPECT_EQ(fake().copies.size(), 2U);
    submit_together(2);
    EXPECT_EQ(launches(), 1U) << "has nothing in flight of that refusal";
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 ");
}

} // namespace
