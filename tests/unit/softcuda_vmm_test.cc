// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_vmm_test.cc: virtual memory management and pools.
#include "softcuda_support.h"

using namespace softcuda_test;

namespace {

constexpr std::size_t chunk = 2 << 20;

CUmemAllocationProp properties(bool exportable, int device = 0)
{
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    p.requestedHandleTypes =
        exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return p;
}

void grant(CUdeviceptr at, std::size_t len, CUmemAccess_flags flags, int device = 0)
{
    CUmemAccessDesc d{};
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.location.id = device;
    d.flags = flags;
    OK(CU(cuMemSetAccess)(at, len, &d, 1));
}

CUmemGenericAllocationHandle create(bool exportable, std::size_t len = chunk)
{
    CUmemAllocationProp p = properties(exportable);
    CUmemGenericAllocationHandle h = 0;
    OK(CU(cuMemCreate)(&h, len, &p, 0));
    return h;
}

CUdeviceptr map(const std::vector<CUmemGenericAllocationHandle> &pieces)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAddressReserve)(&at, chunk * pieces.size(), 0, 0, 0));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        OK(CU(cuMemMap)(at + i * chunk, chunk, 0, pieces[i], 0));
    }
    grant(at, chunk * pieces.size(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return at;
}

ALONE(SoftcudaVmm, LengthsAreMultiplesOfTheGranularity)
{
    start();
    const CUmemAllocationProp p = properties(false);
    std::size_t granularity = 0;
    CUmemGenericAllocationHandle h = 0;
    OK(CU(cuMemGetAllocationGranularity)(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT_EQ(granularity, chunk);
    EXPECT_EQ(CU(cuMemCreate)(&h, chunk + 4096, &p, 0), CUDA_ERROR_INVALID_VALUE);
}

// RANGE_START_ADDR and RANGE_SIZE describe the reservation, the other two what is mapped.
ALONE(SoftcudaVmm, EachPieceHasItsOwnBufferIdAndHandle)
{
    start();
    const CUdeviceptr at = map({create(false), create(true), create(false)});
    CUdeviceptr from = 0;
    std::size_t len = 0;
    OK(CU(cuPointerGetAttribute)(&from, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + chunk + 5));
    OK(CU(cuPointerGetAttribute)(&len, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + chunk + 5));
    if (soft()) {
        EXPECT_EQ(from, at);
        EXPECT_EQ(len, 3 * chunk);
    } else {
        std::printf("range of the middle piece: +%lld, %zu\n", static_cast<long long>(from - at),
                    len);
    }
    EXPECT_NE(buffer_id(at), buffer_id(at + chunk));
    EXPECT_EQ(buffer_id(at), buffer_id(at + chunk - 1));
    CUmemGenericAllocationHandle handles[3] = {};
    for (const std::size_t i : {0, 1, 2}) {
        const CUdeviceptr in_chunk = at + chunk / 2 + i * (chunk / 2 - 1);
        OK(CU(cuMemRetainAllocationHandle)(&handles[i], reinterpret_cast<void *>(in_chunk)));
    }
    EXPECT_EQ(handles[0], handles[1]) << "one chunk, one handle";
    EXPECT_NE(handles[1], handles[2]);
}

// What a program writes into such memory by a synchronous copy may be on its way when that returns.
ALONE(SoftcudaVmm, OnlyAWholeContextCanBeMarkedForSynchronousCopies)
{
    start();
    const unsigned on = 1;
    const CUdeviceptr at = map({create(false)});
    const CUresult answer = CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
    if (soft()) {
        EXPECT_EQ(answer, CUDA_ERROR_NOT_SUPPORTED);
    } else {
        std::printf("marking VMM memory: %d\n", static_cast<int>(answer));
    }
    OK(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, allocate(64)));
    constexpr unsigned sync_memops = 0x80;
    unsigned flags = 0;
    OK(CU(cuCtxGetFlags)(&flags));
    EXPECT_EQ(flags & sync_memops, 0u);
    OK(symbol<CUresult(unsigned)>("cuCtxSetFlags")(flags | sync_memops));
    unsigned now = 0;
    OK(CU(cuCtxGetFlags)(&now));
    EXPECT_EQ(now, flags | sync_memops);
}

SOFT_ALONE(SoftcudaVmm, AccessIsNeededAndIsRemembered)
{
    start();
    CUdeviceptr at = map({create(false)});
    char byte = 0;
    grant(at, chunk, CU_MEM_ACCESS_FLAGS_PROT_READ);
    const unsigned may = attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at);
    EXPECT_EQ(may, 1u);
    unsigned long long flags = 0;
    CUmemLocation where{};
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(CU(cuMemGetAccess)(&flags, &where, at));
    EXPECT_EQ(flags, 1u);
    OK(CU(cuMemcpyDtoH)(&byte, at, 1));
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    grant(at, chunk, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, at, 1), CUDA_ERROR_INVALID_VALUE);
}

ALONE(SoftcudaVmm, OnlyAllocationsMadeForExportAreExported)
{
    start();
    int fd = -1;
    auto type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    EXPECT_EQ(CU(cuMemExportToShareableHandle)(&fd, create(false), type, 0),
              CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemExportToShareableHandle)(&fd, create(true), type, 0));
    EXPECT_GE(fd, 0);
    CUdeviceptr at = map({create(true)});
    const unsigned long long types =
        attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at);
    EXPECT_EQ(types & 1, 1u);
    CUmemGenericAllocationHandle h = 0;
    OK(CU(cuMemRetainAllocationHandle)(&h, reinterpret_cast<void *>(at + 77)));
    OK(CU(cuMemRelease)(h));
    EXPECT_NE(CU(cuMemRetainAllocationHandle)(&h, reinterpret_cast<void *>(allocate(64))),
              CUDA_SUCCESS);
}

ALONE(SoftcudaPool, MemoryIsFreedWhenTheStreamGetsThere)
{
    start();
    CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
    for (std::size_t len : {std::size_t(100), 3 * chunk}) {
        CUdeviceptr at = 0;
        OK(CU(cuMemAllocAsync)(&at, len, s));
        OK(CU(cuMemsetD8Async)(at, 'p', len, s));
        OK(CU(cuStreamSynchronize)(s));
        EXPECT_EQ(load(at + len - 1, 1), "p");
        const CUmemoryPool mine = attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
        EXPECT_NE(mine, nullptr);
        EXPECT_NE(buffer_id(at), 0u);
        OK(CU(cuMemFreeAsync)(at, s));
        OK(CU(cuStreamSynchronize)(s));
        unsigned long long id = 0;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at),
                  CUDA_ERROR_INVALID_VALUE);
    }
    CUdeviceptr plain = allocate(64);
    const CUmemoryPool none = attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain);
    EXPECT_EQ(none, nullptr);
}

} // namespace
