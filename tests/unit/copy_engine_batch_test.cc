// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_engine_batch_test.cc: gathered copies on a driver that takes many in one call.
#include "tests/unit/copy_engine_support.h"

#if GPUSM_HAVE_BATCH_COPY

namespace {

using namespace gpusm;
using namespace gpusm_test;

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

TEST_F(CopyEngineBatch, ARefusedBatchIsCopiedOneByOneAndCountsSo)
{
    fake().fail("batch_copy", 0, CUDA_ERROR_INVALID_VALUE);
    large(12);
    EXPECT_EQ(collect_until_idle(), "0 1-8 9-11");
    EXPECT_EQ(started(), "single 0; single 1-8; single 9-11");
    EXPECT_EQ(batches(), 2);
    EXPECT_EQ(submissions(copy_way::single), 3U);
    EXPECT_EQ(submissions(copy_way::batch), 0U);
}

TEST_F(CopyEngineBatch, ADriverWithoutIsAskedOnce)
{
    fake().fail("batch_copy", 0, CUDA_ERROR_NOT_SUPPORTED);
    large(21);
    EXPECT_EQ(collect_until_idle(), "0 1-8 9-16 17-20");
    EXPECT_EQ(batches(), 1);
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

TEST_F(CopyEngineBatch, SwitchedOffItIsNeverCalled)
{
    make_engine({.depth = 1, .batches = false});
    large(6);
    EXPECT_EQ(collect_until_idle(), "0 1-5");
    EXPECT_EQ(batches(), 0);
}

TEST_F(CopyEngineBatch, SmallCopiesOnADeviceWithoutTheKernelAreBatchesToo)
{
    small(6);
    EXPECT_EQ(collect_until_idle(), "0 1-5");
    EXPECT_EQ(started(), "single 0; batch 1-5");
}

// What the driver started of a batch before it failed may run on.
TEST_F(CopyEngineBatch, CopiesThatARefusedBatchMayHaveStartedAreWaitedForBeforeTheyFail)
{
    const log_capture log;
    fake().fail("batch_copy", 0, CUDA_ERROR_INVALID_VALUE);
    large(3);
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE);
    fake().finish_all();
    EXPECT_EQ(collect(), "0 1!");
    EXPECT_EQ(fake().calls["stream_synchronize"], 1);
    EXPECT_EQ(collect_until_idle(), "2");
}

TEST_F(CopyEngineBatch, ACopyThatWasInNoBatchFailsWithoutAWait)
{
    const log_capture log;
    fake().fail("memcpy_async", 1, CUDA_ERROR_INVALID_VALUE);
    large(1);
    EXPECT_EQ(collect(), "0!");
    EXPECT_EQ(fake().calls["stream_synchronize"], 0) << "others in flight would hold it up";
}

} // namespace

#endif
