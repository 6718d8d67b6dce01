// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_kernel_test.cc: which copies go by the gather kernel, how their end is seen, and
// small and large copies beside each other, of which neither kind waits for the other for ever; on
// a scripted driver.
#include "tests/unit/copy_engine_support.h"

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::size_t large_bytes = 4U << 20;

class CopyEngineKernel : public copy_engine_fixture {
  protected:
    CopyEngineKernel() { make_engine({.kernel_blocks = 32}); }
    static std::size_t launches() { return fake().launches.size(); }
};

TEST_F(CopyEngineKernel, IsLoadedByPrepareInTheDevicesContextAndOnceForEach)
{
    engine().prepare(device(1));
    EXPECT_EQ(fake().modules.size(), 1U);
    EXPECT_EQ(fake().modules.begin()->second, device(1).context);
    EXPECT_EQ(fake().streams.size(), 2U);
    for (const auto &[stream, context] : fake().streams) {
        EXPECT_EQ(context, device(1).context);
    }
    engine().prepare(device(1));
    large(1, 1, 1);
    EXPECT_EQ(fake().calls["module_load_data"], 1);
    large(1);
    EXPECT_EQ(fake().calls["module_load_data"], 1) << "nothing for the kernel yet";
    gather(3);
    EXPECT_EQ(fake().calls["module_load_data"], 2) << "what nobody prepared is loaded when needed";
    EXPECT_EQ(fake().streams.size(), 4U);
}

// The driver would wait for that kernel, and so would the message that it may be waiting for.
TEST_F(CopyEngineKernel, IsNotLoadedWhileAKernelOfTheProgramRuns)
{
    fake().stream_answer[CU_STREAM_LEGACY] = CUDA_ERROR_NOT_READY;
    gather(3);
    EXPECT_EQ(started(), "single 0; single 1-3");
    EXPECT_EQ(collect_until_idle(), "1-3");
    EXPECT_EQ(fake().calls["module_load_data"] + fake().calls["mem_host_register"], 0);
    fake().stream_answer.clear();
    gather(3);
    EXPECT_EQ(started(), "single 4; kernel 5-7");
}

TEST_F(CopyEngineKernel, WithoutBlocksNothingIsLoadedAndNothingLaunched)
{
    make_engine({.kernel_blocks = 0});
    engine().prepare(device(0));
    EXPECT_EQ(fake().calls["module_load_data"] + fake().calls["stream_create"], 0);
    gather(10);
    EXPECT_EQ(started(), "single 0; single 1-10");
    EXPECT_EQ(collect_until_idle(), "1-10");
    large(1, large_bytes);
    small(1);
    EXPECT_EQ(started(), "single 11; single 12") << "a lone one behind a large one";
    EXPECT_EQ(collect_until_idle(), "11 12");
}

TEST_F(CopyEngineKernel, GatheredCopiesAreOneLaunchWithoutAnEvent)
{
    make_engine({.kernel_blocks = 2});
    gather(5, 100000);
    EXPECT_EQ(started(), "single 0; kernel 1-5") << "a lone one goes by the driver at once";
    const fake_launch &made = fake().launches[0];
    EXPECT_EQ(made.context, device(0).context);
    EXPECT_NE(made.stream, device(0).stream);
    EXPECT_EQ(fake().streams[made.stream], device(0).context);
    EXPECT_EQ(made.blocks, 2U) << "no more than are allowed";
    EXPECT_EQ(fake().calls["event_record"], 1);
    fake().finish_launch(0);
    EXPECT_EQ(collect(), "1-5");
    EXPECT_TRUE(engine().idle());
    EXPECT_EQ(submissions(copy_way::single), 1U);
    EXPECT_EQ(submissions(copy_way::batch), 0U);
    EXPECT_EQ(submissions(copy_way::kernel), 1U);
}

TEST_F(CopyEngineKernel, ItsEndIsSeenWithoutADriverCallAndByABusyCallerToo)
{
    for (const bool busy : {false, true}) {
        gather(3);
        const auto calls = fake().calls;
        EXPECT_EQ(collect(busy), "");
        fake().finish_launch(launches() - 1);
        EXPECT_NE(collect(busy), "");
        EXPECT_EQ(fake().calls, calls);
        EXPECT_TRUE(engine().idle());
    }
}

