// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_test.cc: how copies are submitted, gathered and come back, on a scripted driver
// without the kernel. What goes by the kernel is in copy_engine_kernel_test.cc, what happens when
// calls fail in copy_engine_faults_test.cc.
#include "tests/unit/copy_engine_support.h"

#include <array>

namespace {
std::size_t allocations = 0;
}

// Counts, so that a test can say that nothing was allocated. Not inlined, or the compiler thinks
// that what it inlines does not fit together.
[[gnu::noinline]] void *operator new(std::size_t bytes)
{
    ++allocations;
    if (void *memory = std::malloc(bytes)) {
        return memory;
    }
    std::abort();
}
[[gnu::noinline]] void operator delete(void *memory) noexcept
{
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void *memory, std::size_t) noexcept
{
    std::free(memory);
}

namespace {

using namespace gpusm;
using namespace gpusm_test;

using CopyEngine = copy_engine_fixture;

TEST_F(CopyEngine, ALoneCopyIsSubmittedAtOnceAndComesBackWhenItIsDone)
{
    large(1, 4096);
    EXPECT_EQ(started(), "single 0");
    EXPECT_EQ(unit(0).stream, device(0).stream);
    EXPECT_EQ(unit(0).context, device(0).context);
    EXPECT_FALSE(engine().idle());
    EXPECT_EQ(collect(), "");
    finish(0);
    EXPECT_EQ(collect(), "0");
    EXPECT_TRUE(engine().idle());
    const auto calls = fake().calls;
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls, calls) << "an idle engine makes no driver call";
}

TEST_F(CopyEngine, CollectAsksEachBusyDeviceOnceAboutItsOldestOnly)
{
    make_engine({.depth = 5, .batch_copies = 1});
    for (int i = 0; i < 4; ++i) {
        large(1);
        large(1, 1, 1);
    }
    finish(7); // of device 1, but not its oldest
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["event_query"], 2);
    fake().finish_all();
    EXPECT_EQ(collect(), "0-1");
    EXPECT_EQ(fake().calls["event_query"], 4);
}

TEST_F(CopyEngine, ABusyCallerAsksTheDriverInEveryEighthRoundOnly)
{
    large(1);
    for (int round = 1; round <= 40; ++round) {
        EXPECT_EQ(collect(true), "");
        EXPECT_EQ(fake().calls["event_query"], round / 8);
    }
    EXPECT_EQ(collect(true), "");
    EXPECT_EQ(collect(), "") << "one that is not busy asks at once";
    EXPECT_EQ(fake().calls["event_query"], 6);
    fake().finish_all();
    for (int round = 1; round < 8; ++round) {
        EXPECT_EQ(collect(true), "") << "the count starts anew";
    }
    EXPECT_EQ(collect(true), "0");
}

TEST_F(CopyEngine, ACopyWaitsForThePeersEventFirst)
{
    const log_capture log;
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE); // the wait comes before the copy
    submit({.len_bytes = 1, .wait_for = handle_of<CUevent>(0x77)});
    EXPECT_EQ(fake().waited, std::vector<CUevent>{handle_of<CUevent>(0x77)});
    large(1);
    EXPECT_EQ(fake().waited.size(), 1U) << "only who has to";
}

TEST_F(CopyEngine, TheCallersContextAndCaptureModeAreBackAfterEveryCall)
{
    const std::vector<CUcontext> before = {handle_of<CUcontext>(0xbeef)};
    fake().stack = before;
    const auto expect_back = [&] {
        EXPECT_EQ(fake().stack, before);
        EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    };
    make_engine({.kernel_blocks = 32});
    engine().prepare(device(0));
    expect_back();
    large(1);
    expect_back();
    EXPECT_EQ(collect_until_idle(), "0");
    expect_back();
}

TEST_F(CopyEngine, ItsEventsHaveNoTimingAreReusedAndDestroyedWithIt)
{
    make_engine({.batch_copies = 2});
    for (std::size_t round = 0; round < 20; ++round) {
        large(17, 1, round % 2);
        (void)collect_until_idle();
    }
    EXPECT_LE(fake().events.size(), 8U) << "four per device";
    for (const auto &[event, context] : fake().events) {
        EXPECT_TRUE(context == device(0).context || context == device(1).context);
        EXPECT_EQ(fake().event_flags[event], unsigned{CU_EVENT_DISABLE_TIMING});
    }
    drop_engine();
    EXPECT_TRUE(fake().events.empty());
}

