// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_faults_test.cc: driver calls that fail: every request comes back with the right
// outcome, and the engine goes on. That nobody is lost, and that nothing comes back while it may
// still run, is in copy_engine_model_test.cc, too.
#include "tests/unit/copy_engine_support.h"
#include "tests/unit/test_clock.h"

#include <thread>

namespace {

using namespace gpusm;
using namespace gpusm_test;

class CopyEngineFaults : public copy_engine_fixture {
  protected:
    const log_capture log_;
};

TEST_F(CopyEngineFaults, ACallThatASubmissionNeedsFailsItsRequestsAndNotTheNextAndHoldsNothing)
{
    for (const char *function : {"ctx_push_current", "exchange_capture_mode", "event_create",
                                 "memcpy_async", "event_record"}) {
        SCOPED_TRACE(function);
        make_engine({});
        engine().prepare(device(0));
        engine().prepare(device(1));
        fake().fail(function, 0, CUDA_ERROR_INVALID_VALUE);
        for (std::size_t i = 0; i < 30; ++i) {
            large(1, 1, i % 2);
        }
        EXPECT_FALSE(engine().idle()) << "they still have to be collected";
        EXPECT_EQ(collect(true), "0-29!") << "also by a busy caller";
        EXPECT_TRUE(engine().idle());
        fake().heal();
        large(1);
        EXPECT_EQ(collect_until_idle(), "30");
        drop_engine();
        expect_nothing_left_in_the_driver();
        EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }
}

TEST_F(CopyEngineFaults, OneBadCopyOfSeveralFailsAloneAndTheOthersArrive)
{
    make_engine({.depth = 1});
    large(6);
    fake().fail("memcpy_async", 3, CUDA_ERROR_INVALID_VALUE);
    finish(0);
    EXPECT_EQ(collect(), "0 3!");
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    EXPECT_EQ(fake().calls["stream_synchronize"], 0) << "others in flight would hold it up";
    EXPECT_EQ(collect_until_idle(), "1-2 4-5");
    EXPECT_EQ(started(), "single 0; single 1-2 4-5");
}

TEST_F(CopyEngineFaults, ASubmissionThatFailedFailsAloneAndWithoutAWordWhenTheDriverShutsDown)
{
    for (const CUresult answer : {CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_DEINITIALIZED}) {
        make_engine({.depth = 2, .batch_copies = 5});
        const expect_lines log(CUDA_ERROR_DEINITIALIZED == answer ? 0 : 1);
        large(11); // 1 to 5 have gone out together, 6 to 10 wait
        finish(0);
        EXPECT_EQ(collect(), "0");
        finish(1, answer);
        EXPECT_EQ(collect(), "1-5!");
        EXPECT_EQ(collect_until_idle(), "6-10");
    }
}

TEST_F(CopyEngineFaults, AContextThatCannotBeEnteredFailsWhatIsInFlightAndWhatWaits)
{
    large(12);
    fake().fail("ctx_push_current", 0, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(collect_until_idle(), "0-11!");
    const int before = fake().calls["event_destroy"];
    drop_engine();
    EXPECT_EQ(fake().calls["event_destroy"], before) << "not in another context";
}

TEST_F(CopyEngineFaults, WhatAContextHeldIsNotTouchedWhenTheProgramHasDestroyedIt)
{
    make_engine({.depth = 1, .streams = 3, .kernel_blocks = 32});
    large(2); // one of them waits
    device(0).context = nullptr;
    const auto calls = fake().calls;
    EXPECT_EQ(collect(), "0-1!");
    drop_engine();
    for (const char *function : {"event_query", "event_destroy", "stream_synchronize",
                                 "stream_destroy", "module_unload", "mem_host_unregister"}) {
        EXPECT_EQ(fake().calls[function], calls.contains(function) ? calls.at(function) : 0)
            << function;
    }
}

class KernelFaults : public CopyEngineFaults {
  protected:
    KernelFaults() { make_engine({.kernel_blocks = 32}); }
    // As many rounds as it takes until the driver is asked about a kernel that does not end.
    std::string wait_for_the_driver()
    {
        std::string back;
        for (int looks = 0; looks < 1024; ++looks) {
            EXPECT_EQ(back, "");
            back += collect(0 == looks % 2);
        }
        return back;
    }
};

TEST_F(KernelFaults, TheDriverIsAskedNowAndThenAboutALaunchThatLasts)
{
    gather();
    const int before = fake().calls["stream_query"];
    for (int asked = 1; asked <= 2; ++asked) {
        EXPECT_EQ(wait_for_the_driver(), "") << "it runs on";
        EXPECT_EQ(fake().calls["stream_query"], before + asked);
    }
    fake().finish_launch(0);
    EXPECT_EQ(collect(), "1-3");
}

TEST_F(KernelFaults, ALaunchThatWentWrongOrEndedWithoutItsFlagOrContextFailsItsCopies)
{
    for (const CUresult answer :
         {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_SUCCESS, CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
        make_engine({.kernel_blocks = 32});
        const expect_lines log(1);
        gather();
        if (CUDA_ERROR_CONTEXT_IS_DESTROYED == answer) {
            fake().fail("ctx_push_current", 0, answer);
        } else {
            fake().stream_answer[fake().launches[0].stream] = answer;
        }
        EXPECT_EQ(wait_for_the_driver(), "1-3!");
        EXPECT_TRUE(engine().idle());
    }
    fake().heal();
}

TEST_F(KernelFaults, AFlagThatIsWrittenWhileTheDriverIsAskedCounts)
{
    gather();
    api_.stream_query = [](CUstream) {
        fake().finish_launch(0);
        return CUDA_SUCCESS;
    };
    EXPECT_EQ(wait_for_the_driver(), "1-3");
}

TEST_F(KernelFaults, CopiesOfARefusedLaunchGoByTheDriver)
{
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    gather();
    EXPECT_EQ(started(), "single 0; single 1-3");
    EXPECT_EQ(unit(1).stream, device(0).stream);
    EXPECT_EQ(collect_until_idle(), "1-3");
    EXPECT_EQ(submissions(copy_way::kernel), 0U);
    EXPECT_EQ(submissions(copy_way::single), 2U);
    gather();
    EXPECT_EQ(started(), "single 4; kernel 5-7");
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(KernelFaults, AfterSomeRefusedLaunchesAllCopiesOnThatDeviceGoByTheDriverForAWhile)
{
    fake().fail("launch_kernel", 0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    for (unsigned i = 0; i < failures_in_a_row; ++i) {
        gather();
        (void)started();
        (void)collect_until_idle();
    }
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    fake().heal();
    gather();
    EXPECT_EQ(started(), "single 16; single 17-19");
    EXPECT_EQ(collect_until_idle(), "17-19");
    gather(3, 64, 1);
    EXPECT_EQ(fake().launches.size(), 1U) << "the other device has it";
    (void)started();
    (void)collect_until_idle();
    clock_gained_ns += reach::first_pause_ns;
    gather();
    EXPECT_EQ(fake().launches.size(), 2U);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
}

TEST_F(KernelFaults, BehindALaunchThatWaitsForKernelsTheDriverCopiesForASecondButWithinADevice)
{
    for (const bool within : {false, true}) {
        make_engine({.kernel_blocks = 32, .late = std::chrono::milliseconds(0)});
        const auto gather_two = [&](bool inside) {
            for (int i = 0; i < 3; ++i) {
                submit({.len_bytes = 64, .kernel_reaches = true, .within_device = inside});
            }
            finish(fake().units.size() - 1);
            const std::string back = collect();
            return back + ": " + started();
        };
        EXPECT_EQ(gather_two(within), "0: single 0; kernel 1-2");
        EXPECT_EQ(wait_for_the_driver() + wait_for_the_driver(), "") << "it runs on";
        EXPECT_EQ(collect_until_idle(), "1-2");
        EXPECT_EQ(gather_two(within),
                  within ? "3: single 3; kernel 4-5" : "3: single 3; single 4-5");
        EXPECT_EQ(collect_until_idle(), "4-5");
        EXPECT_EQ(gather_two(true), "6: single 6; kernel 7-8");
        EXPECT_EQ(collect_until_idle(), "7-8");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    gather();
    EXPECT_EQ(started(), "single 9; kernel 10-12") << "another launch is tried";
}

TEST_F(KernelFaults, WhatCannotBeLoadedLeavesNothingBehindAndEverythingWorksWithoutTheKernel)
{
    const std::pair<const char *, int> refused[] = {
        {"mem_host_register", 1},   {"mem_host_get_device_pointer", 1}, {"module_load_data", 0},
        {"module_get_function", 1}, {"module_get_function", 2},         {"stream_create", 1},
        {"stream_create", 2}};
    for (const auto &[function, nth] : refused) {
        SCOPED_TRACE(function);
        make_engine({.kernel_blocks = 32});
        fake().fail(function, nth, CUDA_ERROR_NOT_SUPPORTED);
        engine().prepare(device(0));
        fake().heal();
        expect_nothing_left_in_the_driver();
        gather();
        EXPECT_EQ(collect_until_idle(), "1-3");
        gather(3, 64, 1);
        EXPECT_EQ(started(), "single 0; single 1-3; single@1 4; kernel@1 5-7");
        drop_engine();
        expect_nothing_left_in_the_driver();
    }
}

TEST_F(KernelFaults, EverythingIsGivenBackAtTheEndAndNotBeforeItsStreamsAreIdle)
{
    gather();
    gather(3, 64, 1);
    (void)engine().cancel_all();
    static int unloaded_after; // stream_synchronize calls
    unloaded_after = 0;
    static driver_api usual;
    usual = api_;
    api_.module_unload = [](CUmodule module) {
        unloaded_after = fake().calls["stream_synchronize"];
        return usual.module_unload(module);
    };
    engine_.reset();
    EXPECT_EQ(unloaded_after, 4) << "both streams of both devices";
    expect_nothing_left_in_the_driver();
}

} // namespace
