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

// Holds a stream until opened. Work behind it cannot have run.
class gate {
  public:
    explicit gate(CUstream s)
    {
        const auto at = reinterpret_cast<CUdeviceptr>(word_);
        OK(CU(cuStreamWaitValue32)(s, at, 1, CU_STREAM_WAIT_VALUE_EQ));
    }
    void open() { word_->store(1); }
    bool is_open() const { return 1 == word_->load(); }

  private:
    std::atomic<unsigned> *word_ = reinterpret_cast<std::atomic<unsigned> *>(pinned(4));
};

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

} // namespace
