// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_memory_test.cc: what is refused of each kind of memory, and what happens to it where two
// processes share it: rules of the real driver that the software driver must not be laxer about.
#include "tests/unit/gpu_memory_support.h"

#include <signal.h>
#include <sys/mman.h>

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

constexpr std::size_t chunk = 2 * mib;

TEST(SoftcudaMemory, ADevicePointerCannotBeReadByTheCpu)
{
    for (std::size_t len : {std::size_t(64), 4 * mib}) {
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

ALONE(SoftcudaMemory, ACopyBeyondTheEndIsRefused)
{
    start();
    CUdeviceptr at = allocate(4 * mib);
    std::vector<char> host(8 * mib);
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 4 * mib + 1), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemcpyHtoD)(at, host.data(), 4 * mib));
    OK(CU(cuMemFree)(at));
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, host.data(), 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CU(cuMemFree)(at), CUDA_ERROR_INVALID_VALUE);
}

ALONE(SoftcudaMemory, SmallAllocationsShareABlockAndLargeOnesAreAligned)
{
    start();
    CUdeviceptr a = allocate(100);
    CUdeviceptr b = allocate(100);
    EXPECT_EQ(a / (2 * mib), b / (2 * mib));
    EXPECT_EQ(a % 256, 0u);
    EXPECT_EQ(allocate(2 * mib) % (2 * mib), 0u);
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

// Also as one side of a copy, where all of it must lie in one registration.
ALONE(SoftcudaMemory, HostMemoryIsRegisteredOnceAndAsAWhole)
{
    start();
    const CUdeviceptr device = allocate(8192);
    void *at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(CU(cuMemHostUnregister)(at), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    OK(CU(cuMemHostRegister)(at, 4096, 0));
    EXPECT_EQ(CU(cuMemHostRegister)(at, 8192, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(CU(cuMemcpyDtoH)(at, device, 8192), CUDA_ERROR_INVALID_VALUE);
    OK(CU(cuMemcpyDtoH)(at, device, 4096));
    OK(CU(cuMemHostUnregister)(at));
    OK(CU(cuMemcpyDtoH)(at, device, 8192));
    munmap(at, 8192);
    EXPECT_NE(CU(cuMemHostRegister)(at, 8192, 0), CUDA_SUCCESS);
}

// ---------------------------------------------------------------- virtual memory, pools

// How much of a chunk there device 0 may read and write from now on.
void grant(CUdeviceptr at, CUmemAccess_flags flags)
{
    CUmemAccessDesc d{};
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.flags = flags;
    OK(CU(cuMemSetAccess)(at, chunk, &d, 1));
}

// RANGE_START_ADDR and RANGE_SIZE describe the reservation, the other two what is mapped.
ALONE(SoftcudaVmm, EachPieceHasItsOwnBufferIdAndHandle)
{
    start();
    const CUdeviceptr at = allocate_chunks({-two, two, -two});
    if (soft()) {
        const CUdeviceptr middle = at + chunk + 5;
        EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, middle), at);
        EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, middle), 6 * mib);
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
    const CUdeviceptr at = allocate_chunks({-two});
    if (soft()) {
        EXPECT_EQ(CU(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at),
                  CUDA_ERROR_NOT_SUPPORTED);
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
    const CUdeviceptr at = allocate_chunks({-two});
    char byte = 0;
    grant(at, CU_MEM_ACCESS_FLAGS_PROT_READ);
    const unsigned may = attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at);
    EXPECT_EQ(may, 1u);
    unsigned long long flags = 0;
    CUmemLocation where{};
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(CU(cuMemGetAccess)(&flags, &where, at));
    EXPECT_EQ(flags, 1u);
    OK(CU(cuMemcpyDtoH)(&byte, at, 1));
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    grant(at, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, at, 1), CUDA_ERROR_INVALID_VALUE);
}

ALONE(SoftcudaVmm, OnlyAllocationsMadeForExportAreExported)
{
    start();
    int fd = -1;
    auto type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle h = 0;
    for (const bool exportable : {false, true}) {
        const CUdeviceptr at = allocate_chunks({exportable ? two : -two});
        const auto types =
            attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at);
        EXPECT_EQ(types & 1, exportable ? 1u : 0u);
        OK(CU(cuMemRetainAllocationHandle)(&h, reinterpret_cast<void *>(at + 77)));
        EXPECT_EQ(CU(cuMemExportToShareableHandle)(&fd, h, type, 0),
                  exportable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        OK(CU(cuMemRelease)(h));
    }
    EXPECT_GE(fd, 0);
    EXPECT_NE(CU(cuMemRetainAllocationHandle)(&h, reinterpret_cast<void *>(allocate(64))),
              CUDA_SUCCESS);
}

ALONE(SoftcudaPool, MemoryIsFreedWhenTheStreamGetsThere)
{
    start();
    CUstream s = make_stream(CU_STREAM_NON_BLOCKING);
    for (std::size_t len : {std::size_t(100), 6 * mib}) {
        CUdeviceptr at = 0;
        OK(CU(cuMemAllocAsync)(&at, len, s));
        OK(CU(cuStreamSynchronize)(s));
        EXPECT_NE(buffer_id(at), 0u);
        OK(CU(cuMemFreeAsync)(at, s));
        OK(CU(cuStreamSynchronize)(s));
        unsigned long long id = 0;
        EXPECT_EQ(CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at),
                  CUDA_ERROR_INVALID_VALUE);
    }
}

