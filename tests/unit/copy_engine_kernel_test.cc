// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_kernel_test.cc: which copies go by the gather kernel, how their end is seen, and what
// happens when it cannot be loaded, launched or finished; on a scripted driver.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::copy_request;
using gpusm::copy_way;
using gpusm::status;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::fake_launch;
using gpusm_test::handle_of;
using gpusm_test::log_capture;

// Looks at a flag after which the driver is asked.
constexpr int patience = 1024;

class CopyEngineKernel : public copy_engine_fixture {
  protected:
    CopyEngineKernel() { make_engine({}); }

    // One copy in flight by the driver, `more` gathered behind it, then the first one done: the
    // others are on their way. Returns how many launches there were.
    std::size_t gather(int more, std::size_t len_bytes = 64, std::size_t on = 0)
    {
        const std::size_t first = requests_.size();
        (void)submit_small(on, len_bytes);
        for (int i = 0; i < more; ++i) {
            (void)submit_small(on, len_bytes);
        }
        fake().finish(fake().recorded.size() - 1);
        EXPECT_EQ(collect(), std::to_string(first) + " ");
        return fake().launches.size();
    }
    // As many rounds as it takes until the driver is asked about a kernel that does not end.
    std::string wait_for_the_driver()
    {
        std::string back;
        for (int round = 0; round < patience; ++round) {
            back += collect();
        }
        return back;
    }
    int queries() { return fake().calls["stream_query"]; }
};

TEST_F(CopyEngineKernel, IsLoadedByPrepareInTheDevicesContextAndOnceForEach)
{
    fake().stack = {handle_of<CUcontext>(0xbeef)};
    engine().prepare(device(1));
    EXPECT_EQ(fake().modules.size(), 1U);
    EXPECT_EQ(fake().modules.begin()->second, device(1).context);
    EXPECT_EQ(fake().streams.size(), 2U);
    for (const auto &[stream, context] : fake().streams) {
        EXPECT_EQ(context, device(1).context);
    }
    EXPECT_EQ(fake().stack, std::vector<CUcontext>{handle_of<CUcontext>(0xbeef)});
    EXPECT_EQ(fake().capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    engine().prepare(device(1));
    (void)submit(1, 1);
    EXPECT_EQ(fake().calls["module_load_data"], 1);
    (void)submit(0, 1);
    EXPECT_EQ(fake().calls["module_load_data"], 2) << "submit prepares what nobody prepared";
    EXPECT_EQ(fake().streams.size(), 4U);
    fake().stack.clear();
}

TEST_F(CopyEngineKernel, WithoutBlocksNothingIsLoadedAndNothingLaunched)
{
    make_engine({.kernel_blocks = 0});
    engine().prepare(device(0));
    EXPECT_EQ(fake().calls["module_load_data"] + fake().calls["stream_create"], 0);
    EXPECT_EQ(gather(10), 0U);
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 6 7 8 9 10 ");
}

TEST_F(CopyEngineKernel, ALoneCopyGoesByTheDriverAtOnce)
{
    (void)submit_small(0);
    EXPECT_EQ(fake().copies.size(), 1U);
    EXPECT_TRUE(fake().launches.empty());
    EXPECT_EQ(collect_until_idle(), "0 ");
}

TEST_F(CopyEngineKernel, GatheredCopiesAreOneLaunch)
{
    ASSERT_EQ(gather(5, 1000), 1U);
    const fake_launch &made = fake().launches[0];
    EXPECT_EQ(made.context, device(0).context);
    EXPECT_NE(made.stream, device(0).stream);
    EXPECT_EQ(fake().streams[made.stream], device(0).context);
    EXPECT_STREQ(made.kernel, "gpusm_gather_few");
    ASSERT_EQ(made.arguments.copies, 5U);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(made.arguments.copy[i].destination, request(i + 1).destination);
        EXPECT_EQ(made.arguments.copy[i].source, request(i + 1).source);
        EXPECT_EQ(made.arguments.copy[i].len_bytes, 1000U);
    }
    EXPECT_EQ(fake().copies.size(), 1U) << "no driver copy besides the first";
    EXPECT_EQ(fake().recorded.size(), 1U) << "nor an event";
    fake().finish_launch(0);
    EXPECT_EQ(collect(), "1 2 3 4 5 ");
    EXPECT_TRUE(engine().idle());
}

TEST_F(CopyEngineKernel, ItsGridHasNoMoreThanTheBlocksAllowed)
{
    make_engine({.early_bytes = 64U << 20, .kernel_blocks = 3});
    ASSERT_EQ(gather(63, 100000), 1U);
    EXPECT_EQ(fake().launches[0].blocks, 3U);
}

