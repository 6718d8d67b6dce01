// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_gathering_test.cc: which copies go out together and when; on a scripted driver.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::copy_way;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;

class CopyEngineGathering : public copy_engine_fixture {};

TEST_F(CopyEngineGathering, WhileTheDeviceIsBusyFurtherCopiesGatherWithoutADriverCall)
{
    (void)submit(0, 1);
    const auto calls = fake().calls;
    submit_many(0, 63);
    EXPECT_EQ(fake().calls, calls);
    EXPECT_EQ(collect(), "");
    EXPECT_EQ(fake().copies.size(), 1U);
}

TEST_F(CopyEngineGathering, GatheredCopiesGoOutTogetherWithOneEvent)
{
    submit_many(0, 14);
    ASSERT_EQ(fake().copies.size(), 1U);
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().copies.size(), 14U);
    EXPECT_EQ(fake().recorded.size(), 2U) << "one event for the thirteen";
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 6 7 8 9 10 11 12 13 ");
    for (std::size_t i = 0; i < fake().copies.size(); ++i) {
        EXPECT_EQ(fake().copies[i].source, request(i).source) << "in the order of submission";
    }
    EXPECT_EQ(submissions(copy_way::single), 2U);
    EXPECT_EQ(submissions(copy_way::batch), 0U);
    EXPECT_EQ(submissions(copy_way::kernel), 0U);
}

TEST_F(CopyEngineGathering, ASubmissionStopsAtItsNumberOfCopies)
{
    make_engine({.depth = 1, .batch_copies = 3, .kernel_blocks = 0});
    submit_many(0, 9);
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

TEST_F(CopyEngineGathering, AFullSubmissionGoesOutThoughTheDeviceIsBusy)
{
    make_engine({.depth = 4, .batch_copies = 3, .kernel_blocks = 0}); // and 3 for large ones
    submit_many(0, 3);
    EXPECT_EQ(fake().recorded.size(), 1U) << "two are gathered";
    submit_many(0, 1);
    EXPECT_EQ(fake().recorded.size(), 2U);
    EXPECT_EQ(fake().copies.size(), 4U);
    submit_many(0, 3);
    EXPECT_EQ(fake().recorded.size(), 3U);
    submit_many(0, 30);
    EXPECT_EQ(fake().recorded.size(), 3U) << "no more than it may have in flight";
    fake().finish(0);
    EXPECT_EQ(collect(), "0 ");
    EXPECT_EQ(fake().recorded.size(), 4U);
}

TEST_F(CopyEngineGathering, ASubmissionStopsOnceItHasItsBytes)
{
    make_engine({.depth = 1, .batch_bytes = 1000, .kernel_blocks = 0});
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
    EXPECT_EQ(collect_until_idle(), "7 ");
}

TEST_F(CopyEngineGathering, SubmissionsDoubleWhileTheDeviceIsBusyUntilTheyHaveTheirBytes)
{
    make_engine({.depth = 9, .batch_bytes = 3500, .early_bytes = 1000, .kernel_blocks = 0});
    std::vector<std::size_t> went; // how many copies of 100 bytes each submission took
    std::size_t before = 0;
    for (int i = 0; i < 130; ++i) {
        (void)submit(0, 100);
        if (fake().copies.size() != before) {
            went.push_back(fake().copies.size() - before);
            before = fake().copies.size();
        }
    }
    EXPECT_EQ(went, (std::vector<std::size_t>{1, 10, 11, 22, 35, 35}));
}

TEST_F(CopyEngineGathering, WhileHeldCopiesGatherOnAnIdleDeviceUntilTheNextCollect)
{
    engine().prepare(device(0));
    const auto calls = fake().calls;
    engine().hold(true);
    submit_many(0, 5);
    (void)submit_small(0);
    EXPECT_EQ(fake().calls, calls);
    EXPECT_FALSE(engine().idle());
    EXPECT_EQ(collect(), "") << "held or not";
    EXPECT_EQ(fake().copies.size(), 6U);
    EXPECT_EQ(fake().recorded.size(), 2U) << "one for each kind";
    EXPECT_EQ(collect_until_idle(), "5 0 1 2 3 4 ");
    engine().hold(false);
    (void)submit(0, 1);
    EXPECT_EQ(fake().recorded.size(), 3U) << "a lone copy goes at once again";
}

TEST_F(CopyEngineGathering, AFullSubmissionGoesOutThoughHeld)
{
    make_engine({.batch_copies = 3, .batch_bytes = 1000, .kernel_blocks = 0});
    engine().hold(true);
    submit_many(0, 2);
    EXPECT_EQ(fake().recorded.size(), 0U);
    submit_many(0, 1);
    EXPECT_EQ(fake().recorded.size(), 1U) << "full of copies";
    (void)submit(1, 1000);
    EXPECT_EQ(fake().recorded.size(), 2U) << "full of bytes";
}

TEST_F(CopyEngineGathering, DevicesDoNotWaitForEachOther)
{
    submit_many(0, 6);
    (void)submit(1, 1);
    ASSERT_EQ(fake().copies.size(), 2U) << "device 1 is not busy";
    EXPECT_EQ(fake().copies[1].context, device(1).context);
    EXPECT_EQ(fake().copies[1].stream, device(1).stream);
    fake().finish(1);
    EXPECT_EQ(collect(), "6 ");
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 5 ");
}

TEST_F(CopyEngineGathering, EndlessWorkForOneDeviceDoesNotKeepAnotherWaiting)
{
    submit_many(0, 500);
    for (std::size_t round = 0; round < 200; ++round) {
        submit_many(0, 65);
        const std::size_t other = requests_.size();
        (void)submit(1, 1);
        fake().finish_all();
        const std::string back = " " + collect();
        EXPECT_NE(back.find(" " + std::to_string(other) + " "), std::string::npos) << back;
    }
}

} // namespace
