// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_faults_test.cc: driver calls that fail: every request comes back exactly once, with
// the right outcome, and the engine goes on.
#include "tests/unit/copy_engine_support.h"

#include <set>
#include <string>

namespace {

using gpusm::copy_request;
using gpusm::status;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::handle_of;
using gpusm_test::log_capture;

struct fault {
    const char *name;
    const char *function;
};
void PrintTo(const fault &about, std::ostream *out)
{
    *out << about.name;
}

// Calls without which a submission cannot be made.
class FailingCall : public copy_engine_fixture, public testing::WithParamInterface<fault> {};

INSTANTIATE_TEST_SUITE_P(Functions, FailingCall,
                         testing::Values(fault{"Context", "ctx_push_current"},
                                         fault{"CaptureMode", "exchange_capture_mode"},
                                         fault{"EventCreate", "event_create"},
                                         fault{"Copy", "memcpy_async"},
                                         fault{"EventRecord", "event_record"}),
                         [](const auto &about) { return about.param.name; });

TEST_P(FailingCall, FailsThisRequestAndNotTheNext)
{
    const log_capture log;
    engine().prepare(device(0));
    fake().fail(GetParam().function, 1, CUDA_ERROR_INVALID_VALUE);
    (void)submit(0, 1);
    fake().heal();
    EXPECT_FALSE(engine().idle()) << "it still has to be collected";
    EXPECT_EQ(collect(), "0! ");
    EXPECT_TRUE(engine().idle());
    (void)submit(0, 1);
    fake().finish_all();
    EXPECT_EQ(collect(), "1 ");
}

TEST_P(FailingCall, ForEverGivesEveryRequestBackOnceAndHoldsNothing)
{
    const log_capture log;
    engine().prepare(device(0));
    fake().fail(GetParam().function, 0, CUDA_ERROR_INVALID_VALUE);
    std::string expected;
    for (int i = 0; i < 30; ++i) {
        (void)submit(i % 2, 1);
        expected += std::to_string(i) + "! ";
    }
    EXPECT_EQ(collect(), expected);
    EXPECT_TRUE(engine().idle());
    fake().heal();
    drop_engine();
    EXPECT_TRUE(fake().events.empty());
    EXPECT_TRUE(fake().stack.empty());
    EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_P(FailingCall, WhenAGatheredBatchGoesOutLosesNobody)
{
    const log_capture log;
    make_engine({.depth = 1, .kernel_blocks = 0});
    submit_many(0, 6);
    fake().finish(0);
    (void)engine().collect(); // 0 is back; the other five are in flight
    submit_many(0, 6);
    // The second call: the first is that of cuEventQuery's scope, where there is one.
    const int nth = std::string("ctx_push_current") == GetParam().function ? 2 : 1;
    if (std::string("exchange_capture_mode") == GetParam().function) {
        fake().fail(GetParam().function, 3, CUDA_ERROR_INVALID_VALUE);
    } else {
        fake().fail(GetParam().function, nth, CUDA_ERROR_INVALID_VALUE);
    }
    fake().finish_all();
    std::string back = collect();
    fake().heal();
    back += collect_until_idle();
    std::set<std::size_t> once;
    std::size_t entries = 0;
    for (std::size_t at = 0; at < back.size(); at = back.find(' ', at) + 1, ++entries) {
        once.insert(std::stoul(back.substr(at)));
    }
    EXPECT_EQ(entries, 11U) << back;
    EXPECT_EQ(once.size(), 11U) << back;
    EXPECT_EQ(back.rfind("1 2 3 4 5 ", 0), 0U) << "those were good: " << back;
}

using CopyEngineFaults = copy_engine_fixture;

TEST_F(CopyEngineFaults, OneBadCopyOfABatchFailsAloneAndTheOthersArrive)
{
    const log_capture log;
    make_engine({.depth = 1, .kernel_blocks = 0});
    submit_many(0, 6);
    fake().fail("memcpy_async", 3, CUDA_ERROR_INVALID_VALUE);
    fake().finish(0);
    std::string back = collect();
    EXPECT_EQ(log.count(), 1U) << log.text();
    back += collect_until_idle();
    EXPECT_EQ(back, "0 3! 1 2 4 5 ");
    EXPECT_EQ(fake().recorded.size(), 2U);
}

TEST_F(CopyEngineFaults, AWaitThatFailsFailsItsCopyWhichIsNotStarted)
{
    const log_capture log;
    fake().fail("stream_wait_event", 1, CUDA_ERROR_INVALID_HANDLE);
    (void)submit(0, {.len_bytes = 1, .wait_for = handle_of<CUevent>(0x77)});
    EXPECT_TRUE(fake().copies.empty()) << "it would read what is not written yet";
    EXPECT_EQ(collect(), "0! ");
}

TEST_F(CopyEngineFaults, AQueryThatFailsFailsItsSubmissionOnly)
{
    const log_capture log;
    make_engine({.depth = 2, .batch_copies = 5, .kernel_blocks = 0});
    submit_many(0, 11); // 1 to 5 have gone out together, 6 to 10 wait
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    fake().finish(1, CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(collect(), "1! 2! 3! 4! 5! ");
    EXPECT_FALSE(engine().idle());
    fake().finish(2);
    EXPECT_EQ(collect(), "6 7 8 9 10 ");
    EXPECT_TRUE(engine().idle());
    (void)submit(0, 1);
    fake().finish_all();
    EXPECT_EQ(collect(), "11 ");
}

TEST_F(CopyEngineFaults, AContextThatIsGoneFailsWhatIsInFlightAndWhatWaits)
{
    const log_capture log;
    submit_many(0, 12);
    fake().fail("ctx_push_current", 0, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    std::set<std::size_t> back;
    std::size_t count = 0;
    for (int round = 0; round < 100 && !engine().idle(); ++round) {
        for (const std::size_t number : gpusm_test::numbers_of(requests_, engine().collect())) {
            back.insert(number);
            ++count;
        }
    }
    EXPECT_TRUE(engine().idle());
    EXPECT_EQ(count, 12U);
    EXPECT_EQ(back.size(), 12U);
    for (const copy_request &each : requests_) {
        EXPECT_EQ(each.outcome, status::driver_failed);
    }
}

TEST_F(CopyEngineFaults, ADriverThatShutsDownIsNotReported)
{
    const log_capture log;
    (void)submit(0, 1);
    fake().finish(0, CUDA_ERROR_DEINITIALIZED);
    EXPECT_EQ(collect(), "0! ");
    EXPECT_EQ(log.count(), 0U) << log.text();
}

TEST_F(CopyEngineFaults, CancelGivesBackRefusedRequestsTooAndEachOnce)
{
    const log_capture log;
    make_engine({.batch_copies = 2, .kernel_blocks = 0});
    fake().fail("memcpy_async", 2, CUDA_ERROR_INVALID_VALUE);
    submit_many(0, 20);
    const auto back = gpusm_test::numbers_of(requests_, engine().cancel_all());
    EXPECT_EQ(back.size(), 20U);
    EXPECT_EQ(std::set<std::size_t>(back.begin(), back.end()).size(), 20U);
    EXPECT_TRUE(engine().idle());
}

TEST_F(CopyEngineFaults, ItsDestructorDoesNotDestroyEventsInAnotherContext)
{
    (void)submit(0, 1);
    (void)engine().cancel_all();
    fake().fail("ctx_push_current", 0, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    const int before = fake().calls["event_destroy"];
    engine_.reset();
    EXPECT_EQ(fake().calls["event_destroy"], before);
}

TEST_F(CopyEngineFaults, WhatAContextHeldIsNotTouchedWhenTheProgramHasDestroyedIt)
{
    const log_capture log;
    make_engine({.depth = 1, .streams = 3});
    (void)submit(0, 1); // and one that waits
    (void)submit(0, 1);
    device(0).context = nullptr;
    const auto calls = fake().calls;
    EXPECT_EQ(collect(), "0! 1! ");
    drop_engine();
    for (const char *function : {"event_query", "event_destroy", "stream_synchronize",
                                 "stream_destroy", "module_unload", "mem_host_unregister"}) {
        EXPECT_EQ(fake().calls[function], calls.contains(function) ? calls.at(function) : 0)
            << function;
    }
}

// The driver may answer a question with an error while the copies go on.
TEST_F(CopyEngineFaults, CopiesAboutWhichAQuestionFailsAreWaitedForBeforeTheyComeBack)
{
    const log_capture log;
    (void)submit(0, 1);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["stream_synchronize"], 0);
    fake().fail("event_query", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(collect(), "0! ");
    EXPECT_EQ(fake().calls["stream_synchronize"], 1);
}

// Their end cannot be seen, and the caller may reuse the memory of what it gets back.
TEST_F(CopyEngineFaults, CopiesWithoutAnEventAreWaitedForBeforeTheyComeBack)
{
    const log_capture log;
    fake().fail("event_record", 1, CUDA_ERROR_LAUNCH_FAILED);
    (void)submit(0, 1);
    EXPECT_EQ(fake().copies.size(), 1U);
    EXPECT_EQ(fake().calls["stream_synchronize"], 1);
    EXPECT_EQ(collect(), "0! ");
}

} // namespace