// ---------------------------------------------------------------- handles that cross processes

// A process that owns an allocation with each of these texts, and sends their handles.
std::function<void(line &)> owner_of(const std::vector<std::string> &texts)
{
    return [=](line &l) {
        start();
        for (const std::string &text : texts) {
            const CUdeviceptr at = allocate(2 * mib);
            store(at, text);
            l.put(export_memory(at));
        }
        l.wait();
    };
}

ALONE(SoftcudaIpc, OwnHandlesGarbageAndEventsOfThisProcessAreRefused)
{
    start();
    CUipcMemHandle h = export_memory(allocate(4 * mib));
    CUdeviceptr at = 0;
    EXPECT_EQ(CU(cuIpcOpenMemHandle)(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_CONTEXT);
    std::memset(&h, 0x5a, sizeof(h));
    EXPECT_NE(CU(cuIpcOpenMemHandle)(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
    CUevent e = make_event();
    CUipcEventHandle of_event{};
    EXPECT_NE(CU(cuIpcGetEventHandle)(&of_event, e), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventCreate)(&e, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
}

TEST(SoftcudaIpc, OpeningAHandleTwiceCountsAndEachNeedsItsClose)
{
    together(owner_of({"x"}), [](line &l) {
        start();
        auto h = l.get<CUipcMemHandle>();
        CUdeviceptr first = import_memory(h);
        CUdeviceptr second = import_memory(h);
        EXPECT_EQ(first, second);
        OK(CU(cuIpcCloseMemHandle)(first));
        EXPECT_EQ(load(first, 1), "x");
        OK(CU(cuIpcCloseMemHandle)(first));
        char byte = 0;
        EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, first, 1), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(CU(cuIpcCloseMemHandle)(first), CUDA_ERROR_INVALID_VALUE);
        l.step();
    });
}

TEST(SoftcudaIpc, AnImportedMappingOutlivesTheFreeAndTheReuseOfItsAddress)
{
    together(
        [](line &l) {
            start();
            CUdeviceptr at = allocate(8 * mib);
            store(at, "old");
            l.put(export_memory(at));
            l.wait();
            OK(CU(cuMemFree)(at));
            CUdeviceptr again = allocate(8 * mib);
            store(again, "new");
            if (soft()) {
                EXPECT_EQ(again, at); // so that caches keyed by the address are wrong
            }
            l.put(export_memory(again));
            l.wait();
        },
        [](line &l) {
            start();
            CUdeviceptr old = import_memory(l.get<CUipcMemHandle>());
            l.step();
            CUdeviceptr young = import_memory(l.get<CUipcMemHandle>());
            EXPECT_NE(old, young);
            EXPECT_EQ(load(old, 3), "old");
            EXPECT_EQ(load(young, 3), "new");
            l.step();
        });
}

TEST(SoftcudaIpc, FreedMemoryStaysTakenUntilTheLastImporterCloses)
{
    constexpr std::size_t len = 512 * mib;
    together(
        [](line &l) {
            start();
            l.wait(); // the other context exists as well
            std::size_t before = free_bytes();
            CUdeviceptr at = allocate(len);
            l.put(export_memory(at));
            l.wait();
            OK(CU(cuMemFree)(at));
            EXPECT_LE(free_bytes(), before - len);
            l.step();
            l.wait(); // closed
            EXPECT_GT(free_bytes(), before - len);
        },
        [](line &l) {
            start();
            l.step();
            CUdeviceptr at = import_memory(l.get<CUipcMemHandle>());
            l.step();
            l.wait(); // freed
            OK(CU(cuIpcCloseMemHandle)(at));
            l.step();
        });
}

// A rule of the driver, seen with 580, which docs/ipc.md builds on.
TEST(SoftcudaIpc, OneContextOfADeviceAtATimeHasMemoryOfAProcessOpen)
{
    together(owner_of({"first", "other"}), [](line &l) {
        const CUcontext first = start();
        const auto one = l.get<CUipcMemHandle>();
        const auto two = l.get<CUipcMemHandle>();
        const CUdeviceptr theirs = import_memory(one);
        const CUcontext second = make_context();
        const CUdeviceptr mine = allocate(2 * mib);
        CUdeviceptr refused = 0;
        for (const CUipcMemHandle &each : {one, two}) {
            EXPECT_EQ(CU(cuIpcOpenMemHandle)(&refused, each, 1), CUDA_ERROR_INVALID_HANDLE);
        }
        OK(CU(cuMemcpyDtoD)(mine, theirs, 5)); // all the same
        EXPECT_EQ(load(mine, 5), "first");
        OK(CU(cuCtxSetCurrent)(first));
        OK(CU(cuIpcCloseMemHandle)(theirs));
        OK(CU(cuCtxSetCurrent)(second));
        const CUdeviceptr opened = import_memory(two);
        EXPECT_EQ(load(opened, 5), "other");
        OK(CU(cuIpcCloseMemHandle)(opened));
        l.step();
    });
}

} // namespace
