// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_strided_test.cc: copies of memory with gaps: when they go out, how they fail, and
// those that are waited for; on a scripted driver.
#include "tests/unit/copy_engine_support.h"

#include <deque>

namespace {

using namespace gpusm;
using namespace gpusm_test;

class CopyEngineStrided : public copy_engine_fixture {
  protected:
    CopyEngineStrided() { make_engine({.kernel_blocks = 2}); }

    // Contiguous memory on both sides, or what cannot be copied.
    strided_copy &make_copy(std::size_t len_bytes = 64)
    {
        const std::uint64_t next = requests_.size() + 1;
        return copies_.emplace_back(strided_copy{strided_contiguous(0x50000000U + next, len_bytes),
                                                 strided_contiguous(0xd0000000U + next, len_bytes),
                                                 len_bytes, 1, 0});
    }
    void gaps(int count, std::size_t len_bytes = 64, CUevent wait_for = nullptr)
    {
        for (int i = 0; i < count; ++i) {
            submit(
                {.len_bytes = len_bytes, .wait_for = wait_for, .strided = &make_copy(len_bytes)});
        }
    }
    void bad(int count)
    {
        for (int i = 0; i < count; ++i) {
            strided_copy &copy = make_copy();
            copy.word_bytes = 3;
            submit({.len_bytes = 64, .strided = &copy});
        }
    }
    static std::size_t launches() { return fake().launches.size(); }