TEST_F(CopyEngineKernel, FullLaunchesTakeTurnsOnTwoStreamsUpToTheDepthInSlotsOfTheirOwn)
{
    make_engine({.depth = 3, .batch_copies = 4, .kernel_blocks = 32});
    small(30);
    EXPECT_EQ(started(), "single 0; kernel 1-4; kernel 5-8");
    finish(0);
    EXPECT_EQ(collect(), "0");
    EXPECT_EQ(started(), "kernel 9-12");
    std::set<std::uint32_t> slots;
    for (const fake_launch &each : fake().launches) {
        slots.insert(each.arguments.slot);
    }
    EXPECT_EQ(slots.size(), 3U);
    EXPECT_NE(fake().launches[0].stream, fake().launches[1].stream);
    EXPECT_EQ(fake().launches[0].stream, fake().launches[2].stream);
    // The one in the middle is done first: its slot is free again, and no other.
    fake().finish_launch(1);
    EXPECT_EQ(collect(), "5-8");
    EXPECT_EQ(started(), "kernel 13-16");
    EXPECT_EQ(fake().launches[3].arguments.slot, fake().launches[1].arguments.slot);
    EXPECT_EQ(fake().launches[3].arguments.done_value, fake().launches[1].arguments.done_value + 1);
}

TEST_F(CopyEngineKernel, AllSixtyFourSlotsCanBeInUse)
{
    make_engine({.depth = gather_slots, .batch_copies = 2, .kernel_blocks = 32});
    small(1 + 2 * (gather_slots - 1));
    ASSERT_EQ(launches(), gather_slots - 1U);
    fake().finish_all();
    EXPECT_EQ(collect(), "0-126");
}

TEST_F(CopyEngineKernel, WhatIsNotForTheKernelGoesByTheDriverAmongOthersAndBehindALargeOne)
{
    for (const copy_request &other :
         {copy_request{.len_bytes = 64, .kernel_reaches = false},
          copy_request{.len_bytes = 0, .kernel_reaches = true},
          copy_request{.len_bytes = 1001, .kernel_reaches = true},
          copy_request{
              .len_bytes = 64, .wait_for = handle_of<CUevent>(0x77), .kernel_reaches = true}}) {
        make_engine({.kernel_bytes = 1000, .kernel_blocks = 32});
        for (int i = 0; i < 10; ++i) {
            small(1, 1000);
            submit(other);
        }
        const std::string back = collect_until_idle();
        EXPECT_EQ(back_.size(), 20U) << back;
        EXPECT_EQ(back.find('!'), std::string::npos) << back;
        std::size_t by_kernel = 0;
        for (const auto &each : fake().units) {
            by_kernel += each.by_kernel() ? each.copies.size() : 0;
            for (const auto &copy : each.copies) {
                EXPECT_TRUE(!each.by_kernel() || 0 == number_of(copy.destination) % 2);
            }
        }
        EXPECT_EQ(by_kernel, 9U) << "all but the first of those that it may do";
        back_.clear();
        const std::size_t launched = launches();
        large(1, large_bytes);
        submit(other);
        EXPECT_EQ(collect_until_idle(), "20 21");
        EXPECT_EQ(launches(), launched);
        back_.clear();
    }
}

using CopyEngineMixed = CopyEngineKernel;

TEST_F(CopyEngineMixed, SmallCopiesOneByOneDoNotWaitForALargeOneInFlight)
{
    large(1, large_bytes);
    for (std::size_t i = 1; i <= 20; ++i) {
        small(1);
        ASSERT_EQ(launches(), i) << "at once, and not behind the large one in its stream";
        EXPECT_NE(unit(i).stream, device(0).stream);
        EXPECT_EQ(collect(), "");
        finish(i);
        EXPECT_EQ(collect(0 == i % 2), std::to_string(i)) << "also when the caller is busy";
    }
    finish(0);
    while (!engine().idle()) {
        (void)collect();
    }
    (void)started();
    small(1);
    EXPECT_EQ(started(), "single 21") << "by the driver again";
}

TEST_F(CopyEngineMixed, ALargeOneOfAnotherDeviceDoesNotMatter)
{
    large(1, large_bytes);
    small(1, 64, 1);
    EXPECT_EQ(started(), "single 0; single@1 1");
}

