// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_stream_test.cc: work runs late, in order, and events know when it is done.
#include "softcuda_support.h"

#include <atomic>
#include <chrono>
#include <thread>

using namespace softcuda_test;

namespace {

// Holds a stream until opened. Work behind it cannot have run.
struct gate {
    std::atomic<bool> open{false};
    void close(CUstream s)
    {
        ASSERT_EQ(CU(cuLaunchHostFunc)(
                      s,
                      [](void *me) {
                          while (!static_cast<gate *>(me)->open.load()) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(1));
                          }
                      },
                      this),
                  CUDA_SUCCESS);
    }
};

CUevent make_event()
{
    CUevent e = nullptr;
    OK(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING));
    return e;
}

char *pinned(std::size_t len)
{
    void *at = nullptr;
    OK(CU(cuMemHostAlloc)(&at, len, 0));
    std::memset(at, '-', len);
    return static_cast<char *>(at);
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
    gate g;
    g.close(s);
    OK(CU(cuMemsetD8Async)(at, 'x', 16, s));
    OK(CU(cuMemcpyDtoHAsync)(host, at, 16, s));
    OK(CU(cuEventRecord)(e, s));
    nap();
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(host[0], '-');
    g.open = true;
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
    gate g;
    g.close(a);
    OK(CU(cuMemsetD8Async)(at, 'a', 1, a));
    CUevent e = make_event();
    OK(CU(cuEventRecord)(e, a));
    OK(CU(cuMemsetD8Async)(at + 1, 'b', 1, b));
    OK(CU(cuStreamSynchronize)(b)); // does not wait for a
    OK(CU(cuStreamWaitEvent)(b, e, 0));
    OK(CU(cuMemcpyDtoHAsync)(host, at, 2, b));
    nap();
    EXPECT_EQ(host[0], '-');
    g.open = true;
    OK(CU(cuStreamSynchronize)(b));
    EXPECT_EQ(std::string(host, 2), "ab");
}

ALONE(SoftcudaStream, TheLegacyStreamWaitsForBlockingStreamsOnly)
{
    start();
    CUdeviceptr at = allocate(16);
    char *host = pinned(16);
    gate free_running;
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    free_running.close(other);
    OK(CU(cuMemcpyDtoH)(host, at, 16)); // comes back
    // One thread of the real driver runs all host functions, so one gate at a time.
    free_running.open = true;
    OK(CU(cuStreamSynchronize)(other));
    gate joined;
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    joined.close(blocking);
    OK(CU(cuMemsetD8Async)(at, 'q', 16, blocking));
    std::thread later([&] {
        nap();
        joined.open = true;
    });
    OK(CU(cuMemcpyDtoH)(host, at, 16));
    EXPECT_TRUE(joined.open.load());
    EXPECT_EQ(host[15], 'q');
    later.join();
}

ALONE(SoftcudaStream, BlockingStreamsWaitForTheLegacyStream)
{
    start();
    gate g;
    g.close(nullptr);
    CUstream blocking = make_stream(CU_STREAM_DEFAULT);
    CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
    CUevent e = make_event();
    OK(CU(cuEventRecord)(e, blocking));
    OK(CU(cuStreamSynchronize)(other));
    nap();
    EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
    g.open = true;
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
    gate g;
    g.close(nullptr);
    OK(CU(cuMemsetD8)(a, 1, 16));
    OK(CU(cuMemcpyDtoD)(b, a, 16));
    EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
    g.open = true;
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

TEST(SoftcudaStream, AnEventOfAnotherContextCannotBeRecordedHere)
{
    NEEDS_DEVICES(2);
    alone([] {
        start(1);
        CUevent e = make_event();
        start(0);
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        EXPECT_EQ(CU(cuEventRecord)(e, s), CUDA_ERROR_INVALID_HANDLE);
        OK(CU(cuStreamWaitEvent)(s, e, 0));
    });
}

} // namespace
