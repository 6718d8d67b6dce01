// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_test.cc: rules of the real driver that the software driver must not be laxer about, and
// that no other test would miss: who may call when; that work runs late; what is refused of memory,
// and what happens to it where two processes share it; what a stream capture does not survive.
#include "tests/unit/gpu_memory_support.h"

#include <signal.h>
#include <sys/mman.h>

#include <chrono>
#include <thread>

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

ALONE(SoftcudaCall, NothingWorksBeforeInitInAForkedChildAndWhenThePrimaryContextIsReleased)
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
    OK(CU(cuDevicePrimaryCtxRelease)(0));
    EXPECT_NE(CU(cuMemAlloc)(&at, 16), CUDA_SUCCESS);
}

SOFT_ALONE(SoftcudaCall, VisibleDevicesAreRenumberedAndKeepTheirUuids)
{
    setenv("GPUSM_SOFTCUDA_DEVICES", "4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    start();
    int n = 0;
    OK(CU(cuDeviceGetCount)(&n));
    EXPECT_EQ(n, 2);
    for (const int ordinal : {0, 1}) {
        CUuuid uuid{};
        OK(CU(cuDeviceGetUuid)(&uuid, ordinal));
        EXPECT_EQ(uuid.bytes[15], 3 - 2 * ordinal);
    }
}

SOFT_ALONE(SoftcudaCall, InstancesOfAGpuHaveUuidsThatOnlyTheNewerFunctionTells)
{
    setenv("GPUSM_SOFTCUDA_INSTANCES", "1", 1);
    start();
    const auto uuid_of = [](const char *name, CUdevice ordinal) {
        using function = CUresult(CUuuid *, CUdevice);
        CUuuid uuid{};
        OK(symbol<function>(name)(&uuid, ordinal));
        return std::string(uuid.bytes, sizeof(uuid.bytes));
    };
    EXPECT_EQ(uuid_of("cuDeviceGetUuid", 0), uuid_of("cuDeviceGetUuid", 1));
    EXPECT_NE(uuid_of("cuDeviceGetUuid_v2", 0), uuid_of("cuDeviceGetUuid_v2", 1));
}

SOFT_ALONE(SoftcudaMemory, NoTwoRegistrationsHaveAPartOfOnePageWhereThatIsAskedFor)
{
    setenv("GPUSM_SOFTCUDA_PAGE_BYTES", "65536", 1);
    start();
    char *pages = static_cast<char *>(std::aligned_alloc(65536, 3 * 65536));
    OK(CU(cuMemHostRegister)(pages + 65536, 4096, 0));
    EXPECT_EQ(CU(cuMemHostRegister)(pages + 65536 + 8192, 4096, 0),
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(CU(cuMemHostRegister)(pages + 65536 - 1, 1 + 2, 0),
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(CU(cuMemHostRegister)(pages, 65536, 0));
    OK(CU(cuMemHostRegister)(pages + 2 * 65536, 65536, 0));
    OK(CU(cuMemHostUnregister)(pages + 65536));
    OK(CU(cuMemHostRegister)(pages + 65536 + 8192, 4096, 0));
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

ALONE(SoftcudaMemory, SmallAllocationsShareABlockAndLargeOnesAreAligned)
{
    start();
    const CUdeviceptr at = allocate(100);
    EXPECT_EQ(at % 256, 0u);
    EXPECT_EQ(at / (2 * mib), allocate(100) / (2 * mib));
    EXPECT_EQ(allocate(2 * mib) % (2 * mib), 0u);
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

SOFT_ALONE(SoftcudaVmm, AccessIsNeededAndIsRemembered)
{
    start();
    const CUdeviceptr at = allocate_chunks({-two});
    const auto grant = [at](CUmemAccess_flags allowed) {
        CUmemAccessDesc of_device_0{};
        of_device_0.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        of_device_0.flags = allowed;
        OK(CU(cuMemSetAccess)(at, 2 * mib, &of_device_0, 1));
    };
    char byte = 0;
    grant(CU_MEM_ACCESS_FLAGS_PROT_READ);
    const unsigned may = attribute<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at);
    EXPECT_EQ(may, 1u);
    unsigned long long flags = 0;
    CUmemLocation where{};
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    OK(CU(cuMemGetAccess)(&flags, &where, at));
    EXPECT_EQ(flags, 1u);
    OK(CU(cuMemcpyDtoH)(&byte, at, 1));
    EXPECT_EQ(CU(cuMemcpyHtoD)(at, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    grant(CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT_EQ(CU(cuMemcpyDtoH)(&byte, at, 1), CUDA_ERROR_INVALID_VALUE);
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

// A rule of the driver, seen with 580, which docs/memory.md builds on.
TEST(SoftcudaIpc, OneContextOfADeviceAtATimeHasMemoryOfAProcessOpen)
{
    const auto owner = [](line &l) {
        start();
        for (const char *text : {"first", "other"}) {
            const CUdeviceptr at = allocate(2 * mib);
            store(at, text);
            l.put(export_memory(at));
        }
        l.wait();
    };
    together(owner, [](line &l) {
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
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        joined.open();
    });
    OK(CU(cuMemcpyDtoH)(host, at, 16));
    EXPECT_TRUE(joined.is_open());
    EXPECT_EQ(host[15], 'q');
    later.join();
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
