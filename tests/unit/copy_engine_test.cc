// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_test.cc: how copies are submitted, gathered and come back, singly or as batches, on a
// scripted driver without the kernel. What goes by the kernel is in copy_engine_kernel_test.cc,
// what happens when calls fail in copy_engine_faults_test.cc.
#include "tests/unit/copy_engine_support.h"

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

TEST_F(CopyEngine, ACopyWaitsForThePeersEventFirstAndIsNotStartedWithout)
{
    const log_capture log;
    const copy_request waits{.len_bytes = 1, .wait_for = handle_of<CUevent>(0x77)};
    fake().fail("stream_wait_event", 1, CUDA_ERROR_INVALID_HANDLE);
    submit(waits);
    EXPECT_EQ(fake().calls["memcpy_async"], 0) << "it would read what is not written yet";
    EXPECT_EQ(collect(), "0!");
    submit(waits);
    EXPECT_EQ(fake().waited, std::vector<CUevent>{waits.wait_for});
    EXPECT_EQ(collect_until_idle(), "1");
    large(1);
    EXPECT_EQ(fake().waited.size(), 1U) << "only who has to";
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

TEST_F(CopyEngine, ItAllocatesNothingOnceADeviceIsPrepared)
{
    for (const unsigned blocks : {0U, 32U}) {
        make_engine({.batch_copies = 8, .kernel_blocks = blocks});
        engine().prepare(device(0));
        requests_.resize(200);
        fake().launches.reserve(64);
        fake().stack.reserve(8);
        fake().quiet = true;
        const std::size_t before = allocations;
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            requests_[i].len_bytes = i;
            requests_[i].kernel_reaches = i % 3 != 0;
            engine().submit(device(0), &requests_[i]);
        }
        std::size_t back = 0;
        for (int round = 0; round < 1000 && !engine().idle(); ++round) {
            for (copy_request *each = engine().collect(); each != nullptr; each = each->next) {
                ++back;
            }
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

TEST_F(CopyEngineGathering, WhileHeldCopiesGatherOnAnIdleDeviceUntilTheyAreManyOrTheNextCollect)
{
    make_engine({.batch_copies = 6, .batch_bytes = 1000});
    engine().expect_more(true);
    large(5);
    small(1);
    EXPECT_EQ(started(), "");
    EXPECT_FALSE(engine().idle());
    EXPECT_EQ(collect(), "") << "held or not";
    EXPECT_EQ(started(), "single 5; single 0-4") << "small and large ones apart";
    EXPECT_EQ(collect_until_idle(), "5 0-4");
    large(6);
    large(1, 1000, 1);
    EXPECT_EQ(started(), "single 6-11; single@1 12") << "full of copies, and of bytes";
    EXPECT_EQ(collect_until_idle(), "6-12");
    engine().expect_more(false);
    large(1);
    EXPECT_EQ(started(), "single 13") << "a lone copy goes at once again";
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

TEST_F(CopyEngineStreams, OthersTakeTurnsOnAllOfThemAndEndIndependently)
{
    large(4);
    const std::vector<CUstream> streams = used();
    ASSERT_EQ(streams.size(), 4U);
    EXPECT_EQ(streams[0], device(0).stream);
    EXPECT_EQ(std::set<CUstream>(streams.begin(), streams.end()).size(), 3U);
    EXPECT_EQ(streams[3], streams[0]);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["event_query"], 3) << "each is asked once";
    finish(1);
    EXPECT_EQ(collect(), "1");
    EXPECT_EQ(collect_until_idle(), "0 2 3");
    large(1, 1, 1);
    EXPECT_EQ(fake().streams.size(), 4U) << "two more for each device";
    drop_engine();
    EXPECT_TRUE(fake().streams.empty());
}

TEST_F(CopyEngineStreams, WithoutFurtherStreamsTheDevicesOwnDoesAll)
{
    const log_capture log;
    fake().fail("stream_create", 0, CUDA_ERROR_OUT_OF_MEMORY);
    large(3, 1, 1);
    EXPECT_EQ(used(), std::vector<CUstream>(3, device(1).stream));
    EXPECT_EQ(collect_until_idle(), "0 1 2");
}

#if GPUSM_HAVE_BATCH_COPY

class CopyEngineBatch : public copy_engine_fixture {
  protected:
    CopyEngineBatch()
    {
        add_batches(api_);
        make_engine({.depth = 1, .batch_copies = 8}); // one in flight, the rest is gathered
    }
    static int batches() { return fake().calls["batch_copy"]; }
};

TEST_F(CopyEngineBatch, GatheredCopiesAreCallsNoLongerThanTheLimitAndALoneOneIsNone)
{
    large(21);
    EXPECT_EQ(collect_until_idle(), "0 1-8 9-16 17-20");
    EXPECT_EQ(started(), "single 0; batch 1-8; batch 9-16; batch 17-20");
    EXPECT_EQ(submissions(copy_way::single), 1U);
    EXPECT_EQ(submissions(copy_way::batch), 3U);
    small(6); // without the kernel
    EXPECT_EQ(collect_until_idle(), "21 22-26");
    EXPECT_EQ(started(), "single 21; batch 22-26");
}

TEST_F(CopyEngineBatch, ADriverOf12_8TakesItsOwnForm)
{
    static decltype(api_.batch_copy) usual;
    usual = std::exchange(api_.batch_copy, nullptr);
    api_.batch_copy_12_8 = [](CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                              CUmemcpyAttributes *how, size_t *first, size_t attributes, size_t *,
                              CUstream stream) {
        return usual(to, from, sizes, count, how, first, attributes, stream);
    };
    large(4);
    EXPECT_EQ(collect_until_idle(), "0 1-3");
    EXPECT_EQ(started(), "single 0; batch 1-3");
}

TEST_F(CopyEngineBatch, WhatIsRefusedOrSwitchedOffIsCopiedOneByOneAndCountsSo)
{
    struct {
        CUresult answer;
        bool batches;
        int calls;
    } const table[] = {{CUDA_ERROR_INVALID_VALUE, true, 3},
                       {CUDA_ERROR_NOT_SUPPORTED, true, 1}, // a driver without
                       {CUDA_SUCCESS, false, 0}};
    for (const auto &[answer, allowed, calls] : table) {
        make_engine({.depth = 1, .batch_copies = 8, .batches = allowed});
        fake().calls.clear();
        fake().fail("batch_copy", 0, answer);
        large(21);
        EXPECT_EQ(collect_until_idle(), "0 1-8 9-16 17-20");
        EXPECT_EQ(started(), "single 0; single 1-8; single 9-16; single 17-20");
        EXPECT_EQ(batches(), calls);
        EXPECT_EQ(submissions(copy_way::single), 4U);
        EXPECT_EQ(submissions(copy_way::batch), 0U);
    }
}

TEST_F(CopyEngineBatch, CopiesThatWaitForAPeersEventAndEmptyOnesAreInNone)
{
    for (const copy_request &other :
         {copy_request{.len_bytes = 64, .wait_for = handle_of<CUevent>(0xe0)},
          copy_request{.len_bytes = 0}}) {
        make_engine({.depth = 1});
        large(1);
        submit(other);
        large(1);
        EXPECT_EQ(collect_until_idle(), "0 1-2");
        EXPECT_EQ(started(), "single 0; single 1-2");
    }
    EXPECT_EQ(batches(), 0);
    EXPECT_EQ(fake().waited.size(), 1U);
}

#endif

} // namespace
