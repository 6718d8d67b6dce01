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
    EXPECT_EQ(CU(cuMemSetAccess)(at, len, &d, 1), CUDA_SUCCESS);
}

CUmemGenericAllocationHandle create(bool exportable, std::size_t len = chunk)
{
    CUmemAllocationProp p = properties(exportable);
    CUmemGenericAllocationHandle h = 0;
    EXPECT_EQ(CU(cuMemCreate)(&h, len, &p, 0), CUDA_SUCCESS);
    return h;
}

CUdeviceptr map(const std::vector<CUmemGenericAllocationHandle> &pieces)
{
    CUdeviceptr at = 0;
    EXPECT_EQ(CU(cuMemAddressReserve)(&at, chunk * pieces.size(), 0, 0, 0), CUDA_SUCCESS);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        EXPECT_EQ(CU(cuMemMap)(at + i * chunk, chunk, 0, pieces[i], 0), CUDA_SUCCESS);
    }
    grant(at, chunk * pieces.size(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return at;
}

TEST(SoftcudaVmm, MappedMemoryBehavesAsDeviceMemory)
{
    alone([] {
        start();
        CUmemAllocationProp p = properties(false);
        std::size_t granularity = 0;
        EXPECT_EQ(
            CU(cuMemGetAllocationGranularity)(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
        EXPECT_EQ(granularity, chunk);
        CUmemGenericAllocationHandle h = 0;
        EXPECT_EQ(CU(cuMemCreate)(&h, chunk + 4096, &p, 0), CUDA_ERROR_INVALID_VALUE);
        h = create(false);
        CUdeviceptr at = map({h});
        store(at + 9, "mapped");
        EXPECT_EQ(load(at + 9, 6), "mapped");
        unsigned type = 0;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
                  CUDA_SUCCESS);
        EXPECT_EQ(type, unsigned(CU_MEMORYTYPE_DEVICE));
        CUipcMemHandle legacy{};
        EXPECT_EQ(CU(cuIpcGetMemHandle)(&legacy, at), CUDA_ERROR_INVALID_VALUE);
        bool capable = true;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&capable,
                                            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at),
                  CUDA_SUCCESS);
        EXPECT_FALSE(capable);
        EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS); // the mapping keeps it
        EXPECT_EQ(load(at + 9, 6), "mapped");
        EXPECT_EQ(CU(cuMemUnmap)(at, chunk), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemAddressFree)(at, chunk), CUDA_SUCCESS);
    });
}

TEST(SoftcudaVmm, ARangeOfSeveralPiecesIsCopiedAsOne)
{
    alone([] {
        start();
        CUdeviceptr at = map({create(false), create(false), create(false)});
        std::string bytes(2 * chunk, 'b');
        bytes.front() = 'a';
        bytes.back() = 'c';
        store(at + chunk / 2, bytes);
        EXPECT_TRUE(load(at + chunk / 2, bytes.size()) == bytes);
        CUdeviceptr base = 0;
        std::size_t len = 0;
        EXPECT_EQ(CU(cuMemGetAddressRange)(&base, &len, at + chunk + 5), CUDA_SUCCESS);
        if (soft()) {
            EXPECT_EQ(base, at + chunk);
            EXPECT_EQ(len, chunk);
        } else {
            RecordProperty("base", std::to_string(base - at));
            RecordProperty("len", std::to_string(len));
            std::printf("address range in the middle piece: +%llu, %zu\n", base - at, len);
        }
    });
}

// RANGE_START_ADDR and RANGE_SIZE describe the reservation, the other two what is mapped.
TEST(SoftcudaVmm, EachPieceHasItsOwnBufferIdAndHandle)
{
    alone([] {
        start();
        const CUdeviceptr at = map({create(false), create(true), create(false)});
        CUdeviceptr from = 0;
        std::size_t len = 0;
        EXPECT_EQ(
            CU(cuPointerGetAttribute)(&from, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + chunk + 5),
            CUDA_SUCCESS);
        EXPECT_EQ(CU(cuPointerGetAttribute)(&len, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + chunk + 5),
                  CUDA_SUCCESS);
        if (soft()) {
            EXPECT_EQ(from, at);
            EXPECT_EQ(len, 3 * chunk);
        } else {
            std::printf("range of the middle piece: +%lld, %zu\n",
                        static_cast<long long>(from - at), len);
        }
        EXPECT_NE(buffer_id(at), buffer_id(at + chunk));
        EXPECT_EQ(buffer_id(at), buffer_id(at + chunk - 1));
        CUmemGenericAllocationHandle handles[3] = {};
        for (const std::size_t i : {0, 1, 2}) {
            const CUdeviceptr in_chunk = at + chunk / 2 + i * (chunk / 2 - 1);
            EXPECT_EQ(
                CU(cuMemRetainAllocationHandle)(&handles[i], reinterpret_cast<void *>(in_chunk)),
                CUDA_SUCCESS);
        }
        EXPECT_EQ(handles[0], handles[1]) << "one chunk, one handle";
        EXPECT_NE(handles[1], handles[2]);
    });
}