TEST_F(CopyEngine, CancelGivesBackEverythingOnceWithoutADriverCall)
{
    for (const unsigned blocks : {0U, 32U}) {
        make_engine({.kernel_blocks = blocks});
        small(3);
        finish(0);
        EXPECT_EQ(collect(), "0"); // the others are in flight
        small(2);
        large(2);
        large(2, 1, 1);
        back_.clear();
        const auto calls = fake().calls;
        const std::string text = text_of(engine().cancel_all());
        EXPECT_EQ(fake().calls, calls);
        EXPECT_EQ(back_.size(), 8U) << text;
        EXPECT_TRUE(engine().idle());
        EXPECT_EQ(engine().cancel_all(), nullptr);
        large(1);
        EXPECT_EQ(collect_until_idle(), "9") << "it goes on working";
    }
}

// Events that are made without the fake's books, which allocate.
std::array<CUresult, 64> told{};
std::size_t made_events = 0;

void use_plain_events(driver_api &api)
{
    made_events = 0;
    api.event_create = [](CUevent *out, unsigned) {
        *out = handle_of<CUevent>(++made_events);
        return CUDA_SUCCESS;
    };
    api.event_destroy = [](CUevent) { return CUDA_SUCCESS; };
    api.event_record = [](CUevent event, CUstream) {
        told.at(reinterpret_cast<std::uintptr_t>(event)) = CUDA_ERROR_NOT_READY;
        return CUDA_SUCCESS;
    };
    api.event_query = [](CUevent event) {
        return told.at(reinterpret_cast<std::uintptr_t>(event));
    };
}

TEST_F(CopyEngine, ItAllocatesNothingOnceADeviceIsPrepared)
{
    for (const unsigned blocks : {0U, 32U}) {
        drop_engine();
        use_plain_events(api_);
        make_engine({.batch_copies = 8, .kernel_blocks = blocks});
        engine().prepare(device(0));
        requests_.resize(200);
        fake().launches.reserve(64);
        fake().stack.reserve(8);
        fake().quiet = true;
        const std::size_t before = allocations;
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            requests_[i].len_bytes = i;
            requests_[i].for_kernel = i % 3 != 0;
            engine().submit(device(0), &requests_[i]);
        }
        std::size_t back = 0;
        for (int round = 0; round < 1000 && !engine().idle(); ++round) {
            for (copy_request *each = engine().collect(); each != nullptr; each = each->next) {
                ++back;
            }
            told.fill(CUDA_SUCCESS);
            fake().finish_all();
        }
        EXPECT_EQ(allocations, before);
        EXPECT_EQ(back, 200U);
        EXPECT_EQ(submissions(copy_way::kernel) > 0, blocks > 0);
        fake().quiet = false;
    }
}

using CopyEngineGathering = copy_engine_fixture;

TEST_F(CopyEngineGathering, WhileTheDeviceIsBusyCopiesGatherWithoutACallAndGoOutTogetherInOrder)
{
    large(1);
    const auto calls = fake().calls;
    large(63);
    EXPECT_EQ(fake().calls, calls);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(started(), "single 0");
    finish(0);
    EXPECT_EQ(collect(), "0");
    EXPECT_EQ(started(), "single 1-63") << "with one event";
    EXPECT_EQ(collect_until_idle(), "1-63");
    EXPECT_EQ(submissions(copy_way::single), 2U);
    EXPECT_EQ(submissions(copy_way::batch) + submissions(copy_way::kernel), 0U);
}

TEST_F(CopyEngineGathering, ASubmissionStopsAtItsNumberOfCopies)
{
    make_engine({.depth = 1, .batch_copies = 3});
    large(9);
    EXPECT_EQ(collect_until_idle(), "0 1-3 4-6 7-8");
    EXPECT_EQ(started(), "single 0; single 1-3; single 4-6; single 7-8");
}

TEST_F(CopyEngineGathering, AFullSubmissionGoesOutThoughTheDeviceIsBusy)
{
    make_engine({.depth = 4, .batch_copies = 3}); // and 3 for large ones
    large(3);
    EXPECT_EQ(started(), "single 0") << "two are gathered";
    large(1);
    EXPECT_EQ(started(), "single 1-3");
    large(33);
    EXPECT_EQ(started(), "single 4-6") << "no more than it may have in flight";
    finish(0);
    EXPECT_EQ(collect(), "0");
    EXPECT_EQ(started(), "single 7-9");
}

TEST_F(CopyEngineGathering, ASubmissionStopsOnceItHasItsBytes)
{
    make_engine({.depth = 1, .batch_bytes = 1000});
    for (const std::size_t bytes : {1U, 400U, 400U, 400U, 5000U, 1U, 999U, 1U}) {
        large(1, bytes);
    }
    EXPECT_EQ(collect_until_idle(), "0 1-3 4 5-6 7");
}

