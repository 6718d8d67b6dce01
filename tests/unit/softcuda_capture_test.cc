// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_capture_test.cc: stream capture: what is recorded, and what breaks it.
#include "softcuda_support.h"

#include <thread>

using namespace softcuda_test;

namespace {

constexpr std::size_t len = 4096;
constexpr unsigned blocking = 0;
constexpr unsigned non_blocking = CU_STREAM_NON_BLOCKING;

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
    OK(CU(cuCtxGetCurrent)(&ctx));
    CUresult answer = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        OK(CU(cuCtxSetCurrent)(ctx));
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
    OK(CU(cuGraphGetNodes)(graph, nullptr, &count));
    return count;
}

// The first byte there.
int value_at(CUdeviceptr at)
{
    unsigned char value = 0;
    OK(CU(cuMemcpyDtoH)(&value, at, 1));
    return value;
}

void set(CUdeviceptr at, unsigned char value)
{
    OK(CU(cuMemsetD8)(at, value, len));
    OK(CU(cuStreamSynchronize)(nullptr));
}

ALONE(SoftcudaCapture, WhatIsRecordedRunsOnlyWhenTheGraphIsLaunched)
{
    start();
    const CUdeviceptr from = allocate(len);
    const CUdeviceptr to = allocate(len);
    set(from, 1);
    set(to, 2);
    CUstream s = make_stream(non_blocking);
    CUgraph graph = nullptr;
    CUgraphExec ready = nullptr;
    OK(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    OK(CU(cuStreamIsCapturing)(s, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(CU(cuMemcpyAsync)(to, from, len, s));
    OK(CU(cuMemsetD8Async)(from, 3, len, s));
    OK(end(s, &graph));
    EXPECT_EQ(nodes_of(graph), 2u);
    EXPECT_EQ(value_at(from), 1);
    EXPECT_EQ(value_at(to), 2);
    OK(CU(cuGraphInstantiateWithFlags)(&ready, graph, 0));
    OK(CU(cuGraphDestroy)(graph));
    for (int first = 1; first <= 3; first += 2) { // a second time it finds what the first left
        OK(CU(cuGraphLaunch)(ready, s));
        OK(CU(cuStreamSynchronize)(s));
        EXPECT_EQ(value_at(to), first);
        EXPECT_EQ(value_at(from), 3);
    }
    OK(CU(cuGraphExecDestroy)(ready));
}

ALONE(SoftcudaCapture, GlobalModeEndsOverAnUnsafeCallOfAnotherThread)
{
    start();
    CUstream s = make_stream(non_blocking);
    CUgraph graph = nullptr;
    OK(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(in_another_thread(allocate_anything), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    OK(allocate_anything());
}

ALONE(SoftcudaCapture, AThreadInRelaxedModeDoesNotDisturb)
{
    start();
    CUstream s = make_stream(non_blocking);
    CUgraph graph = nullptr;
    OK(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(in_another_thread([] {
                  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
                  OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
                  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
                  return allocate_anything();
              }),
              CUDA_SUCCESS);
    OK(end(s, &graph));
    EXPECT_NE(graph, nullptr);
}

ALONE(SoftcudaCapture, ThreadLocalModeMindsItsOwnThreadOnly)
{
    start();
    CUstream s = make_stream(non_blocking);
    CUgraph graph = nullptr;
    OK(begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(in_another_thread(allocate_anything));
    OK(end(s, &graph));
    OK(begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT_EQ(allocate_anything(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// Relaxed mode does not help: the legacy stream waits for all blocking streams.
ALONE(SoftcudaCapture, TheLegacyStreamIsOutOfUseWhileABlockingStreamIsCaptured)
{
    start();
    CUstream s = make_stream(blocking);
    CUgraph graph = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto relaxed_synchronize = [] {
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
        return CU(cuStreamSynchronize)(CU_STREAM_LEGACY);
    };
    OK(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(CU(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status),
              CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(end(s, &graph), CUDA_SUCCESS) << "the question is allowed";
    OK(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_EQ(in_another_thread(relaxed_synchronize), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    s = make_stream(non_blocking);
    OK(begin(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(in_another_thread(relaxed_synchronize));
    OK(end(s, &graph));
}

ALONE(SoftcudaCapture, AStreamThatIsCapturedCannotBeWaitedFor)
{
    start();
    CUstream s = make_stream(non_blocking);
    CUgraph graph = nullptr;
    OK(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

} // namespace
