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

constexpr std::size_t MiB = 1 << 20;

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

CUstream make_stream(unsigned flags)
{
    CUstream s = nullptr;
    EXPECT_EQ(CU(cuStreamCreate)(&s, flags), CUDA_SUCCESS);
    return s;
}

CUevent make_event(unsigned flags = CU_EVENT_DISABLE_TIMING)
{
    CUevent e = nullptr;
    EXPECT_EQ(CU(cuEventCreate)(&e, flags), CUDA_SUCCESS);
    return e;
}

char *pinned(std::size_t len)
{
    void *at = nullptr;
    EXPECT_EQ(CU(cuMemHostAlloc)(&at, len, 0), CUDA_SUCCESS);
    std::memset(at, '-', len);
    return static_cast<char *>(at);
}

void nap()
{
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
}

TEST(SoftcudaStream, AnEventIsReadyOnlyWhenItsWorkIsDone)
{
    alone([] {
        start();
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        CUevent e = make_event();
        EXPECT_EQ(CU(cuEventQuery)(e), CUDA_SUCCESS); // nothing recorded: nothing to wait for
        CUdeviceptr at = allocate(16);
        char *host = pinned(16);
        gate g;
        g.close(s);
        EXPECT_EQ(CU(cuMemsetD8Async)(at, 'x', 16, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyDtoHAsync)(host, at, 16, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuEventRecord)(e, s), CUDA_SUCCESS);
        nap();
        EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
        EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_ERROR_NOT_READY);
        EXPECT_EQ(host[0], '-');
        g.open = true;
        EXPECT_EQ(CU(cuEventSynchronize)(e), CUDA_SUCCESS);
        EXPECT_EQ(std::string(host, 16), std::string(16, 'x'));
        EXPECT_EQ(CU(cuEventQuery)(e), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamQuery)(s), CUDA_SUCCESS);
    });
}

TEST(SoftcudaStream, StreamsAreIndependentUntilAnEventJoinsThem)
{
    alone([] {
        start();
        CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
        CUstream b = make_stream(CU_STREAM_NON_BLOCKING);
        char *host = pinned(2);
        CUdeviceptr at = allocate(2);
        gate g;
        g.close(a);
        EXPECT_EQ(CU(cuMemsetD8Async)(at, 'a', 1, a), CUDA_SUCCESS);
        CUevent e = make_event();
        EXPECT_EQ(CU(cuEventRecord)(e, a), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemsetD8Async)(at + 1, 'b', 1, b), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(b), CUDA_SUCCESS); // does not wait for a
        EXPECT_EQ(CU(cuStreamWaitEvent)(b, e, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyDtoHAsync)(host, at, 2, b), CUDA_SUCCESS);
        nap();
        EXPECT_EQ(host[0], '-');
        g.open = true;
        EXPECT_EQ(CU(cuStreamSynchronize)(b), CUDA_SUCCESS);
        EXPECT_EQ(std::string(host, 2), "ab");
    });
}

TEST(SoftcudaStream, TheLegacyStreamWaitsForBlockingStreamsOnly)
{
    alone([] {
        start();
        CUdeviceptr at = allocate(16);
        char *host = pinned(16);
        gate free_running;
        CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
        free_running.close(other);
        EXPECT_EQ(CU(cuMemcpyDtoH)(host, at, 16), CUDA_SUCCESS); // comes back
        // One thread of the real driver runs all host functions, so one gate at a time.
        free_running.open = true;
        EXPECT_EQ(CU(cuStreamSynchronize)(other), CUDA_SUCCESS);
        gate joined;
        CUstream blocking = make_stream(CU_STREAM_DEFAULT);
        joined.close(blocking);
        EXPECT_EQ(CU(cuMemsetD8Async)(at, 'q', 16, blocking), CUDA_SUCCESS);
        std::thread later([&] {
            nap();
            joined.open = true;
        });
        EXPECT_EQ(CU(cuMemcpyDtoH)(host, at, 16), CUDA_SUCCESS);
        EXPECT_TRUE(joined.open.load());
        EXPECT_EQ(host[15], 'q');
        later.join();
    });
}

TEST(SoftcudaStream, BlockingStreamsWaitForTheLegacyStream)
{
    alone([] {
        start();
        gate g;
        g.close(nullptr);
        CUstream blocking = make_stream(CU_STREAM_DEFAULT);
        CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
        CUevent e = make_event();
        EXPECT_EQ(CU(cuEventRecord)(e, blocking), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(other), CUDA_SUCCESS);
        nap();
        EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
        g.open = true;
        EXPECT_EQ(CU(cuEventSynchronize)(e), CUDA_SUCCESS);
    });
}