TEST_F(CopyEngineGathering, SubmissionsDoubleWhileTheDeviceIsBusyUntilTheyHaveTheirBytes)
{
    make_engine({.depth = 9, .batch_bytes = 3500, .early_bytes = 1000});
    large(130, 100);
    EXPECT_EQ(started(), "single 0; single 1-10; single 11-21; single 22-43; single 44-78; "
                         "single 79-113");
}

TEST_F(CopyEngineGathering, WhileHeldCopiesGatherOnAnIdleDeviceUntilTheNextCollect)
{
    engine().prepare(device(0));
    const auto calls = fake().calls;
    engine().hold(true);
    large(5);
    small(1);
    EXPECT_EQ(fake().calls, calls);
    EXPECT_FALSE(engine().idle());
    EXPECT_EQ(collect(), "") << "held or not";
    EXPECT_EQ(started(), "single 5; single 0-4") << "small and large ones apart";
    EXPECT_EQ(collect_until_idle(), "5 0-4");
    engine().hold(false);
    large(1);
    EXPECT_EQ(started(), "single 6") << "a lone copy goes at once again";
}

TEST_F(CopyEngineGathering, AFullSubmissionGoesOutThoughHeld)
{
    make_engine({.batch_copies = 3, .batch_bytes = 1000});
    engine().hold(true);
    large(2);
    EXPECT_EQ(started(), "");
    large(1);
    large(1, 1000, 1);
    EXPECT_EQ(started(), "single 0-2; single@1 3") << "full of copies, and of bytes";
}

TEST_F(CopyEngineGathering, DevicesDoNotWaitForEachOther)
{
    large(6);
    large(1, 1, 1);
    EXPECT_EQ(started(), "single 0; single@1 6");
    EXPECT_EQ(unit(1).stream, device(1).stream);
    finish(1);
    EXPECT_EQ(collect(), "6");
    EXPECT_EQ(collect_until_idle(), "0 1-5");
}

TEST_F(CopyEngineGathering, EndlessWorkForOneDeviceDoesNotKeepAnotherWaiting)
{
    for (const unsigned blocks : {0U, 32U}) {
        make_engine({.kernel_blocks = blocks});
        large(500);
        for (std::size_t round = 0; round < 100; ++round) {
            large(65);
            small(200);
            const std::size_t other = requests_.size();
            small(1, 64, 1);
            fake().finish_all();
            const std::string back = collect();
            EXPECT_EQ(back_.count(other), 1U) << back;
        }
    }
}

class CopyEngineStreams : public copy_engine_fixture {
  protected:
    CopyEngineStreams() { make_engine({.depth = 5, .batch_copies = 1, .streams = 3}); }
    static std::vector<CUstream> used()
    {
        std::vector<CUstream> streams;
        for (const auto &each : fake().units) {
            streams.push_back(each.stream);
        }
        return streams;
    }
};

TEST_F(CopyEngineStreams, ALoneCopyTakesTheDevicesOwn)
{
    for (int i = 0; i < 3; ++i) {
        large(1);
        (void)collect_until_idle();
    }
    EXPECT_EQ(used(), std::vector<CUstream>(3, device(0).stream));
}

TEST_F(CopyEngineStreams, OthersTakeTurnsOnAllOfThemAndEachIsAskedOncePerRound)
{
    large(4);
    const std::vector<CUstream> streams = used();
    ASSERT_EQ(streams.size(), 4U);
    EXPECT_EQ(streams[0], device(0).stream);
    EXPECT_EQ(std::set<CUstream>(streams.begin(), streams.end()).size(), 3U);
    EXPECT_EQ(streams[3], streams[0]);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["event_query"], 3);
}

TEST_F(CopyEngineStreams, ACopyThatEndsFirstComesBackFirst)
{
    large(3);
    finish(1);
    EXPECT_EQ(collect(), "1") << "it is on a stream of its own";
    finish(0);
    EXPECT_EQ(collect(), "0");
    EXPECT_EQ(collect_until_idle(), "2");
}

TEST_F(CopyEngineStreams, WithoutFurtherStreamsTheDevicesOwnDoesAll)
{
    const log_capture log;
    fake().fail("stream_create", 0, CUDA_ERROR_OUT_OF_MEMORY);
    large(3, 1, 1);
    EXPECT_EQ(used(), std::vector<CUstream>(3, device(1).stream));
    EXPECT_EQ(collect_until_idle(), "0 1 2");
}

TEST_F(CopyEngineStreams, AreGivenBack)
{
    large(1);
    large(1, 1, 1);
    EXPECT_EQ(fake().streams.size(), 4U);
    drop_engine();
    EXPECT_TRUE(fake().streams.empty());
}

} // namespace
