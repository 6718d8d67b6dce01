// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_streams_test.cc: the driver's copies on several streams of one device.
#include "copy_engine_support.h"

#include <cstddef>
#include <set>
#include <vector>

namespace {

using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;

class CopyEngineStreams : public copy_engine_fixture {
  protected:
    CopyEngineStreams()
    {
        make_engine({.depth = 5, .batch_copies = 1, .kernel_blocks = 0, .streams = 3});
    }
    std::vector<CUstream> used() const
    {
        std::vector<CUstream> streams;
        for (const auto &each : fake().copies) {
            streams.push_back(each.stream);
        }
        return streams;
    }
};

TEST_F(CopyEngineStreams, ALoneCopyTakesTheDevicesOwn)
{
    for (int i = 0; i < 3; ++i) {
        submit_many(0, 1);
        (void)collect_until_idle();
    }
    EXPECT_EQ(used(), std::vector<CUstream>(3, device(0).stream));
}

TEST_F(CopyEngineStreams, OthersTakeTurnsOnAllOfThem)
{
    submit_many(0, 4);
    const std::vector<CUstream> streams = used();
    ASSERT_EQ(streams.size(), 4U);
    EXPECT_EQ(streams[0], device(0).stream);
    EXPECT_EQ(std::set<CUstream>(streams.begin(), streams.end()).size(), 3U);
    EXPECT_EQ(streams[3], streams[0]);
}

TEST_F(CopyEngineStreams, ACopyThatEndsFirstComesBackFirst)
{
    submit_many(0, 3);
    fake().finish(1);
    EXPECT_EQ(collect(), "1 ") << "it is on a stream of its own";
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(collect_until_idle(), "2 ");
}

TEST_F(CopyEngineStreams, EachStreamIsAskedOncePerRound)
{
    submit_many(0, 4); // two of them on the first stream
    const int before = fake().calls["event_query"];
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().calls["event_query"], before + 3);
}

TEST_F(CopyEngineStreams, WithoutFurtherStreamsTheDevicesOwnDoesAll)
{
    fake().fail("stream_create", 0, CUDA_ERROR_OUT_OF_MEMORY);
    submit_many(1, 3);
    EXPECT_EQ(used(), std::vector<CUstream>(3, device(1).stream));
    EXPECT_EQ(collect_until_idle(), "0 1 2 ");
}

TEST_F(CopyEngineStreams, AreGivenBack)
{
    submit_many(0, 1);
    submit_many(1, 1);
    EXPECT_EQ(fake().streams.size(), 4U);
    (void)collect_until_idle();
    drop_engine();
    EXPECT_TRUE(fake().streams.empty());
}

} // namespace
