// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_memory_test.cc: what an address means, alone in one process.
#include "softcuda_support.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <chrono>

using namespace softcuda_test;

namespace {

constexpr std::size_t MiB = 1 << 20;

template <class T> T attribute(CUpointer_attribute what, CUdeviceptr at)
{
    T value{};
    EXPECT_EQ(CU(cuPointerGetAttribute)(&value, what, at), CUDA_SUCCESS);
    return value;
}

TEST(SoftcudaMemory, ADevicePointerCannotBeReadByTheCpu)
{
    for (std::size_t len : {std::size_t(64), 4 * MiB}) {
        pid_t pid = child([len] {
            start();
            CUdeviceptr at = allocate(len);
            volatile char *p = reinterpret_cast<volatile char *>(at);
            signal(SIGSEGV, SIG_DFL);
            _exit(*p);
        });
        int status = status_of(pid);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
    }
}

TEST(SoftcudaMemory, BytesComeBackThroughEveryCopyFunction)
{
    alone([] {
        start();
        CUdeviceptr a = allocate(MiB);
        CUdeviceptr b = allocate(4 * MiB);
        store(a, "0123456789");
        EXPECT_EQ(CU(cuMemcpyDtoD)(b + 3, a + 2, 5), CUDA_SUCCESS);
        EXPECT_EQ(load(b + 3, 5), "23456");
        EXPECT_EQ(CU(cuMemcpy)(b, a, 10), CUDA_SUCCESS);
        EXPECT_EQ(load(b, 10), "0123456789");
        EXPECT_EQ(CU(cuMemsetD8)(b, 'z', 4), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemsetD32)(b + 4, 0x41424344, 1), CUDA_SUCCESS);
        EXPECT_EQ(load(b, 10), "zzzzDCBA89");
        char host[10] = {};
        EXPECT_EQ(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(host), a, 10), CUDA_SUCCESS);
        EXPECT_EQ(std::string(host, 10), "0123456789");
        CUDA_MEMCPY2D c{};
        c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        c.srcDevice = a;
        c.srcPitch = 5;
        c.dstMemoryType = CU_MEMORYTYPE_HOST;
        c.dstHost = host;
        c.dstPitch = 3;
        c.WidthInBytes = 3;
        c.Height = 2;
        EXPECT_EQ(CU(cuMemcpy2D)(&c), CUDA_SUCCESS);
        EXPECT_EQ(std::string(host, 6), "012567");
    });
}

TEST(SoftcudaMemory, TheBufferIdChangesOnReuseAndFailsOnceFreed)
{
    alone([] {
        start();
        CUdeviceptr at = allocate(8 * MiB);
        unsigned long long first = buffer_id(at);
        EXPECT_EQ(buffer_id(at + MiB), first);
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
        unsigned long long id = 0;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at),
                  CUDA_ERROR_INVALID_VALUE);
        CUdeviceptr again = allocate(8 * MiB);
        EXPECT_NE(buffer_id(again), first);
        if (soft()) {
            EXPECT_EQ(again, at);
        }
    });
}

TEST(SoftcudaMemory, ACopyBeyondTheEndIsRefused)
{
    alone([] {
        start();
        CUdeviceptr at = allocate(4 * MiB);
        std::vector<char> host(8 * MiB);
        EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 4 * MiB + 1), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 4 * MiB), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 16), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_ERROR_INVALID_VALUE);
    });
}

TEST(SoftcudaMemory, AddressRangeAndAttributesNameTheAllocation)
{
    alone([] {
        CUcontext ctx = start();
        for (std::size_t len : {std::size_t(1000), 3 * MiB}) {
            CUdeviceptr at = allocate(len);
            CUdeviceptr base = 0;
            std::size_t got = 0;
            EXPECT_EQ(CU(cuMemGetAddressRange)(&base, &got, at + 100), CUDA_SUCCESS);
            EXPECT_EQ(base, at);
            EXPECT_EQ(got, len);
            EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 100), at);
            EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 100), len);
            EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
                      unsigned(CU_MEMORYTYPE_DEVICE));
            EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, at), ctx);
            EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 0);
            EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at + 7), at + 7);
            EXPECT_EQ(attribute<bool>(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), false);
            EXPECT_EQ(attribute<bool>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), true);
            void *host = nullptr;
            EXPECT_EQ(CU(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, at),
                      CUDA_ERROR_INVALID_VALUE);
        }
    });
}

TEST(SoftcudaMemory, SmallAllocationsShareABlockAndLargeOnesAreAligned)
{
    alone([] {
        start();
        CUdeviceptr a = allocate(100);
        CUdeviceptr b = allocate(100);
        EXPECT_EQ(a / (2 * MiB), b / (2 * MiB));
        EXPECT_EQ(a % 256, 0u);
        EXPECT_EQ(allocate(2 * MiB) % (2 * MiB), 0u);
    });
}

TEST(SoftcudaMemory, AnUnknownAddressIsAnErrorAloneAndZeroInAList)
{
    alone([] {
        start();
        int on_the_stack = 0;
        auto at = reinterpret_cast<CUdeviceptr>(&on_the_stack);
        unsigned type = 77;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
                  CUDA_ERROR_INVALID_VALUE);
        CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
        void *out[] = {&type};
        EXPECT_EQ(CU(cuPointerGetAttributes)(1, what, out, at), CUDA_SUCCESS);
        EXPECT_EQ(type, 0u);
    });
}

