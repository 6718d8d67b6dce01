// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_capture_test.cc: stream capture: what is recorded, and what breaks it.
#include "softcuda_support.h"

#include <functional>
#include <thread>

using namespace softcuda_test;

namespace {

constexpr std::size_t len = 4096;
constexpr unsigned blocking = 0;
constexpr unsigned non_blocking = CU_STREAM_NON_BLOCKING;

CUstream make_stream(unsigned flags)
{
    CUstream s = nullptr;
    EXPECT_EQ(CU(cuStreamCreate)(&s, flags), CUDA_SUCCESS);
    return s;
}

CUresult begin(CUstream s, CUstreamCaptureMode mode)
{
    return CU(cuStreamBeginCapture)(s, mode);
}

CUresult end(CUstream s, CUgraph *out)
{
    return CU(cuStreamEndCapture)(s, out);
}

// What `body` answers in a thread that has the context of this one.
CUresult in_another_thread(const std::function<CUresult()> &body)
{
    CUcontext ctx = nullptr;
    EXPECT_EQ(CU(cuCtxGetCurrent)(&ctx), CUDA_SUCCESS);
    CUresult answer = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        EXPECT_EQ(CU(cuCtxSetCurrent)(ctx), CUDA_SUCCESS);
        answer = body();
    }).join();
    return answer;
}

CUresult allocate_anything()
{
    CUdeviceptr at = 0;
    return CU(cuMemAlloc)(&at, len);
}

std::size_t nodes_of(CUgraph graph)
{
    std::size_t count = 0;
    EXPECT_EQ(CU(cuGraphGetNodes)(graph, nullptr, &count), CUDA_SUCCESS);
    return count;
}

// The first byte there.
int value_at(CUdeviceptr at)
{
    unsigned char value = 0;
    EXPECT_EQ(CU(cuMemcpyDtoH)(&value, at, 1), CUDA_SUCCESS);
    return value;
}

void set(CUdeviceptr at, unsigned char value)
{
    EXPECT_EQ(CU(cuMemsetD8)(at, value, len), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
}

TEST(SoftcudaCapture, WhatIsRecordedRunsOnlyWhenTheGraphIsLaunched)
{
    alone([] {
        start();
        const CUdeviceptr from = allocate(len);
        const CUdeviceptr to = allocate(len);
        set(from, 1);
        set(to, 2);
        CUstream s = make_stream(non_blocking);
        CUgraph graph = nullptr;
        CUgraphExec ready = nullptr;
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        EXPECT_EQ(CU(cuStreamIsCapturing)(s, &status), CUDA_SUCCESS);
        EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        EXPECT_EQ(CU(cuMemcpyAsync)(to, from, len, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemsetD8Async)(from, 3, len, s), CUDA_SUCCESS);
        ASSERT_EQ(end(s, &graph), CUDA_SUCCESS);
        EXPECT_EQ(nodes_of(graph), 2u);
        EXPECT_EQ(value_at(from), 1);
        EXPECT_EQ(value_at(to), 2);
        ASSERT_EQ(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuGraphDestroy)(graph), CUDA_SUCCESS);
        for (int first = 1; first <= 3; first += 2) { // a second time it finds what the first left
            ASSERT_EQ(CU(cuGraphLaunch)(ready, s), CUDA_SUCCESS);
            ASSERT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
            EXPECT_EQ(value_at(to), first);
            EXPECT_EQ(value_at(from), 3);
        }
        EXPECT_EQ(CU(cuGraphExecDestroy)(ready), CUDA_SUCCESS);
    });
}

TEST(SoftcudaCapture, GlobalModeEndsOverAnUnsafeCallOfAnotherThread)
{
    alone([] {
        start();
        CUstream s = make_stream(non_blocking);
        CUgraph graph = nullptr;
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(in_another_thread(allocate_anything), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        EXPECT_EQ(graph, nullptr);
        EXPECT_EQ(allocate_anything(), CUDA_SUCCESS);
    });
}

TEST(SoftcudaCapture, AThreadInRelaxedModeDoesNotDisturb)
{
    alone([] {
        start();
        CUstream s = make_stream(non_blocking);
        CUgraph graph = nullptr;
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(in_another_thread([] {
                      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
                      EXPECT_EQ(CU(cuThreadExchangeStreamCaptureMode)(&mode), CUDA_SUCCESS);
                      EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
                      return allocate_anything();
                  }),
                  CUDA_SUCCESS);
        EXPECT_EQ(end(s, &graph), CUDA_SUCCESS);
        EXPECT_NE(graph, nullptr);
    });
}

TEST(SoftcudaCapture, ThreadLocalModeMindsItsOwnThreadOnly)
{
    alone([] {
        start();
        CUstream s = make_stream(non_blocking);
        CUgraph graph = nullptr;
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
        EXPECT_EQ(in_another_thread(allocate_anything), CUDA_SUCCESS);
        EXPECT_EQ(end(s, &graph), CUDA_SUCCESS);
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
        EXPECT_EQ(allocate_anything(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    });
}

TEST(SoftcudaCapture, WorkOfAnotherThreadOnItsOwnStreamIsSafe)
{
    alone([] {
        start();
        const CUdeviceptr from = allocate(len);
        const CUdeviceptr to = allocate(len);
        CUstream s = make_stream(non_blocking);
        CUstream other = make_stream(non_blocking);
        CUgraph graph = nullptr;
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(in_another_thread([&] { return CU(cuMemcpyAsync)(to, from, len, other); }),
                  CUDA_SUCCESS);
        EXPECT_EQ(end(s, &graph), CUDA_SUCCESS);
        EXPECT_EQ(nodes_of(graph), 0u);
    });
}

// Relaxed mode does not help: the legacy stream waits for all blocking streams.
TEST(SoftcudaCapture, TheLegacyStreamIsOutOfUseWhileABlockingStreamIsCaptured)
{
    alone([] {
        start();
        CUstream s = make_stream(blocking);
        CUgraph graph = nullptr;
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        const auto relaxed_synchronize = [] {
            CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            EXPECT_EQ(CU(cuThreadExchangeStreamCaptureMode)(&mode), CUDA_SUCCESS);
            return CU(cuStreamSynchronize)(CU_STREAM_LEGACY);
        };
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status),
                  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        EXPECT_EQ(end(s, &graph), CUDA_SUCCESS) << "the question is allowed";
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(in_another_thread(relaxed_synchronize), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

        s = make_stream(non_blocking);
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(in_another_thread(relaxed_synchronize), CUDA_SUCCESS);
        EXPECT_EQ(end(s, &graph), CUDA_SUCCESS);
    });
}

TEST(SoftcudaCapture, AStreamThatIsCapturedCannotBeWaitedFor)
{
    alone([] {
        start();
        CUstream s = make_stream(non_blocking);
        CUgraph graph = nullptr;
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    });
}

TEST(SoftcudaCapture, WhatCannotBeBegunOrEnded)
{
    alone([] {
        start();
        CUstream s = make_stream(non_blocking);
        CUgraph graph = nullptr;
        EXPECT_EQ(begin(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
                  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(s, &graph), CUDA_ERROR_ILLEGAL_STATE);
        ASSERT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
        EXPECT_EQ(in_another_thread([&] { return end(s, &graph); }),
                  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    });
}

} // namespace