// What a program writes into such memory by a synchronous copy may be on its way when that returns.
TEST(SoftcudaVmm, OnlyAWholeContextCanBeMarkedForSynchronousCopies)
{
    alone([] {
        start();
        const unsigned on = 1;
        const CUdeviceptr at = map({create(false)});
        const CUresult answer =
            CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
        if (soft()) {
            EXPECT_EQ(answer, CUDA_ERROR_NOT_SUPPORTED);
        } else {
            std::printf("marking VMM memory: %d\n", static_cast<int>(answer));
        }
        EXPECT_EQ(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, allocate(64)),
                  CUDA_SUCCESS);
        constexpr unsigned sync_memops = 0x80;
        unsigned flags = 0;
        EXPECT_EQ(CU(cuCtxGetFlags)(&flags), CUDA_SUCCESS);
        EXPECT_EQ(flags & sync_memops, 0u);
        EXPECT_EQ(symbol<CUresult(unsigned)>("cuCtxSetFlags")(flags | sync_memops), CUDA_SUCCESS);
        unsigned now = 0;
        EXPECT_EQ(CU(cuCtxGetFlags)(&now), CUDA_SUCCESS);
        EXPECT_EQ(now, flags | sync_memops);
    });
}

TEST(SoftcudaVmm, AccessIsNeededAndIsRemembered)
{
    NEEDS_SOFTCUDA();
    alone([] {
        start();
        CUdeviceptr at = map({create(false)});
        char byte = 0;
        grant(at, chunk, CU_MEM_ACCESS_FLAGS_PROT_READ);
        unsigned may = 0;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&may, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at),
                  CUDA_SUCCESS);
        EXPECT_EQ(may, 1u);
        unsigned long long flags = 0;
        CUmemLocation where{};
        where.type = CU_MEM_LOCATION_TYPE_DEVICE;
        EXPECT_EQ(CU(cuMemGetAccess)(&flags, &where, at), CUDA_SUCCESS);
        EXPECT_EQ(flags, 1u);
        EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, at, 1), CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemcpyHtoD)(at, &byte, 1), CUDA_ERROR_INVALID_VALUE);
        grant(at, chunk, CU_MEM_ACCESS_FLAGS_PROT_NONE);
        EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, at, 1), CUDA_ERROR_INVALID_VALUE);
    });
}

TEST(SoftcudaVmm, OnlyAllocationsMadeForExportAreExported)
{
    alone([] {
        start();
        int fd = -1;
        auto type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        EXPECT_EQ(CU(cuMemExportToShareableHandle)(&fd, create(false), type, 0),
                  CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(CU(cuMemExportToShareableHandle)(&fd, create(true), type, 0), CUDA_SUCCESS);
        EXPECT_GE(fd, 0);
        CUdeviceptr at = map({create(true)});
        unsigned long long types = 0;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at),
                  CUDA_SUCCESS);
        EXPECT_EQ(types & 1, 1u);
        CUmemGenericAllocationHandle h = 0;
        EXPECT_EQ(CU(cuMemRetainAllocationHandle)(&h, reinterpret_cast<void *>(at + 77)),
                  CUDA_SUCCESS);
        EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
        EXPECT_NE(CU(cuMemRetainAllocationHandle)(&h, reinterpret_cast<void *>(allocate(64))),
                  CUDA_SUCCESS);
    });
}