// What comes of one kind keeps every place taken, and submissions end one at a time: a place that
// becomes free must not go to the same kind for ever.
TEST_F(CopyEngineMixed, NeitherKindKeepsTheOtherWaitingForEver)
{
    for (int choice = 0; choice < 12; ++choice) {
        const bool small_waits = 0 == choice % 2;
        const std::uint32_t depth = 1U << choice / 2 % 3;
        const std::uint32_t blocks = choice < 6 ? 0 : 32;
        make_engine({.depth = depth, .batch_copies = 4, .kernel_blocks = blocks});
        const auto submit_one = [&](bool is_small) { is_small ? small(1) : large(1, large_bytes); };
        for (int i = 0; i < 16; ++i) {
            submit_one(!small_waits);
        }
        const std::size_t wanted = requests_.size();
        submit_one(small_waits);
        std::set<std::size_t> begun;
        for (int round = 0; round < 40 && !begun.contains(wanted); ++round) {
            for (int i = 0; i < 8; ++i) {
                submit_one(!small_waits);
            }
            // The oldest launch, or else the oldest of the driver's.
            auto &units = fake().units;
            auto oldest = units.end();
            for (auto each = units.begin(); each != units.end(); ++each) {
                if (!each->ended &&
                    (oldest == units.end() || (each->by_kernel() && !oldest->by_kernel()))) {
                    oldest = each;
                }
            }
            finish(static_cast<std::size_t>(oldest - units.begin()));
            (void)collect();
            for (const auto &each : units) {
                for (const auto &copy : each.copies) {
                    begun.insert(number_of(copy.destination));
                }
            }
        }
        EXPECT_TRUE(begun.contains(wanted)) << (small_waits ? "a small one" : "a large one")
                                            << ", depth " << depth << ", " << blocks << " blocks";
    }
}

class CopyEngineOverBus : public CopyEngineKernel {
  protected:
    void over_bus(int count, bool for_kernel = false)
    {
        for (int i = 0; i < count; ++i) {
            submit({.len_bytes = 64, .kernel_reaches = for_kernel, .processor_waits = true});
        }
    }
};

TEST_F(CopyEngineOverBus, TwoSubmissionsAreInFlightBeforeFurtherCopiesGather)
{
    for (const bool for_kernel : {false, true}) {
        make_engine({.kernel_blocks = 32});
        over_bus(5, for_kernel);
        EXPECT_EQ(started(), "single 0; single 1");
        finish(0);
        EXPECT_EQ(collect(), "0");
        EXPECT_EQ(started(), for_kernel ? "kernel 2-4" : "single 2-4");
        EXPECT_EQ(collect_until_idle(), for_kernel ? "1-4" : "1 2-4") << "one look at each stream";
    }
}

TEST_F(CopyEngineOverBus, LargeCopiesGatherAsLongAsTheyAreToldToOrUntilTheyAreMany)
{
    engine().processor_has_work(true);
    over_bus(3);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(started(), "") << "though the device is idle";
    over_bus(1, true);
    EXPECT_EQ(started(), "single 3") << "a small one does not";
    engine().processor_has_work(false);
    (void)collect();
    EXPECT_EQ(started(), "single 0-2");
    EXPECT_EQ(collect_until_idle(), "3 0-2");
    engine().processor_has_work(true);
    over_bus(unawaited_copies - 1);
    EXPECT_EQ(started(), "");
    over_bus(1);
    EXPECT_EQ(started(), "single 4-19");
    EXPECT_EQ(collect_until_idle(), "4-19");
}

TEST_F(CopyEngineOverBus, NoOtherCopyWaitsForThoseThatGather)
{
    engine().processor_has_work(true);
    over_bus(1);
    EXPECT_EQ(started(), "");
    large(1, 64); // between devices
    EXPECT_EQ(started(), "single 0-1") << "they go out together";
    EXPECT_EQ(collect_until_idle(), "0-1");
    over_bus(1);
    EXPECT_EQ(started(), "") << "and then those gather again";
    (void)engine().cancel_all();
    large(1, 64);
    EXPECT_EQ(started(), "single 3") << "nothing is left of what was cancelled";
    EXPECT_EQ(collect_until_idle(), "3");
}

} // namespace
