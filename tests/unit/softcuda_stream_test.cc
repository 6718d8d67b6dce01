// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_stream_test.cc: who may call when; work runs late, in order, and events know when it is
// done; what a stream capture does not survive. Rules of the real driver that the software driver
// must not be laxer about.
#include "softcuda_support.h"

#include <chrono>
#include <thread>

using namespace softcuda_test;

namespace {

ALONE(SoftcudaCall, NothingWorksBeforeInitNorInAForkedChild)
{
    int n = 0;
    CUdeviceptr at = 0;
    EXPECT_EQ(CU(cuDeviceGetCount)(&n), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_NOT_INITIALIZED);
    start();
    const pid_t inner = fork();
    if (inner == 0) {
        _exit(CU(cuMemAlloc)(&at, 16) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    EXPECT_EQ(status_of(inner), 0);
    allocate(16);
}

// In a process that has made none, and in a thread beside one that has.
ALONE(SoftcudaCall, CallsWithoutAContextFailAndEachThreadHasItsOwn)
{
    const auto expect_none = [] {
        CUdeviceptr at = 0;
        CUstream s = nullptr;
        CUdevice d = 0;
        CUcontext ctx = reinterpret_cast<CUcontext>(1);
        OK(CU(cuCtxGetCurrent)(&ctx));
        EXPECT_EQ(ctx, nullptr);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuStreamCreate)(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxGetDevice)(&d), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(CU(cuCtxPopCurrent)(&ctx), CUDA_ERROR_INVALID_CONTEXT);
    };
    OK(CU(cuInit)(0));
    expect_none();
    std::thread([&, ctx = start()] {
        expect_none();
        OK(CU(cuCtxPushCurrent)(ctx));
        (void)allocate(16);
    }).join();
}

ALONE(SoftcudaCall, APrimaryContextLivesWhileItIsRetained)
{
    CU(cuInit)(0);
    unsigned flags = 0;
    int active = 7;
    OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(active, 0);
    CUcontext a = start();
    CUcontext b = start();
    EXPECT_EQ(a, b);
    CUdeviceptr at = allocate(4096);
    OK(CU(cuDevicePrimaryCtxRelease)(0));
    EXPECT_NE(buffer_id(at), 0u);
    OK(CU(cuDevicePrimaryCtxRelease)(0));
    OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    EXPECT_EQ(active, 0);
    CUdeviceptr more = 0;
    EXPECT_NE(CU(cuMemAlloc)(&more, 16), CUDA_SUCCESS);
}

SOFT_ALONE(SoftcudaCall, DevicesHaveStableUuidsAndVisibilityRenumbersThem)
{
    setenv("GPUSM_SOFTCUDA_DEVICES", "4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    start();
    int n = 0;
    OK(CU(cuDeviceGetCount)(&n));
    EXPECT_EQ(n, 2);
    CUuuid a{};
    CUuuid b{};
    OK(CU(cuDeviceGetUuid)(&a, 0));
    OK(CU(cuDeviceGetUuid)(&b, 1));
    EXPECT_EQ(a.bytes[15], 3);
    EXPECT_EQ(b.bytes[15], 1);
    CUdevice d = 0;
    EXPECT_EQ(CU(cuDeviceGet)(&d, 2), CUDA_ERROR_INVALID_DEVICE);
}

void nap()
{
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
}

ALONE(SoftcudaStream, AnEventIsReadyOnlyWhenItsWorkIsDone)
{
    start();
    CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent e = make_event();
    OK(CU(cuEventQuery)(e)); // nothing recorded: nothing to wait for
    CUdeviceptr at = allocate(16);
    char *host = pinned(16);
    gate g(s);
    OK(CU(cuMemsetD8Async)(at, 'x', 16, s));
    OK(CU(cuMemcpyDtoHAsync)(host, at, 16, s));
    OK(CU(cuEventRecord)(e, s));
    nap();
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(host[0], '-');
    g.open();
    OK(CU(cuEventSynchronize)(e));
    EXPECT_EQ(std::string(host, 16), std::string(16, 'x'));
    OK(CU(cuEventQuery)(e));
    OK(CU(cuStreamSynchronize)(s));
    OK(CU(cuStreamQuery)(s));
}

ALONE(SoftcudaStream, StreamsAreIndependentUntilAnEventJoinsThem)
{
    start();
    CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
    CUstream b = make_stream(CU_STREAM_NON_BLOCKING);
    char *host = pinned(2);
    CUdeviceptr at = allocate(2);
    gate g(a);
    OK(CU(cuMemsetD8Async)(at, 'a', 1, a));
    CUevent e = make_event();
    OK(CU(cuEventRecord)(e, a));
    OK(CU(cuMemsetD8Async)(at + 1, 'b', 1, b));
    OK(CU(cuStreamSynchronize)(b)); // does not wait for a
    OK(CU(cuStreamWaitEvent)(b, e, 0));
    OK(CU(cuMemcpyDtoHAsync)(host, at, 2, b));
    nap();
    EXPECT_EQ(host[0], '-');
    g.open();
    OK(CU(cuStreamSynchronize)(b));
    EXPECT_EQ(std::string(host, 2), "ab");
}

ALONE(SoftcudaStream, TheLegacyStreamWaitsForBlockingStreamsOnly)
{
    start();
    CUdeviceptr at = allocate(16);
    char *host = pinned(16);
    gate free_running(make_stream(CU_STREAM_NON_BLOCKING));
    OK(CU(cuMemcpyDtoH)(host, at, 16)); // comes back
    free_running.open();
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    gate joined(blocking);
    OK(CU(cuMemsetD8Async)(at, 'q', 16, blocking));
    std::thread later([&] {
        nap();
        joined.open();
    });
    OK(CU(cuMemcpyDtoH)(host, at, 16));
    EXPECT_TRUE(joined.is_open());
    EXPECT_EQ(host[15], 'q');
    later.join();
}

ALONE(SoftcudaStream, BlockingStreamsWaitForTheLegacyStream)
{
    start();
    gate g(nullptr);
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent e = make_event();
    OK(CU(cuEventRecord)(e, blocking));
    OK(CU(cuStreamSynchronize)(other));
    nap();
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    g.open();
    OK(CU(cuEventSynchronize)(e));
}

SOFT_ALONE(SoftcudaStream, ACopyOutOfPageableMemoryMayReturnBeforeItArrives)
{
    setenv("GPUSM_SOFTCUDA_DELAY_US", "100000", 1);
    start();
    CUdeviceptr at = allocate(100);
    std::string bytes = "staged";
    OK(CU(cuMemcpyHtoD)(at, bytes.data(), 6));
    EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
    bytes = "******"; // the caller's memory is free again
    EXPECT_EQ(load(at, 6), "staged");
    unsigned on = 1;
    OK(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    OK(CU(cuMemcpyHtoD)(at, bytes.data(), 6));
    OK(CU(cuStreamQuery)(nullptr));
}

ALONE(SoftcudaStream, FillsAndDeviceCopiesReturnAtOnce)
{
    start();
    CUdeviceptr a = allocate(16);
    CUdeviceptr b = allocate(16);
    gate g(nullptr);
    OK(CU(cuMemsetD8)(a, 1, 16));
    OK(CU(cuMemcpyDtoD)(b, a, 16));
    EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
    g.open();
    EXPECT_EQ(load(b, 16), std::string(16, 1));
}

SOFT_ALONE(SoftcudaStream, NonBlockingStreamsMayHaveADelayOfTheirOwn)
{
    setenv("GPUSM_SOFTCUDA_DELAY_NONBLOCKING_US", "100000", 1);
    start();
    CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent late = make_event();
    OK(CU(cuEventRecord)(late, s));
    OK(CU(cuStreamSynchronize)(make_stream(CU_STREAM_DEFAULT)));
    OK(CU(cuStreamSynchronize)(nullptr));
    EXPECT_EQ(CU(cuEventQuery)(late), CUDA_ERROR_NOT_READY);
    OK(CU(cuEventSynchronize)(late));
}

ALONE_IF(SoftcudaStream, AnEventOfAnotherContextCannotBeRecordedHere, NEEDS_DEVICES(2))
{
    start(1);
    CUevent e = make_event();
    start(0);
    CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
    EXPECT_EQ(CU(cuEventRecord)(e, s), CUDA_ERROR_INVALID_HANDLE);
    OK(CU(cuStreamWaitEvent)(s, e, 0));
}

// ---------------------------------------------------------------- capture

// What `body` answers in a thread of that capture mode that has the context of this one.
CUresult in_another_thread(CUstreamCaptureMode mode, const std::function<CUresult()> &body)
{
    CUcontext ctx = nullptr;
    OK(CU(cuCtxGetCurrent)(&ctx));
    CUresult answer = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        OK(CU(cuCtxSetCurrent)(ctx));
        OK(CU(cuThreadExchangeStreamCaptureMode)(&mode));
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        answer = body();
    }).join();
    return answer;
}

// Captures the stream meanwhile. Calls that the capture forbids, of which the first one's answer is
// `expected`, end it.
void capture_beside(CUstream s, CUstreamCaptureMode mode, CUresult expected,
                    const std::function<CUresult()> &body)
{
    CUgraph graph = nullptr;
    OK(CU(cuStreamBeginCapture)(s, mode));
    EXPECT_EQ(body(), expected);
    EXPECT_EQ(CU(cuStreamEndCapture)(s, &graph),
              expected == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph != nullptr, expected == CUDA_SUCCESS);
}

ALONE(SoftcudaCapture, EndsOverUnsafeCallsOfTheThreadsThatItsModeMinds)
{
    start();
    const CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
    const auto unsafe = [] {
        CUdeviceptr at = 0;
        return CU(cuMemAlloc)(&at, 4096);
    };
    const auto elsewhere = [&](CUstreamCaptureMode mode) {
        return in_another_thread(mode, unsafe);
    };
    constexpr auto global = CU_STREAM_CAPTURE_MODE_GLOBAL;
    constexpr auto relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    constexpr auto local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    constexpr auto refused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    capture_beside(s, global, refused, [&] { return elsewhere(global); });
    capture_beside(s, global, CUDA_SUCCESS, [&] { return elsewhere(relaxed); });
    capture_beside(s, local, CUDA_SUCCESS, [&] { return elsewhere(global); });
    capture_beside(s, local, refused, unsafe);
    // A stream that is captured cannot be waited for, and its context neither, in any mode.
    capture_beside(s, relaxed, refused, [&] { return CU(cuStreamSynchronize)(s); });
    capture_beside(s, relaxed, refused, [] { return CU(cuCtxSynchronize)(); });
}

// Relaxed mode does not help: the legacy stream waits for all blocking streams. To ask is allowed.
ALONE(SoftcudaCapture, TheLegacyStreamIsOutOfUseWhileABlockingStreamIsCaptured)
{
    start();
    const auto global = CU_STREAM_CAPTURE_MODE_GLOBAL;
    const auto synchronize = [] {
        return in_another_thread(CU_STREAM_CAPTURE_MODE_RELAXED,
                                 [] { return CU(cuStreamSynchronize)(CU_STREAM_LEGACY); });
    };
    const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    capture_beside(blocking, global, CUDA_SUCCESS, [] {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        EXPECT_EQ(CU(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status),
                  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        return CUDA_SUCCESS;
    });
    capture_beside(blocking, global, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, synchronize);
    capture_beside(make_stream(CU_STREAM_NON_BLOCKING), global, CUDA_SUCCESS, synchronize);
}

} // namespace
