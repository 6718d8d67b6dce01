// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_batch_test.cc: gathered copies on a driver that takes many in one call.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "tests/unit/copy_engine_support.h"

#include <gtest/gtest.h>

#if GPUSM_HAVE_BATCH_COPY

namespace {

using gpusm::copy_way;
using gpusm_test::copy_engine_fixture;
using gpusm_test::fake;
using gpusm_test::handle_of;

std::vector<std::size_t> batches; // copies in each batch call that was made
CUresult batch_answer = CUDA_SUCCESS;

CUresult CUDAAPI take_batch(CUdeviceptr *, CUdeviceptr *, size_t *sizes, size_t count,
                            CUmemcpyAttributes *, size_t *first, size_t attributes, CUstream)
{
    batches.push_back(count);
    EXPECT_EQ(attributes, 1U);
    EXPECT_EQ(first[0], 0U);
    for (size_t i = 0; i < count; ++i) {
        EXPECT_GT(sizes[i], 0U);
    }
    return batch_answer;
}

CUresult CUDAAPI take_batch_12_8(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *how, size_t *first, size_t attributes,
                                 size_t *, CUstream stream)
{
    return take_batch(to, from, sizes, count, how, first, attributes, stream);
}

class CopyEngineBatch : public copy_engine_fixture {
  protected:
    CopyEngineBatch()
    {
        batches.clear();
        batch_answer = CUDA_SUCCESS;
        api_.batch_copy = take_batch;
        // One submission in flight, the rest is gathered.
        make_engine({.depth = 1, .batch_copies = 8, .kernel_blocks = 0});
    }
    // One copy in flight and `more` gathered behind it, then the first one done.
    void gather(int more, std::size_t len_bytes = 64)
    {
        (void)submit(0, 64);
        for (int i = 0; i < more; ++i) {
            (void)submit(0, len_bytes);
        }
        fake().finish_all();
        EXPECT_EQ(collect(), "0 ");
    }
};

TEST_F(CopyEngineBatch, ALoneCopyIsNoBatch)
{
    gather(0);
    EXPECT_TRUE(batches.empty());
    EXPECT_EQ(fake().copies.size(), 1U);
}

TEST_F(CopyEngineBatch, GatheredCopiesAreOneCall)
{
    gather(5);
    EXPECT_EQ(batches, std::vector<std::size_t>{5});
    EXPECT_EQ(fake().copies.size(), 1U) << "single copies besides the first";
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 ");
}

TEST_F(CopyEngineBatch, NoCallIsLongerThanTheLimit)
{
    gather(20);
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 ");
    EXPECT_EQ(batches, (std::vector<std::size_t>{8, 8, 4}));
}

TEST_F(CopyEngineBatch, ADriverOf12_8TakesItsOwnForm)
{
    api_.batch_copy = nullptr;
    api_.batch_copy_12_8 = take_batch_12_8;
    gather(3);
    EXPECT_EQ(batches, std::vector<std::size_t>{3});
}

TEST_F(CopyEngineBatch, ARefusedBatchIsCopiedOneByOne)
{
    batch_answer = CUDA_ERROR_INVALID_VALUE;
    gather(3);
    EXPECT_EQ(batches.size(), 1U);
    EXPECT_EQ(fake().copies.size(), 4U);
    EXPECT_EQ(collect_until_idle(), "1 2 3 ");
}

TEST_F(CopyEngineBatch, ADriverWithoutIsAskedOnce)
{
    batch_answer = CUDA_ERROR_NOT_SUPPORTED;
    gather(20);
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 ");
    EXPECT_EQ(batches.size(), 1U);
    EXPECT_EQ(fake().copies.size(), 21U);
}

TEST_F(CopyEngineBatch, CopiesThatWaitForAPeersEventGoOneByOne)
{
    (void)submit(0, 64);
    (void)submit(0, {.len_bytes = 64, .wait_for = handle_of<CUevent>(0xe0)});
    (void)submit(0, 64);
    EXPECT_EQ(collect_until_idle(), "0 1 2 ");
    EXPECT_TRUE(batches.empty());
    EXPECT_EQ(fake().waited.size(), 1U);
}

TEST_F(CopyEngineBatch, AnEmptyCopyIsInNoBatch)
{
    (void)submit(0, 64);
    (void)submit(0, 0U);
    (void)submit(0, 64);
    EXPECT_EQ(collect_until_idle(), "0 1 2 ");
    EXPECT_TRUE(batches.empty());
}

TEST_F(CopyEngineBatch, SwitchedOffItIsNeverCalled)
{
    make_engine({.depth = 1, .kernel_blocks = 0, .batches = false});
    gather(5);
    EXPECT_TRUE(batches.empty());
    EXPECT_EQ(collect_until_idle(), "1 2 3 4 5 ");
}

TEST_F(CopyEngineBatch, SmallCopiesOnADeviceWithoutTheKernelAreBatchesToo)
{
    for (int i = 0; i < 6; ++i) {
        (void)submit_small(0);
    }
    EXPECT_EQ(collect_until_idle(), "0 1 2 3 4 5 ");
    EXPECT_EQ(batches, std::vector<std::size_t>{5});
}

TEST_F(CopyEngineBatch, SubmissionsAreCountedByTheWayTheyWent)
{
    gather(20);
    (void)collect_until_idle();
    EXPECT_EQ(submissions(copy_way::single), 1U);
    EXPECT_EQ(submissions(copy_way::batch), 3U);
    batch_answer = CUDA_ERROR_INVALID_VALUE;
    submit_many(0, 9);
    (void)collect_until_idle();
    EXPECT_EQ(submissions(copy_way::single), 3U) << "the copies of a refused batch count so";
    EXPECT_EQ(submissions(copy_way::batch), 3U);
}

// What the driver started of a batch before it failed may run on.
TEST_F(CopyEngineBatch, CopiesThatARefusedBatchMayHaveStartedAreWaitedForBeforeTheyFail)
{
    const gpusm_test::log_capture log;
    batch_answer = CUDA_ERROR_INVALID_VALUE;
    (void)submit(0, 64);
    submit_many(0, 2);
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE);
    fake().finish_all();
    EXPECT_EQ(collect(), "0 1! ");
    EXPECT_EQ(fake().calls["stream_synchronize"], 1);
    fake().heal();
    EXPECT_EQ(collect_until_idle(), "2 ");
}

TEST_F(CopyEngineBatch, ACopyThatWasInNoBatchFailsWithoutAWait)
{
    const gpusm_test::log_capture log;
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE);
    (void)submit(0, 64);
    EXPECT_EQ(collect(), "0! ");
    EXPECT_EQ(fake().calls["stream_synchronize"], 0) << "others in flight would hold it up";
}

} // namespace

#endif