TEST(SoftcudaStream, ACopyOutOfPageableMemoryMayReturnBeforeItArrives)
{
    NEEDS_SOFTCUDA();
    alone([] {
        setenv("GPUSM_SOFTCUDA_DELAY_US", "100000", 1);
        start();
        CUdeviceptr at = allocate(100);
        std::string bytes = "staged";
        EXPECT_EQ(CU(cuMemcpyHtoD)(at, bytes.data(), 6), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
        bytes = "******"; // the caller's memory is free again
        EXPECT_EQ(load(at, 6), "staged");
        unsigned on = 1;
        EXPECT_EQ(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at),
                  CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyHtoD)(at, bytes.data(), 6), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_SUCCESS);
    });
}

TEST(SoftcudaStream, FillsAndDeviceCopiesReturnAtOnce)
{
    alone([] {
        start();
        CUdeviceptr a = allocate(16);
        CUdeviceptr b = allocate(16);
        gate g;
        g.close(nullptr);
        EXPECT_EQ(CU(cuMemsetD8)(a, 1, 16), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyDtoD)(b, a, 16), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
        g.open = true;
        EXPECT_EQ(load(b, 16), std::string(16, 1));
    });
}

TEST(SoftcudaStream, DelayIsTheLeastTimeUntilAnOperationRuns)
{
    NEEDS_SOFTCUDA();
    alone([] {
        setenv("GPUSM_SOFTCUDA_DELAY_US", "50000", 1);
        start();
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        auto begin = std::chrono::steady_clock::now();
        CUevent e = make_event();
        EXPECT_EQ(CU(cuEventRecord)(e, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuEventSynchronize)(e), CUDA_SUCCESS);
        EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
    });
}

TEST(SoftcudaStream, NonBlockingStreamsMayHaveADelayOfTheirOwn)
{
    NEEDS_SOFTCUDA();
    alone([] {
        setenv("GPUSM_SOFTCUDA_DELAY_NONBLOCKING_US", "100000", 1);
        start();
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        CUevent late = make_event();
        EXPECT_EQ(CU(cuEventRecord)(late, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(make_stream(CU_STREAM_DEFAULT)), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(nullptr), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuEventQuery)(late), CUDA_ERROR_NOT_READY);
        EXPECT_EQ(CU(cuEventSynchronize)(late), CUDA_SUCCESS);
    });
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
        EXPECT_EQ(CU(cuStreamWaitEvent)(s, e, 0), CUDA_SUCCESS);
    });
}

TEST(SoftcudaStream, ElapsedTimeIsTheTimeBetweenTwoEvents)
{
    alone([] {
        start();
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        CUevent a = make_event(CU_EVENT_DEFAULT);
        CUevent b = make_event(CU_EVENT_DEFAULT);
        float ms = -1;
        gate g;
        EXPECT_EQ(CU(cuEventRecord)(a, s), CUDA_SUCCESS);
        g.close(s);
        EXPECT_EQ(CU(cuEventRecord)(b, s), CUDA_SUCCESS);
        nap();
        EXPECT_EQ(CU(cuEventElapsedTime)(&ms, a, b), CUDA_ERROR_NOT_READY);
        g.open = true;
        EXPECT_EQ(CU(cuEventSynchronize)(b), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuEventElapsedTime)(&ms, a, b), CUDA_SUCCESS);
        EXPECT_GE(ms, 20.0F);
        EXPECT_EQ(CU(cuEventElapsedTime)(&ms, make_event(), b), CUDA_ERROR_INVALID_HANDLE);
    });
}

