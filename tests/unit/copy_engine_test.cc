// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_test.cc: when copies are submitted, how they are gathered, and in which order they
// come back, on a scripted driver. What happens when calls fail is in copy_engine_faults_test.cc.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

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

using gpusm::copy_engine;
using gpusm::copy_limits;
using gpusm::copy_request;
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

TEST_F(CopyEngine, ItsEventsAreMadeWithoutTiming)
{
    (void)submit(0, 1);
    ASSERT_EQ(fake().event_flags.size(), 1U);
    EXPECT_EQ(fake().event_flags.begin()->second, unsigned{CU_EVENT_DISABLE_TIMING});
}

TEST_F(CopyEngine, UpToItsDepthEveryCopyGoesAtOnceAndFurtherOnesMakeNoDriverCall)
{
    for (int i = 0; i < 4; ++i) {
        (void)submit(0, 1);
        EXPECT_EQ(fake().recorded.size(), static_cast<std::size_t>(i + 1));
    }
    const auto calls = fake().calls;
    for (int i = 0; i < 10; ++i) {
        (void)submit(0, 1);
    }
    EXPECT_EQ(fake().calls, calls);
}

TEST_F(CopyEngine, GatheredCopiesGoOutTogetherWithOneEvent)
{
    for (int i = 0; i < 14; ++i) {
        (void)submit(0, 1);
    }
    ASSERT_EQ(fake().copies.size(), 4U);
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().copies.size(), 14U);
    EXPECT_EQ(fake().recorded.size(), 5U) << "one event for the ten";
    fake().finish_all();
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 6 7 8 9 10 11 12 13 ");
    for (std::size_t i = 0; i < fake().copies.size(); ++i) {
        EXPECT_EQ(fake().copies[i].source, request(i).source) << "in the order of submission";
    }
}

TEST_F(CopyEngine, ABatchStopsAtItsNumberOfCopies)
{
    make_engine({1, 3, 1U << 20});
    for (int i = 0; i < 9; ++i) {
        (void)submit(0, 1);
    }
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().copies.size(), 4U);
    fake().finish_all();
    EXPECT_EQ(collect(), "1 2 3 ");
    EXPECT_EQ(fake().copies.size(), 7U);
    fake().finish_all();
    EXPECT_EQ(collect(), "4 5 6 ");
    fake().finish_all();
    EXPECT_EQ(collect(), "7 8 ");
}

TEST_F(CopyEngine, ABatchStopsOnceItHasItsBytes)
{
    make_engine({1, 64, 1000});
    (void)submit(0, 1);
    for (const std::size_t bytes : {400U, 400U, 400U, 5000U, 1U, 999U, 1U}) {
        (void)submit(0, bytes);
    }
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().copies.size(), 4U) << "the third of 400 passes 1000 bytes";
    fake().finish_all();
    EXPECT_EQ(collect(), "1 2 3 ");
    EXPECT_EQ(fake().copies.size(), 5U) << "a large one goes alone";
    fake().finish_all();
    EXPECT_EQ(collect(), "4 ");
    EXPECT_EQ(fake().copies.size(), 7U);
    fake().finish_all();
    EXPECT_EQ(collect(), "5 6 ");
    fake().finish_all();
    EXPECT_EQ(collect_until_idle(), "7 ");
}

TEST_F(CopyEngine, CollectAsksEachBusyDeviceOnceAboutItsOldestOnly)
{
    for (int i = 0; i < 4; ++i) {
        (void)submit(0, 1);
        (void)submit(1, 1);
    }
    fake().finish(7); // of device 1, but not its oldest
    const int before = fake().calls["event_query"];
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["event_query"], before + 2);
    fake().finish_all();
    EXPECT_EQ(collect(), "0 1 ");
    EXPECT_EQ(fake().calls["event_query"], before + 4);
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

TEST_F(CopyEngine, DevicesDoNotWaitForEachOther)
{
    for (int i = 0; i < 6; ++i) {
        (void)submit(0, 1);
    }
    (void)submit(1, 1);
    ASSERT_EQ(fake().copies.size(), 5U) << "device 1 is not busy";
    EXPECT_EQ(fake().copies[4].context, device(1).context);
    EXPECT_EQ(fake().copies[4].stream, device(1).stream);
    fake().finish(4);
    EXPECT_EQ(collect(), "6 ");
    fake().finish_all();
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 5 ");
}

TEST_F(CopyEngine, ACopyWaitsForThePeersEventFirst)
{
    const gpusm_test::log_capture log;
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE); // the wait comes before the copy
    requests_.emplace_back();
    requests_.back().wait_for = handle_of<CUevent>(0x77);
    engine().submit(device(0), &requests_.back());
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
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 7; ++i) {
            (void)submit(round % 2, 1);
        }
        fake().finish_all();
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
        (void)submit(i % 3 == 0 ? 1 : 0, 1);
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
    fake().finish_all();
    EXPECT_EQ(collect(), "9 ");
}

TEST_F(CopyEngine, ItAllocatesNothingOnceADeviceHasReachedItsDepth)
{
    for (int i = 0; i < 4; ++i) {
        (void)submit(0, 1);
    }
    for (int i = 0; i < 40; ++i) {
        requests_.emplace_back();
    }
    fake().finish_all();
    fake().quiet = true;
    const std::size_t before = allocations;
    for (std::size_t i = 4; i < 44; ++i) {
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
    EXPECT_EQ(back, 44U);
    fake().quiet = false;
}

} // namespace