    std::deque<strided_copy> copies_;
};

TEST_F(CopyEngineStrided, GoOutAtOnceAndThenGatherUntilTheDeviceIsDoneOrALaunchIsFull)
{
    gaps(6);
    EXPECT_EQ(started(), "strided 0");
    EXPECT_EQ(collect(), "");
    finish(0);
    EXPECT_EQ(collect(), "0");
    EXPECT_EQ(started(), "strided 1-5");
    gaps(strided_most_copies + 1);
    EXPECT_EQ(started(), "strided 6-19") << "as many as a launch takes";
    EXPECT_EQ(collect_until_idle(), "1-19 20");
    EXPECT_EQ(submissions(copy_way::strided), 4U);
    EXPECT_EQ(submissions(copy_way::single) + submissions(copy_way::kernel), 0U);
}

TEST_F(CopyEngineStrided, GatherWhileMoreAreExpectedAndGoOutWithTheNextLook)
{
    engine().expect_more(true);
    gaps(3);
    EXPECT_EQ(started(), "");
    engine().expect_more(false);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(started(), "strided 0-2");
    gaps(1, 3U << 20);
    EXPECT_EQ(started(), "strided 3") << "not beyond a number of bytes";
    EXPECT_EQ(collect_until_idle(), "0-3");
}

TEST_F(CopyEngineStrided, TakeTheirLaunchesInTurnsOnTwoStreamsAndNoEvent)
{
    gaps(1 + 2 * strided_most_copies);
    ASSERT_EQ(launches(), 3U);
    std::set<std::uint32_t> slots;
    for (const fake_launch &each : fake().launches) {
        EXPECT_EQ(each.context, device(0).context);
        EXPECT_EQ(fake().streams.count(each.stream), 1U);
        slots.insert(each.arguments.slot);
    }
    EXPECT_EQ(slots.size(), 3U);
    EXPECT_NE(fake().launches[0].stream, fake().launches[1].stream);
    EXPECT_EQ(fake().launches[0].stream, fake().launches[2].stream);
    EXPECT_EQ(fake().calls["event_record"], 0);
    const auto calls = fake().calls;
    fake().finish_all();
    EXPECT_EQ(collect(true), "0-28");
    EXPECT_EQ(fake().calls, calls) << "their end is seen without the driver";
}

TEST_F(CopyEngineStrided, HaveUpToFourTimesTheBlocksOfTheGatherKernel)
{
    gaps(1, strided_threads);
    gaps(strided_most_copies, 20000);
    ASSERT_EQ(launches(), 2U);
    EXPECT_EQ(fake().launches[0].blocks, 1U);
    EXPECT_EQ(fake().launches[1].blocks, 8U);
}

TEST_F(CopyEngineStrided, DoNotWaitForOthersNorOthersForThem)
{
    large(1, 4U << 20);
    gaps(1);
    small(1);
    EXPECT_EQ(started(), "single 0; strided 1; kernel 2");
    gaps(2);
    small(2);
    large(2);
    EXPECT_EQ(started(), "");
    finish(1);
    EXPECT_EQ(collect(), "1");
    EXPECT_EQ(started(), "strided 3-4");
    EXPECT_EQ(collect_until_idle(), "0 2-4 7-8 5-6");
}

// Each kind keeps every place taken: a place that becomes free must not go to the same ones for
// ever.
TEST_F(CopyEngineStrided, NoKindKeepsAnotherWaitingForEver)
{
    for (const std::uint32_t depth : {1U, 2U, 4U}) {
        make_engine({.depth = depth, .batch_copies = 4, .kernel_blocks = 32});
        std::map<std::string, int> seen;
        const auto feed = [&] {
            gaps(8);
            small(8);
            large(8, 4U << 20);
        };
        feed();
        for (int round = 0; round < 40; ++round) {
            feed();
            auto &units = fake().units;
            std::size_t oldest = 0;
            while (units[oldest].ended) {
                ++oldest;
            }
            const std::size_t from = units.size();
            finish(oldest);
            (void)collect();
            for (std::size_t i = from; i < units.size(); ++i) {
                const std::size_t number = number_of(units[i].copies[0].destination);
                const copy_request &first = request(number);
                ++seen[first.strided != nullptr ? "gaps"
                       : first.kernel_reaches   ? "small"
                                                : "large"];
            }
        }
        EXPECT_GT(seen["gaps"], 5) << depth;
        EXPECT_GT(seen["small"], 5) << depth;
        EXPECT_GT(seen["large"], 5) << depth;
    }
}

TEST_F(CopyEngineStrided, WaitForTheirEventsInTheStreamOfTheirLaunch)
{
    static CUstream waiting;
    static std::size_t before;
    api_.stream_wait_event = [](CUstream stream, CUevent event, unsigned) {
        waiting = stream;
        before = fake().launches.size();
        fake().waited.push_back(event);
        return CUDA_SUCCESS;
    };
    gaps(1, 64, handle_of<CUevent>(0x77));
    EXPECT_EQ(fake().waited, std::vector{handle_of<CUevent>(0x77)});
    ASSERT_EQ(launches(), 1U);
    EXPECT_EQ(before, 0U);
    EXPECT_EQ(waiting, fake().launches[0].stream);
    gaps(1);
    gaps(1, 64, handle_of<CUevent>(0x78));
    gaps(1, 64, handle_of<CUevent>(0x79));
    EXPECT_EQ(collect_until_idle(), "0 1-3");
    EXPECT_EQ(fake().waited, (std::vector{handle_of<CUevent>(0x77), handle_of<CUevent>(0x78),
                                          handle_of<CUevent>(0x79)}));
    EXPECT_EQ(before, 1U);
    EXPECT_EQ(waiting, fake().launches[1].stream);
}

TEST_F(CopyEngineStrided, ThatCannotBeMadeFailAloneAndOthersArrive)
{
    const log_capture log;
    gaps(2);
    bad(1);
    gaps(1, 64, handle_of<CUevent>(0x77));
    gaps(1);
    fake().fail("stream_wait_event", 1, CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(collect_until_idle(), "0 2-3! 1 4");
    EXPECT_EQ(log.count(), 1U) << log.text();
    bad(1);
    EXPECT_EQ(collect(), "5!");
    EXPECT_TRUE(engine().idle());
}

TEST_F(CopyEngineStrided, AreMadeByNobodyElseWhenALaunchIsRefusedOrThereIsNoKernel)
{
    const log_capture log;
    gaps(1);
    EXPECT_EQ(collect_until_idle(), "0");
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    gaps(1);
    EXPECT_EQ(collect(), "1!");
    gaps(1);
    EXPECT_EQ(collect_until_idle(), "2") << "one refused launch is not the end";
    make_engine({.kernel_blocks = 0});
    EXPECT_FALSE(engine().prepare_strided(device(0)));
    gaps(2);
    EXPECT_EQ(collect(), "0-1!");
    make_engine({.kernel_blocks = 2});
    fake().fail("module_get_function", 0, CUDA_ERROR_NOT_FOUND);
    EXPECT_FALSE(engine().prepare_strided(device(0)));
    gaps(2);
    EXPECT_EQ(collect(), "0-1!");
    make_engine({.kernel_blocks = 2});
    fake().heal();
    fake().stream_answer[CU_STREAM_LEGACY] = CUDA_ERROR_NOT_READY;
    EXPECT_FALSE(engine().prepare_strided(device(0))) << "while a kernel of the program runs";
    gaps(1);
    EXPECT_EQ(collect(), "0!");
    fake().stream_answer.clear();
    EXPECT_TRUE(engine().prepare_strided(device(0)));
    gaps(1);
    EXPECT_EQ(collect_until_idle(), "1");
    EXPECT_EQ(submissions(copy_way::single), 0U);
}

TEST_F(CopyEngineStrided, ThatGoWrongOnTheDeviceFailAsTheDriverSays)
{
    const log_capture log;
    gaps(3);
    finish(0);
    EXPECT_EQ(collect(), "0");
    finish(1, CUDA_ERROR_ILLEGAL_ADDRESS);
    std::string back;
    for (int i = 0; i < 2000 && back.empty(); ++i) {
        back = collect();
    }
    EXPECT_EQ(back, "1-2!");
    EXPECT_EQ(fake().calls["stream_query"], 2) << "now and then, and about the legacy stream once";
    EXPECT_GT(fake().calls["stream_synchronize"], 0) << "nothing runs when it is handed back";
}

TEST_F(CopyEngineStrided, PrepareLoadsTheKernelOnceAndWithItStreamsAndAllIsGivenBack)
{
    EXPECT_TRUE(engine().prepare_strided(device(1)));
    EXPECT_TRUE(engine().prepare_strided(device(1)));
    EXPECT_EQ(fake().calls["module_load_data"], 1);
    ASSERT_EQ(fake().modules.size(), 1U);
    EXPECT_EQ(fake().modules.begin()->second, device(1).context);
    EXPECT_EQ(fake().streams.size(), kernel_streams + 1U);
    engine().prepare(device(1));
    EXPECT_EQ(fake().modules.size(), 2U) << "the gather kernel is another one";
    gaps(20);
    drop_engine();
    expect_nothing_left_in_the_driver();
}

TEST_F(CopyEngineStrided, ACancelledOneComesBackAsFailed)
{
    gaps(3);
    EXPECT_EQ(text_of(engine().cancel_all()), "1-2! 0!");
    EXPECT_TRUE(engine().idle());
}

// --- copies that are waited for

class CopyNow : public CopyEngineStrided {
  protected:
    // Makes one while the driver does what a test says as soon as the launch is there.
    status copy_now(void (*meanwhile)())
    {
        static void (*then)();
        static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, unsigned, CUstream, void **, void **);
        then = meanwhile;
        launch = plain_launch_;
        api_.launch_kernel = [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                void **parameters, void **extra) {
            const CUresult result =
                launch(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
            then();
            return result;
        };
        const status s = engine().copy_now(device(0), make_copy());
        api_.launch_kernel = plain_launch_;
        return s;
    }
    static void finish_last() { fake().finish_launch(fake().launches.size() - 1); }

    const decltype(driver_api::launch_kernel) plain_launch_ = api_.launch_kernel;
};

TEST_F(CopyNow, ReturnsWhenTheFlagSaysSoWithoutADriverCallOnAStreamAndSlotOfItsOwn)
{
    EXPECT_EQ(copy_now(finish_last), status::ok);
    EXPECT_TRUE(fake().stack.empty());
    gaps(1 + strided_most_copies);
    ASSERT_EQ(launches(), 3U);
    const auto calls = fake().calls;
    EXPECT_EQ(copy_now(finish_last), status::ok) << "whatever else is in flight";
    EXPECT_EQ(fake().calls["stream_query"], calls.at("stream_query"));
    ASSERT_EQ(launches(), 4U);
    for (std::size_t other : {1U, 2U}) {
        EXPECT_FALSE(fake().launches[other].finished);
        EXPECT_NE(fake().launches[other].stream, fake().launches[3].stream);
        EXPECT_NE(fake().launches[other].arguments.slot, fake().launches[3].arguments.slot);
    }
    EXPECT_EQ(fake().launches[3].context, device(0).context);
    EXPECT_EQ(collect_until_idle(), "0-14");
    EXPECT_EQ(submissions(copy_way::strided), 2U) << "those of requests";
}

TEST_F(CopyNow, AsksTheDriverNowAndThenWhileItLasts)
{
    static int asked;
    asked = 0;
    api_.stream_query = [](CUstream stream) {
        if (CU_STREAM_LEGACY == stream) {
            return CUDA_SUCCESS;
        }
        EXPECT_EQ(stream, fake().launches.back().stream);
        if (++asked == 3) {
            finish_last();
        }
        return CUDA_ERROR_NOT_READY;
    };
    EXPECT_EQ(copy_now([] {}), status::ok);
    EXPECT_EQ(asked, 3);
}

TEST_F(CopyNow, FailsAsTheDriverSays)
{
    const log_capture log;
    EXPECT_EQ(copy_now([] {
                  fake().finish_launch(fake().launches.size() - 1, CUDA_ERROR_ILLEGAL_ADDRESS);
              }),
              status::driver_failed);
    EXPECT_GT(fake().calls["stream_synchronize"], 0) << "nothing runs any more";
    fake().stream_answer.clear();
    fake().launches.back().finished = true;
    // An idle stream without the flag.
    EXPECT_EQ(copy_now([] { fake().launches.back().finished = true; }), status::driver_failed);
    EXPECT_EQ(copy_now(finish_last), status::ok);
}

TEST_F(CopyNow, IsUnsupportedWithoutAKernelAndStartsNothing)
{
    const log_capture log;
    EXPECT_EQ(copy_now(finish_last), status::ok);
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    EXPECT_EQ(engine().copy_now(device(0), make_copy()), status::unsupported);
    fake().fail("ctx_push_current", 1, CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(engine().copy_now(device(0), make_copy()), status::unsupported);
    strided_copy &copy = make_copy();
    copy.len_bytes = 0;
    EXPECT_EQ(engine().copy_now(device(0), copy), status::bad_argument);
    make_engine({.kernel_blocks = 0});
    EXPECT_EQ(engine().copy_now(device(0), make_copy()), status::unsupported);
    make_engine({.kernel_blocks = 2});
    fake().fail("module_load_data", 0, CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(engine().copy_now(device(0), make_copy()), status::unsupported);
    EXPECT_EQ(launches(), 0U);
}

} // namespace