TEST(SoftcudaMemory, PointerAttributesNeedNoCurrentContext)
{
    alone([] {
        start();
        CUdeviceptr at = allocate(64);
        EXPECT_EQ(CU(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
        EXPECT_NE(buffer_id(at), 0u);
    });
}

TEST(SoftcudaMemory, FourGibibytesCostNothingUntilWritten)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        auto begin = std::chrono::steady_clock::now();
        CUdeviceptr at = allocate(std::size_t(4) << 30);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
        store(at + (std::size_t(3) << 30), "far");
        EXPECT_EQ(load(at + (std::size_t(3) << 30), 3), "far");
        rusage use{};
        getrusage(RUSAGE_SELF, &use);
        EXPECT_LT(use.ru_maxrss, 200 << 10); // KiB
    });
}

TEST(SoftcudaMemory, ADeviceHasNoMoreThanItsMemory)
{
    NEEDS_SOFTCUDA();
    alone([] {
        setenv("GPUSM_SOFTCUDA_MEMORY_MB", "64", 1);
        setenv("GPUSM_SOFTCUDA_DIR", "/nonexistent", 1); // count for this process alone
        start();
        CUdeviceptr at = 0;
        EXPECT_EQ(CU(cuMemAlloc)(&at, 65 * MiB), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(CU(cuMemAlloc)(&at, 64 * MiB), CUDA_SUCCESS);
        CUdeviceptr more = 0;
        EXPECT_EQ(CU(cuMemAlloc)(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemAlloc)(&more, 1), CUDA_SUCCESS);
    });
}

TEST(SoftcudaMemory, ManagedMemoryIsForBoth)
{
    alone([] {
        start();
        CUdeviceptr at = 0;
        ASSERT_EQ(CU(cuMemAllocManaged)(&at, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
        EXPECT_EQ(attribute<bool>(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), true);
        EXPECT_EQ(CU(cuMemsetD8)(at, 'm', 4096), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
        EXPECT_EQ(reinterpret_cast<char *>(at)[4095], 'm');
        EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
    });
}

TEST(SoftcudaMemory, HostRegistrationIsRememberedAndOverlapsAreRefused)
{
    alone([] {
        start();
        void *at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        auto address = reinterpret_cast<CUdeviceptr>(at);
        EXPECT_EQ(CU(cuMemHostUnregister)(at), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        EXPECT_EQ(CU(cuMemHostRegister)(at, 8192, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemHostRegister)(at, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 100),
                  unsigned(CU_MEMORYTYPE_HOST));
        CUdeviceptr device = 0;
        EXPECT_EQ(CU(cuMemHostGetDevicePointer)(&device, at, 0), CUDA_SUCCESS);
        EXPECT_EQ(device, address);
        EXPECT_EQ(CU(cuMemHostUnregister)(at), CUDA_SUCCESS);
        munmap(at, 8192);
        EXPECT_NE(CU(cuMemHostRegister)(at, 8192, 0), CUDA_SUCCESS);
    });
}

TEST(SoftcudaMemory, ACopyWhoseHostSideIsRegisteredInPartsIsRefused)
{
    alone([] {
        start();
        CUdeviceptr device = allocate(8192);
        void *at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_EQ(CU(cuMemHostRegister)(at, 4096, 0), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyDtoH)(at, device, 8192), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(CU(cuMemcpyDtoH)(at, device, 4096), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemHostUnregister)(at), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyDtoH)(at, device, 8192), CUDA_SUCCESS);
        munmap(at, 8192);
    });
}

TEST(SoftcudaMemory, CopiesBetweenDevicesGoByAddressAlone)
{
    NEEDS_DEVICES(2);
    alone([] {
        start(1);
        CUdeviceptr there = allocate(4 * MiB);
        store(there, "there");
        start(0);
        CUdeviceptr here = allocate(4 * MiB);
        EXPECT_EQ(CU(cuMemcpyDtoD)(here, there, 5), CUDA_SUCCESS);
        EXPECT_EQ(load(here, 5), "there");
        EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there), 1);
    });
}

TEST(SoftcudaMemory, SixtyFourMebibytesMoveAtMemorySpeed)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        CUdeviceptr a = allocate(64 * MiB);
        CUdeviceptr b = allocate(64 * MiB);
        double best_s = 1e9;
        for (int i = 0; i < 4; ++i) { // the first pays the page faults
            auto begin = std::chrono::steady_clock::now();
            EXPECT_EQ(CU(cuMemcpyDtoD)(b, a, 64 * MiB), CUDA_SUCCESS);
            EXPECT_EQ(CU(cuCtxSynchronize)(), CUDA_SUCCESS);
            best_s = std::min(
                best_s,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
        RecordProperty("GBps", std::to_string(64.0 / 1024 / best_s));
        EXPECT_LT(best_s, 2.0); // a busy machine; alone it is some 20 ms
    });
}

} // namespace
