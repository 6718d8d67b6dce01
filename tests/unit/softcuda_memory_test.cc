// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_memory_test.cc: what an address means, alone in one process.
#include "softcuda_support.h"

#include <signal.h>
#include <sys/mman.h>

using namespace softcuda_test;

namespace {

constexpr std::size_t MiB = 1 << 20;
constexpr std::size_t device_bytes = 16384 * MiB; // of the software driver

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

ALONE(SoftcudaMemory, BytesComeBackThroughEveryCopyFunction)
{
    start();
    CUdeviceptr a = allocate(MiB);
    CUdeviceptr b = allocate(4 * MiB);
    store(a, "0123456789");
    OK(CU(cuMemcpyDtoD)(b + 3, a + 2, 5));
    EXPECT_EQ(load(b + 3, 5), "23456");
    OK(CU(cuMemcpy)(b, a, 10));
    EXPECT_EQ(load(b, 10), "0123456789");
    OK(CU(cuMemsetD8)(b, 'z', 4));
    EXPECT_EQ(load(b, 10), "zzzz456789");
    char host[10] = {};
    OK(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(host), a, 10));
    EXPECT_EQ(std::string(host, 10), "0123456789");
}

ALONE(SoftcudaMemory, ACopyBeyondTheEndIsRefused)
{
    start();
    CUdeviceptr at = allocate(4 * MiB);
    std::vector<char> host(8 * MiB);
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 4 * MiB + 1), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemcpyHtoD)(at, host.data(), 4 * MiB));
    OK(CU(cuMemFree)(at));
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemFree)(at), CUDA_ERROR_INVALID_VALUE);
}

ALONE(SoftcudaMemory, AddressRangeAndAttributesNameTheAllocation)
{
    CUcontext ctx = start();
    for (std::size_t len : {std::size_t(1000), 3 * MiB}) {
        CUdeviceptr at = allocate(len);
        CUdeviceptr base = 0;
        std::size_t got = 0;
        OK(CU(cuMemGetAddressRange)(&base, &got, at + 100));
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
}

ALONE(SoftcudaMemory, SmallAllocationsShareABlockAndLargeOnesAreAligned)
{
    start();
    CUdeviceptr a = allocate(100);
    CUdeviceptr b = allocate(100);
    EXPECT_EQ(a / (2 * MiB), b / (2 * MiB));
    EXPECT_EQ(a % 256, 0u);
    EXPECT_EQ(allocate(2 * MiB) % (2 * MiB), 0u);
}

ALONE(SoftcudaMemory, AnUnknownAddressIsAnErrorAloneAndZeroInAList)
{
    start();
    int on_the_stack = 0;
    auto at = reinterpret_cast<CUdeviceptr>(&on_the_stack);
    unsigned type = 77;
    EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
              CUDA_ERROR_INVALID_VALUE);
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    void *out[] = {&type};
    OK(CU(cuPointerGetAttributes)(1, what, out, at));
    EXPECT_EQ(type, 0u);
}

SOFT_ALONE(SoftcudaMemory, ADeviceHasNoMoreThanItsMemory)
{
    start();
    CUdeviceptr at = 0;
    CUdeviceptr more = 0;
    EXPECT_EQ(CU(cuMemAlloc)(&at, device_bytes + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(CU(cuMemAlloc)(&at, device_bytes)); // costs nothing until written
    EXPECT_EQ(CU(cuMemAlloc)(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(CU(cuMemFree)(at));
    OK(CU(cuMemAlloc)(&more, 1));
}

ALONE(SoftcudaMemory, ManagedMemoryIsForBoth)
{
    start();
    CUdeviceptr at = 0;
    OK(CU(cuMemAllocManaged)(&at, 4096, CU_MEM_ATTACH_GLOBAL));
    EXPECT_EQ(attribute<bool>(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), true);
    OK(CU(cuMemsetD8)(at, 'm', 4096));
    OK(CU(cuCtxSynchronize)());
    EXPECT_EQ(reinterpret_cast<char *>(at)[4095], 'm');
    OK(CU(cuMemFree)(at));
}

ALONE(SoftcudaMemory, HostRegistrationIsRememberedAndOverlapsAreRefused)
{
    start();
    void *at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto address = reinterpret_cast<CUdeviceptr>(at);
    EXPECT_EQ(CU(cuMemHostUnregister)(at), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(CU(cuMemHostRegister)(at, 8192, CU_MEMHOSTREGISTER_PORTABLE));
    EXPECT_EQ(CU(cuMemHostRegister)(at, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 100),
              unsigned(CU_MEMORYTYPE_HOST));
    CUdeviceptr device = 0;
    OK(CU(cuMemHostGetDevicePointer)(&device, at, 0));
    EXPECT_EQ(device, address);
    OK(CU(cuMemHostUnregister)(at));
    munmap(at, 8192);
    EXPECT_NE(CU(cuMemHostRegister)(at, 8192, 0), CUDA_SUCCESS);
}

ALONE(SoftcudaMemory, ACopyWhoseHostSideIsRegisteredInPartsIsRefused)
{
    start();
    CUdeviceptr device = allocate(8192);
    void *at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OK(CU(cuMemHostRegister)(at, 4096, 0));
    EXPECT_EQ(CU(cuMemcpyDtoH)(at, device, 8192), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemcpyDtoH)(at, device, 4096));
    OK(CU(cuMemHostUnregister)(at));
    OK(CU(cuMemcpyDtoH)(at, device, 8192));
    munmap(at, 8192);
}

} // namespace