TEST_F(CopyEngineKernel, ItsEndIsSeenWithoutADriverCallAndByABusyCallerToo)
{
    for (const bool busy : {false, true}) {
        const std::size_t launches = gather(3);
        const auto calls = fake().calls;
        EXPECT_EQ(collect(busy), "");
        fake().finish_launch(launches - 1);
        EXPECT_NE(collect(busy), "");
        EXPECT_EQ(fake().calls, calls);
        EXPECT_TRUE(engine().idle());
    }
}

TEST_F(CopyEngineKernel, LaunchesTakeTurnsOnItsTwoStreams)
{
    std::vector<CUstream> streams;
    for (int i = 0; i < 4; ++i) {
        const std::size_t launches = gather(2);
        streams.push_back(fake().launches[launches - 1].stream);
        (void)collect_until_idle();
    }
    EXPECT_NE(streams[0], streams[1]);
    EXPECT_EQ(streams[0], streams[2]);
    EXPECT_EQ(streams[1], streams[3]);
}

TEST_F(CopyEngineKernel, FullLaunchesFollowEachOtherUpToTheDepthInSlotsOfTheirOwn)
{
    make_engine({.depth = 3, .batch_copies = 4});
    for (int i = 0; i < 30; ++i) {
        (void)submit_small(0);
    }
    ASSERT_EQ(fake().launches.size(), 2U) << "and one copy by the driver";
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    ASSERT_EQ(fake().launches.size(), 3U);
    std::set<std::uint32_t> slots;
    for (const fake_launch &each : fake().launches) {
        EXPECT_EQ(each.arguments.copies, 4U);
        slots.insert(each.arguments.slot);
    }
    EXPECT_EQ(slots.size(), 3U);
    // The one in the middle is done first: its slot is free again, and no other.
    fake().finish_launch(1);
    EXPECT_EQ(collect(), "5 6 7 8 ");
    ASSERT_EQ(fake().launches.size(), 4U);
    EXPECT_EQ(fake().launches[3].arguments.slot, fake().launches[1].arguments.slot);
    EXPECT_EQ(fake().launches[3].arguments.done_value, fake().launches[1].arguments.done_value + 1);
    EXPECT_EQ(fake().launches[3].arguments.copy[0].source, request(13).source) << "in order";
}

TEST_F(CopyEngineKernel, AllSixtyFourSlotsCanBeInUse)
{
    make_engine({.depth = gpusm::gather_slots, .batch_copies = 2});
    (void)submit_small(0);
    for (unsigned i = 0; i < 2 * (gpusm::gather_slots - 1); ++i) {
        (void)submit_small(0);
    }
    ASSERT_EQ(fake().launches.size(), gpusm::gather_slots - 1U);
    fake().finish_all();
    std::size_t back = 0;
    for (const copy_request *each = engine().collect(); each != nullptr; each = each->next) {
        ++back;
    }
    EXPECT_EQ(back, requests_.size());
}

struct not_for_the_kernel {
    const char *name;
    copy_request request;
};
void PrintTo(const not_for_the_kernel &about, std::ostream *out)
{
    *out << about.name;
}

class NotForTheKernel : public CopyEngineKernel,
                        public testing::WithParamInterface<not_for_the_kernel> {};

INSTANTIATE_TEST_SUITE_P(
    Requests, NotForTheKernel,
    testing::Values(not_for_the_kernel{"HostMemory", {.len_bytes = 64, .for_kernel = false}},
                    not_for_the_kernel{"Empty", {.len_bytes = 0, .for_kernel = true}},
                    not_for_the_kernel{"TooLong", {.len_bytes = 1001, .for_kernel = true}},
                    not_for_the_kernel{"Waiting",
                                       {.len_bytes = 64,
                                        .wait_for = handle_of<CUevent>(0x77),
                                        .for_kernel = true}}),
    [](const auto &about) { return about.param.name; });

TEST_P(NotForTheKernel, GoesByTheDriverAmongOthersThatDoNot)
{
    make_engine({.kernel_bytes = 1000});
    for (int i = 0; i < 10; ++i) {
        (void)submit_small(0, 1000);
        (void)submit(0, GetParam().request);
    }
    std::string back = collect_until_idle();
    EXPECT_EQ(std::count(back.begin(), back.end(), ' '), 20);
    EXPECT_EQ(back.find('!'), std::string::npos);
    std::size_t by_kernel = 0;
    for (const fake_launch &each : fake().launches) {
        for (std::uint32_t i = 0; i < each.arguments.copies; ++i) {
            EXPECT_EQ(each.arguments.copy[i].len_bytes, 1000U);
            ++by_kernel;
        }
    }
    EXPECT_EQ(by_kernel, 9U) << "all but the first of those that it may do";
    EXPECT_EQ(fake().copies.size(), 11U);
}