TEST(SoftcudaStream, ABatchMovesEveryCopyAndRefusesTheLegacyStream)
{
    alone([] {
        start();
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        CUdeviceptr from = allocate(MiB);
        CUdeviceptr to = allocate(MiB);
        store(from, "abcdefgh");
        CUdeviceptr src[] = {from, from + 2, from + 4};
        CUdeviceptr dst[] = {to + 100, to + 200, to + 300};
        size_t len[] = {2, 2, 4};
        struct attributes { // CUmemcpyAttributes, which cuda.h has since CUDA 12.8
            int order = 1;  // of the stream
            int hints[4] = {};
            unsigned flags = 0;
        } how;
        size_t first = 0;
        auto *v13 = symbol<CUresult(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, attributes *,
                                    size_t *, size_t, CUstream)>("cuMemcpyBatchAsync_v2");
        auto *v12 = symbol<CUresult(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, attributes *,
                                    size_t *, size_t, size_t *, CUstream)>("cuMemcpyBatchAsync");
        EXPECT_EQ(v13(dst, src, len, 3, &how, &first, 1, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        EXPECT_EQ(load(to + 100, 2) + load(to + 200, 2) + load(to + 300, 4), "abcdefgh");
        size_t failed = 7;
        EXPECT_EQ(v12(dst, src, len, 3, &how, &first, 1, &failed, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        EXPECT_NE(v13(dst, src, len, 3, &how, &first, 1, nullptr), CUDA_SUCCESS);
        EXPECT_NE(v13(dst, src, len, 3, &how, &first, 0, s), CUDA_SUCCESS);
    });
}

TEST(SoftcudaStream, WordsAreWrittenAndWaitedForInStreamOrder)
{
    alone([] {
        start();
        auto *word = reinterpret_cast<volatile unsigned *>(pinned(64));
        *word = 0;
        auto at = reinterpret_cast<CUdeviceptr>(word);
        CUstream a = make_stream(CU_STREAM_NON_BLOCKING);
        CUstream b = make_stream(CU_STREAM_NON_BLOCKING);
        EXPECT_EQ(CU(cuStreamWaitValue32)(a, at, 5, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamWriteValue32)(a, at + 4, 9, 0), CUDA_SUCCESS);
        nap();
        EXPECT_NE(word[1], 9u);
        EXPECT_EQ(CU(cuStreamWriteValue32)(b, at, 5, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(a), CUDA_SUCCESS);
        EXPECT_EQ(word[1], 9u);
    });
}

TEST(SoftcudaStream, NothingIsEverBeingCaptured)
{
    alone([] {
        start();
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        EXPECT_EQ(CU(cuStreamIsCapturing)(s, &status), CUDA_SUCCESS);
        EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        EXPECT_EQ(CU(cuThreadExchangeStreamCaptureMode)(&mode), CUDA_SUCCESS);
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
        EXPECT_EQ(CU(cuThreadExchangeStreamCaptureMode)(&mode), CUDA_SUCCESS);
        EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    });
}

const char *const add_one = ".version 7.0\n.target sm_50\n.address_size 64\n"
                            ".visible .entry gpusm_softcuda_test_add1(.param .u64 p, .param .u64 "
                            "n)\n{ ret; }\n"
                            ".visible .entry not_written_for_the_cpu()\n{ ret; }\n";

TEST(SoftcudaStream, AKernelIsLaunchedByItsNameAndRunsInStreamOrder)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        CUmodule m = nullptr;
        CUfunction f = nullptr;
        ASSERT_EQ(CU(cuModuleLoadData)(&m, add_one), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuModuleGetFunction)(&f, m, "absent"), CUDA_ERROR_NOT_FOUND);
        EXPECT_EQ(CU(cuModuleGetFunction)(&f, m, "not_written_for_the_cpu"), CUDA_ERROR_NOT_FOUND);
        ASSERT_EQ(CU(cuModuleGetFunction)(&f, m, "gpusm_softcuda_test_add1"), CUDA_SUCCESS);
        CUdeviceptr at = allocate(64);
        unsigned long long count = 4;
        void *arguments[] = {&at, &count};
        CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
        EXPECT_EQ(CU(cuMemsetD32Async)(at, 41, 5, s), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, s, arguments, nullptr), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
        EXPECT_EQ(load(at + 12, 8), std::string("\x2a\0\0\0\x29\0\0\0", 8));
    });
}

TEST(SoftcudaStream, AKernelThatTouchesForeignMemoryPoisonsItsContext)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        CUmodule m = nullptr;
        CUfunction f = nullptr;
        ASSERT_EQ(CU(cuModuleLoadData)(&m, add_one), CUDA_SUCCESS);
        ASSERT_EQ(CU(cuModuleGetFunction)(&f, m, "gpusm_softcuda_test_add1"), CUDA_SUCCESS);
        int on_the_stack[4] = {};
        void *where = on_the_stack;
        unsigned long long count = 4;
        void *arguments[] = {&where, &count};
        EXPECT_EQ(CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr),
                  CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_ERROR_ILLEGAL_ADDRESS);
        CUdeviceptr at = 0;
        EXPECT_EQ(CU(cuMemAlloc)(&at, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

} // namespace
