// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_test.cc: how copies are submitted and come back, on a scripted driver. How they are
// gathered is in copy_engine_gathering_test.cc, what goes by the kernel in
// copy_engine_kernel_test.cc, what happens when calls fail in copy_engine_faults_test.cc.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

#include <array>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

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

using gpusm::copy_request;
using gpusm::copy_way;
using gpusm::status;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::handle_of;

class CopyEngine : public copy_engine_fixture {};

TEST_F(CopyEngine, ALoneCopyIsSubmittedAtOnceAndComesBackWhenItIsDone)
{
    copy_request *request = submit(0, 4096);
    ASSERT_EQ(fake().copies.size(), 1U);
    EXPECT_EQ(fake().copies[0].destination, request->destination);
    EXPECT_EQ(fake().copies[0].source, request->source);
    EXPECT_EQ(fake().copies[0].len_bytes, 4096U);
    EXPECT_EQ(fake().copies[0].stream, device(0).stream);
    EXPECT_EQ(fake().copies[0].context, device(0).context);
    EXPECT_EQ(fake().recorded.size(), 1U);
    EXPECT_FALSE(engine().idle());
    EXPECT_EQ(collect(), "");
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_TRUE(engine().idle());
    EXPECT_EQ(collect(), "");
}

TEST_F(CopyEngine, AnEmptyCopyComesBackLikeAnyOther)
{
    (void)submit(0, 0U);
    (void)submit_small(0, 0);
    EXPECT_EQ(collect_until_idle(), "0 1 ");
}

TEST_F(CopyEngine, ItsEventsAreMadeWithoutTiming)
{
    (void)submit(0, 1);
    ASSERT_EQ(fake().event_flags.size(), 1U);
    EXPECT_EQ(fake().event_flags.begin()->second, unsigned{CU_EVENT_DISABLE_TIMING});
}

TEST_F(CopyEngine, CollectAsksEachBusyDeviceOnceAboutItsOldestOnly)
{
    make_engine({.depth = 5, .batch_copies = 1, .kernel_blocks = 0});
    for (int i = 0; i < 4; ++i) {
        (void)submit(0, 1);
        (void)submit(1, 1);
    }
    ASSERT_EQ(fake().recorded.size(), 8U);
    fake().finish(7); // of device 1, but not its oldest
    const int before = fake().calls["event_query"];
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["event_query"], before + 2);
    fake().finish_all();
    EXPECT_EQ(collect(), "0 1 ");
    EXPECT_EQ(fake().calls["event_query"], before + 4);
}

TEST_F(CopyEngine, ABusyCallerAsksTheDriverInEveryEighthRoundOnly)
{
    (void)submit(0, 1);
    for (int round = 0; round < 40; ++round) {
        EXPECT_EQ(collect(true), "");
    }
    EXPECT_EQ(fake().calls["event_query"], 5);
    fake().finish_all();
    std::string back;
    int rounds = 0;
    for (; back.empty() && rounds < 100; ++rounds) {
        back = collect(true);
    }
    EXPECT_EQ(back, "0 ");
    EXPECT_EQ(rounds, 8);
}

TEST_F(CopyEngine, ACallerThatIsNotBusyAsksInEveryRoundAndTheCountStartsAnew)
{
    (void)submit(0, 1);
    for (int i = 0; i < 5; ++i) {
        for (int round = 0; round < 7; ++round) {
            EXPECT_EQ(collect(true), "");
        }
        EXPECT_EQ(fake().calls["event_query"], i);
        EXPECT_EQ(collect(), "");
    }
    EXPECT_EQ(fake().calls["event_query"], 5);
}

TEST_F(CopyEngine, WhatWasRefusedComesBackInTheNextRoundOfABusyCaller)
{
    const gpusm_test::log_capture log;
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE);
    (void)submit(0, 1);
    EXPECT_EQ(collect(true), "0! ");
}

TEST_F(CopyEngine, AnIdleEngineMakesNoDriverCall)
{
    (void)submit(0, 1);
    fake().finish_all();
    EXPECT_EQ(collect(), "0 ");
    const auto calls = fake().calls;
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls, calls);
}

TEST_F(CopyEngine, ACopyWaitsForThePeersEventFirst)
{
    const gpusm_test::log_capture log;
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE); // the wait comes before the copy
    (void)submit(0, {.len_bytes = 1, .wait_for = handle_of<CUevent>(0x77)});
    EXPECT_EQ(fake().waited, std::vector<CUevent>{handle_of<CUevent>(0x77)});
    fake().heal();
    (void)submit(0, 1);
    EXPECT_EQ(fake().waited.size(), 1U) << "only who has to";
}

TEST_F(CopyEngine, TheCallersContextAndCaptureModeAreBackAfterEveryCall)
{
    const auto mine = handle_of<CUcontext>(0xbeef);
    fake().stack = {mine};
    (void)submit(0, 1);
    EXPECT_EQ(fake().stack, std::vector<CUcontext>{mine});
    EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    fake().finish_all();
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().stack, std::vector<CUcontext>{mine});
    EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_F(CopyEngine, ItsEventsAreReusedAndDestroyedWithIt)
{
    make_engine({.batch_copies = 2, .kernel_blocks = 0});
    for (int round = 0; round < 20; ++round) {
        submit_many(static_cast<std::size_t>(round % 2), 17);
        (void)collect_until_idle();
    }
    EXPECT_LE(fake().events.size(), 8U) << "four per device";
    for (const auto &[event, context] : fake().events) {
        EXPECT_TRUE(context == device(0).context || context == device(1).context);
    }
    drop_engine();
    EXPECT_TRUE(fake().events.empty());
}

TEST_F(CopyEngine, CancelGivesBackEverythingOnceWithoutADriverCall)
{
    for (int i = 0; i < 9; ++i) {
        (void)(i % 2 == 0 ? submit(i % 3 == 0 ? 1 : 0, 1) : submit_small(i % 3 == 0 ? 1 : 0));
    }
    const auto calls = fake().calls;
    const std::vector<std::size_t> back = gpusm_test::numbers_of(requests_, engine().cancel_all());
    EXPECT_EQ(fake().calls, calls);
    EXPECT_EQ(std::set<std::size_t>(back.begin(), back.end()).size(), 9U);
    EXPECT_EQ(back.size(), 9U);
    for (const copy_request &each : requests_) {
        EXPECT_EQ(each.outcome, status::driver_failed);
    }
    EXPECT_TRUE(engine().idle());
    EXPECT_EQ(engine().cancel_all(), nullptr);
    // And it goes on working.
    (void)submit(0, 1);
    EXPECT_EQ(collect_until_idle(), "9 ");
}

// Events that are made without the fake's books, which allocate.
std::array<CUresult, 64> told{};
std::size_t made_events = 0;

void use_plain_events(gpusm::driver_api &api)
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
        requests_.clear();
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

} // namespace
