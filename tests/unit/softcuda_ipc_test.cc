// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// softcuda_ipc_test.cc: handles that cross processes.
#include "softcuda_support.h"

#include <signal.h>

#include <thread>

using namespace softcuda_test;

namespace {

constexpr std::size_t MiB = 1 << 20;

CUipcMemHandle export_memory(CUdeviceptr at)
{
    CUipcMemHandle h{};
    OK(CU(cuIpcGetMemHandle)(&h, at));
    return h;
}

CUdeviceptr import_memory(const CUipcMemHandle &h)
{
    CUdeviceptr at = 0;
    OK(CU(cuIpcOpenMemHandle)(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return at;
}

// A process that owns an allocation with each of these texts, and sends their handles.
std::function<void(line &)> owner_of(const std::vector<std::string> &texts, std::size_t len,
                                     int device = 0)
{
    return [=](line &l) {
        start(device);
        for (const std::string &text : texts) {
            const CUdeviceptr at = allocate(len);
            store(at, text);
            l.put(export_memory(at));
        }
        l.wait();
    };
}

ALONE(SoftcudaIpc, OpeningAHandleInTheProcessThatMadeItFails)
{
    start();
    CUipcMemHandle h = export_memory(allocate(4 * MiB));
    CUdeviceptr at = 0;
    EXPECT_EQ(CU(cuIpcOpenMemHandle)(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_CONTEXT);
}

TEST(SoftcudaIpc, AHandleOfASmallAllocationOpensAtThatAllocation)
{
    together(owner_of({"first", "second"}, 1000), [](line &l) {
        start();
        CUdeviceptr a = import_memory(l.get<CUipcMemHandle>());
        CUdeviceptr b = import_memory(l.get<CUipcMemHandle>());
        EXPECT_EQ(load(a, 5), "first");
        EXPECT_EQ(load(b, 6), "second");
        OK(CU(cuIpcCloseMemHandle)(a));
        EXPECT_EQ(load(b, 6), "second");
        OK(CU(cuIpcCloseMemHandle)(b));
        l.step();
    });
}

TEST(SoftcudaIpc, OpeningAHandleTwiceCountsAndEachNeedsItsClose)
{
    together(owner_of({"x"}, 2 * MiB), [](line &l) {
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
            CUdeviceptr at = allocate(8 * MiB);
            store(at, "old");
            l.put(export_memory(at));
            l.wait();
            OK(CU(cuMemFree)(at));
            CUdeviceptr again = allocate(8 * MiB);
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
    constexpr std::size_t len = 512 * MiB;
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

TEST(SoftcudaIpc, MemoryOfAKilledProcessComesBack)
{
    NEEDS_SOFTCUDA();
    constexpr std::size_t len = 512 * MiB;
    together(
        [](line &l) {
            start();
            allocate(len);
            l.put(getpid());
            pause();
        },
        [](line &l) {
            const auto victim = l.get<pid_t>();
            start();
            const std::size_t taken = free_bytes();
            kill(victim, SIGKILL);
            for (int i = 0; i < 5000 && free_bytes() < taken + len; ++i) {
                usleep(1000);
            }
            EXPECT_GE(free_bytes(), taken + len);
        },
        SIGKILL);
}

ALONE(SoftcudaIpc, AWrittenOverHandleIsRefused)
{
    start();
    CUipcMemHandle h{};
    std::memset(&h, 0x5a, sizeof(h));
    CUdeviceptr at = 0;
    EXPECT_NE(CU(cuIpcOpenMemHandle)(&at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
}

// A rule of the driver, seen with 580, which docs/ipc.md builds on.
TEST(SoftcudaIpc, OneContextOfADeviceAtATimeHasMemoryOfAProcessOpen)
{
    together(owner_of({"first", "other"}, 2 * MiB), [](line &l) {
        const CUcontext first = start();
        const auto one = l.get<CUipcMemHandle>();
        const auto two = l.get<CUipcMemHandle>();
        const CUdeviceptr theirs = import_memory(one);
        const CUcontext second = make_context();
        const CUdeviceptr mine = allocate(2 * MiB);
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

CUevent shared_event()
{
    CUevent e = nullptr;
    OK(CU(cuEventCreate)(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    return e;
}

TEST(SoftcudaIpc, WaitingForAnEventOfAKilledProcessEnds)
{
    NEEDS_SOFTCUDA();
    together(
        [](line &l) {
            setenv("GPUSM_SOFTCUDA_DELAY_US", "50000000", 1);
            start();
            CUevent e = shared_event();
            CUipcEventHandle h{};
            CU(cuIpcGetEventHandle)(&h, e);
            l.put(h);
            l.wait();
            CU(cuEventRecord)(e, nullptr);
            l.put(getpid());
            pause();
        },
        [](line &l) {
            start();
            CUevent e = nullptr;
            OK(CU(cuIpcOpenEventHandle)(&e, l.get<CUipcEventHandle>()));
            OK(CU(cuEventQuery)(e)); // never recorded
            l.step();
            std::thread killer([victim = l.get<pid_t>()] {
                usleep(300000);
                kill(victim, SIGKILL);
            });
            EXPECT_EQ(CU(cuEventQuery)(e), CUDA_ERROR_NOT_READY);
            OK(CU(cuEventSynchronize)(e));
            killer.join();
        },
        SIGKILL);
}

ALONE(SoftcudaIpc, AnEventWithoutTheInterprocessFlagHasNoHandle)
{
    start();
    CUevent e = nullptr;
    OK(CU(cuEventCreate)(&e, CU_EVENT_DISABLE_TIMING));
    CUipcEventHandle h{};
    EXPECT_NE(CU(cuIpcGetEventHandle)(&h, e), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuEventCreate)(&e, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
}

} // namespace