TEST_F(CopyEngineKernel, SubmissionsAreCountedByTheWayTheyWent)
{
    (void)gather(5);
    (void)collect_until_idle();
    EXPECT_EQ(submissions(copy_way::single), 1U);
    EXPECT_EQ(submissions(copy_way::batch), 0U);
    EXPECT_EQ(submissions(copy_way::kernel), 1U);
}

TEST_F(CopyEngineKernel, TheDriverIsAskedNowAndThenAboutALaunchThatLasts)
{
    (void)gather(2);
    for (int round = 1; round < patience; ++round) {
        EXPECT_EQ(collect(round % 2 == 0), "");
    }
    EXPECT_EQ(queries(), 0);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(queries(), 1);
    EXPECT_EQ(wait_for_the_driver(), "") << "it runs on";
    EXPECT_EQ(queries(), 2);
    fake().finish_launch(0);
    EXPECT_EQ(collect(), "1 2 ");
}

TEST_F(CopyEngineKernel, ALaunchThatWentWrongFailsItsCopies)
{
    const log_capture log;
    (void)gather(2);
    fake().finish_launch(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(wait_for_the_driver(), "1! 2! ");
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_TRUE(engine().idle());
}

TEST_F(CopyEngineKernel, ALaunchThatEndedWithoutItsFlagFailsItsCopies)
{
    const log_capture log;
    (void)gather(2);
    fake().stream_answer[fake().launches[0].stream] = CUDA_SUCCESS;
    EXPECT_EQ(wait_for_the_driver(), "1! 2! ");
    EXPECT_EQ(log.count(), 1U) << log.text();
}

TEST_F(CopyEngineKernel, AFlagThatIsWrittenWhileTheDriverIsAskedCounts)
{
    (void)gather(2);
    api_.stream_query = [](CUstream) {
        fake().finish_launch(0);
        return CUDA_SUCCESS;
    };
    EXPECT_EQ(wait_for_the_driver(), "1 2 ");
}

TEST_F(CopyEngineKernel, ALaunchWhoseContextIsGoneFailsItsCopies)
{
    const log_capture log;
    (void)gather(2);
    fake().fail("ctx_push_current", 0, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(wait_for_the_driver(), "1! 2! ");
    fake().heal();
}

TEST_F(CopyEngineKernel, CopiesOfARefusedLaunchGoByTheDriver)
{
    const log_capture log;
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    EXPECT_EQ(gather(3), 0U);
    EXPECT_EQ(log.count(), 1U) << log.text();
    ASSERT_EQ(fake().copies.size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(fake().copies[i].destination, request(i).destination);
        EXPECT_EQ(fake().copies[i].stream, device(0).stream);
    }
    EXPECT_EQ(collect_until_idle(), "1 2 3 ");
    EXPECT_EQ(submissions(copy_way::kernel), 0U);
    EXPECT_EQ(submissions(copy_way::single), 2U);
    EXPECT_EQ(gather(3), 1U) << "the next ones go by the kernel again";
    EXPECT_EQ(collect_until_idle(), "5 6 7 ");
}

TEST_F(CopyEngineKernel, IsNotTriedAgainAfterEightRefusalsInARowAndTheLogStaysShort)
{
    const log_capture log;
    fake().fail("launch_kernel", 0, CUDA_ERROR_INVALID_IMAGE);
    for (int round = 0; round < 30; ++round) {
        EXPECT_EQ(gather(3), 0U);
        EXPECT_EQ(collect_until_idle().find('!'), std::string::npos);
    }
    EXPECT_EQ(fake().calls["launch_kernel"], 8);
    EXPECT_LE(log.count(), 9U) << log.text();
    EXPECT_NE(log.text().find("no further copies by kernel on device 0"), std::string::npos)
        << log.text();
    fake().heal();
    EXPECT_EQ(gather(3), 0U) << "for good";
    EXPECT_EQ(collect_until_idle().find('!'), std::string::npos);
    (void)submit(0, 4U << 20);
    (void)submit_small(0);
    EXPECT_TRUE(fake().launches.empty()) << "nor for a lone one behind a large one";
    EXPECT_EQ(gather(3, 64, 1), 1U) << "the other device has it";
}

TEST_F(CopyEngineKernel, ALaunchThatIsTakenForgivesTheRefusalsBeforeIt)
{
    const log_capture log;
    for (std::size_t good = 1; good <= 4; ++good) {
        for (int nth = 1; nth <= 7; ++nth) {
            fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
            EXPECT_EQ(gather(3), good - 1);
            (void)collect_until_idle();
        }
        EXPECT_EQ(gather(3), good);
        EXPECT_EQ(collect_until_idle().find('!'), std::string::npos);
    }
    EXPECT_EQ(log.text().find("no further"), std::string::npos) << log.text();
}

struct load_fault {
    const char *name;
    const char *function;
    int nth;
};
void PrintTo(const load_fault &about, std::ostream *out)
{
    *out << about.name;
}

class KernelLoadFault : public CopyEngineKernel, public testing::WithParamInterface<load_fault> {};

INSTANTIATE_TEST_SUITE_P(Functions, KernelLoadFault,
                         testing::Values(load_fault{"Context", "ctx_push_current", 1},
                                         load_fault{"DevicePointer", "mem_host_get_device_pointer",
                                                    1},
                                         load_fault{"Module", "module_load_data", 1},
                                         load_fault{"FirstFunction", "module_get_function", 1},
                                         load_fault{"SecondFunction", "module_get_function", 2},
                                         load_fault{"FirstStream", "stream_create", 1},
                                         load_fault{"SecondStream", "stream_create", 2}),
                         [](const auto &about) { return about.param.name; });

TEST_P(KernelLoadFault, LeavesNothingBehindAndEverythingWorksWithoutTheKernel)
{
    const log_capture log;
    fake().fail(GetParam().function, GetParam().nth, CUDA_ERROR_NOT_SUPPORTED);
    engine().prepare(device(0));
    fake().heal();
    EXPECT_TRUE(fake().registered.empty());
    EXPECT_TRUE(fake().modules.empty());
    EXPECT_TRUE(fake().streams.empty());
    EXPECT_TRUE(fake().stack.empty());
    EXPECT_EQ(gather(5), 0U);
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 ");
    EXPECT_EQ(gather(5, 64, 1), 1U) << "the other device has it";
    drop_engine();
    EXPECT_TRUE(fake().streams.empty());
    EXPECT_TRUE(fake().events.empty());
}

TEST_F(CopyEngineKernel, CancelGivesBackItsCopiesOnceWithoutADriverCall)
{
    (void)gather(5);
    for (int i = 0; i < 7; ++i) {
        (void)submit_small(0);
    }
    const auto calls = fake().calls;
    const auto back = gpusm_test::numbers_of(requests_, engine().cancel_all());
    EXPECT_EQ(fake().calls, calls);
    EXPECT_EQ(back.size(), 12U);
    EXPECT_EQ(std::set<std::size_t>(back.begin(), back.end()).size(), 12U);
    EXPECT_TRUE(engine().idle());
}

TEST_F(CopyEngineKernel, EverythingIsGivenBackAtTheEndAndNotBeforeItsStreamsAreIdle)
{
    (void)gather(5, 64, 0);
    (void)gather(5, 64, 1);
    (void)engine().cancel_all();
    static int unloaded_after; // stream_synchronize calls
    unloaded_after = 0;
    static gpusm::driver_api usual;
    usual = api_;
    api_.module_unload = [](CUmodule module) {
        unloaded_after = fake().calls["stream_synchronize"];
        return usual.module_unload(module);
    };
    engine_.reset();
    EXPECT_EQ(unloaded_after, 4) << "both streams of both devices";
    EXPECT_TRUE(fake().streams.empty());
    EXPECT_TRUE(fake().modules.empty());
    EXPECT_TRUE(fake().registered.empty());
    EXPECT_TRUE(fake().events.empty());
    EXPECT_TRUE(fake().stack.empty());
}

TEST_F(CopyEngineKernel, EndlessWorkForOneDeviceDoesNotKeepAnotherWaiting)
{
    for (std::size_t round = 0; round < 100; ++round) {
        for (int i = 0; i < 200; ++i) {
            (void)submit_small(0);
        }
        const std::size_t other = requests_.size();
        (void)submit_small(1);
        fake().finish_all();
        const std::string back = " " + collect();
        EXPECT_NE(back.find(" " + std::to_string(other) + " "), std::string::npos) << back;
    }
}

} // namespace