TEST(SoftcudaVmm, ADescriptorGivesTheSameMemoryToAnotherProcess)
{
    together(
        [](line &l) {
            start();
            CUmemGenericAllocationHandle h = create(true);
            CUdeviceptr at = map({h});
            store(at, "through a descriptor");
            int fd = -1;
            ASSERT_EQ(CU(cuMemExportToShareableHandle)(&fd, h,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                      CUDA_SUCCESS);
            l.put_fd(fd);
            close(fd);
            l.wait();
            EXPECT_EQ(load(at, 4), "back");
            // Given up here, it lives on there.
            EXPECT_EQ(CU(cuMemUnmap)(at, chunk), CUDA_SUCCESS);
            EXPECT_EQ(CU(cuMemRelease)(h), CUDA_SUCCESS);
            l.step();
            l.wait();
        },
        [](line &l) {
            start();
            int fd = l.get_fd();
            CUmemGenericAllocationHandle h = 0;
            ASSERT_EQ(CU(cuMemImportFromShareableHandle)(
                          &h, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                      CUDA_SUCCESS);
            close(fd);
            CUmemAllocationProp p{};
            EXPECT_EQ(CU(cuMemGetAllocationPropertiesFromHandle)(&p, h), CUDA_SUCCESS);
            EXPECT_EQ(p.location.id, 0);
            CUdeviceptr at = map({h});
            EXPECT_EQ(load(at, 20), "through a descriptor");
            store(at, "back");
            l.step();
            l.wait();
            EXPECT_EQ(load(at, 4), "back");
            l.step();
        });
}

TEST(SoftcudaVmm, AFileThatIsNotMemoryIsNotImported)
{
    NEEDS_SOFTCUDA(); // the real driver may not survive it
    alone([] {
        start();
        CUmemGenericAllocationHandle h = 0;
        for (intptr_t fd : {intptr_t(0), intptr_t(-1), intptr_t(12345)}) {
            EXPECT_NE(CU(cuMemImportFromShareableHandle)(&h, reinterpret_cast<void *>(fd),
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                      CUDA_SUCCESS);
        }
    });
}

TEST(SoftcudaPool, MemoryIsFreedWhenTheStreamGetsThere)
{
    alone([] {
        start();
        CUstream s = nullptr;
        ASSERT_EQ(CU(cuStreamCreate)(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        for (std::size_t len : {std::size_t(100), 3 * chunk}) {
            CUdeviceptr at = 0;
            ASSERT_EQ(CU(cuMemAllocAsync)(&at, len, s), CUDA_SUCCESS);
            EXPECT_EQ(CU(cuMemsetD8Async)(at, 'p', len, s), CUDA_SUCCESS);
            EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
            EXPECT_EQ(load(at + len - 1, 1), "p");
            CUmemoryPool mine = nullptr;
            CUmemoryPool standard = nullptr;
            EXPECT_EQ(CU(cuPointerGetAttribute)(&mine, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at),
                      CUDA_SUCCESS);
            EXPECT_EQ(CU(cuDeviceGetDefaultMemPool)(&standard, 0), CUDA_SUCCESS);
            EXPECT_EQ(mine, standard);
            EXPECT_NE(buffer_id(at), 0u);
            EXPECT_EQ(CU(cuMemFreeAsync)(at, s), CUDA_SUCCESS);
            EXPECT_EQ(CU(cuStreamSynchronize)(s), CUDA_SUCCESS);
            unsigned long long id = 0;
            EXPECT_EQ(CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at),
                      CUDA_ERROR_INVALID_VALUE);
        }
        CUdeviceptr plain = allocate(64);
        CUmemoryPool none = nullptr;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&none, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain),
                  CUDA_SUCCESS);
        EXPECT_EQ(none, nullptr);
    });
}

TEST(SoftcudaPool, AnExportedPoolGivesItsPointersToAnotherProcess)
{
    together(
        [](line &l) {
            start();
            CUmemPoolProps p{};
            p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
            p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            CUmemoryPool pool = nullptr;
            ASSERT_EQ(CU(cuMemPoolCreate)(&pool, &p), CUDA_SUCCESS);
            int fd = -1;
            ASSERT_EQ(CU(cuMemPoolExportToShareableHandle)(
                          &fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                      CUDA_SUCCESS);
            l.put_fd(fd);
            CUdeviceptr at = 0;
            ASSERT_EQ(CU(cuMemAllocFromPoolAsync)(&at, 5000, pool, nullptr), CUDA_SUCCESS);
            store(at, "pooled");
            CUmemPoolPtrExportData data{};
            ASSERT_EQ(CU(cuMemPoolExportPointer)(&data, at), CUDA_SUCCESS);
            l.put(data);
            l.wait();
            CUmemoryPool standard = nullptr;
            CUdeviceptr other = 0;
            ASSERT_EQ(CU(cuDeviceGetDefaultMemPool)(&standard, 0), CUDA_SUCCESS);
            ASSERT_EQ(CU(cuMemAllocAsync)(&other, 5000, nullptr), CUDA_SUCCESS);
            EXPECT_NE(CU(cuMemPoolExportPointer)(&data, other), CUDA_SUCCESS);
        },
        [](line &l) {
            start();
            int fd = l.get_fd();
            CUmemoryPool pool = nullptr;
            ASSERT_EQ(CU(cuMemPoolImportFromShareableHandle)(
                          &pool, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                      CUDA_SUCCESS);
            auto data = l.get<CUmemPoolPtrExportData>();
            CUdeviceptr at = 0;
            ASSERT_EQ(CU(cuMemPoolImportPointer)(&at, pool, &data), CUDA_SUCCESS);
            EXPECT_EQ(load(at, 6), "pooled");
            EXPECT_EQ(CU(cuMemFree)(at), CUDA_SUCCESS);
            l.step();
        });
}

} // namespace
