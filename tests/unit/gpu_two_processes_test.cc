// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_two_processes_test.cc: memory and events that one process exports and another opens, on
// whatever driver there is. Both are forked before either has called the driver.
#include "tests/unit/gpu_memory_support.h"

#include "opal/mca/btl/gpusm/ipc/legacy.h"

using namespace softcuda_test;

namespace {

using namespace gpusm;
using namespace gpusm_test;

exported_memory export_of(program &owner, CUdeviceptr at)
{
    exported_memory out;
    EXPECT_EQ(export_memory(driver(), owner.on, at, &out), status::ok);
    return out;
}

// An owner on `owner_device` and a reader on `reader_device`: what a get does.
void read_over_ipc(int owner_device, int reader_device)
{
    constexpr std::size_t offset = 70001;
    constexpr std::size_t bytes = 300000;
    together(
        [=](line &l) {
            program owner(4 * mib, owner_device);
            store(owner.at + offset, pattern(bytes, 5));
            const exported_memory out = export_of(owner, owner.at + offset);
            EXPECT_EQ(out.base, owner.at);
            EXPECT_EQ(out.len_bytes, 4 * mib);
            EXPECT_TRUE(attribute<bool>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, owner.at))
                << "synchronous copies must be complete when they return";
            l.put(out);
            l.wait();
        },
        [=](line &l) {
            program reader(mib, reader_device);
            const auto in = l.get<exported_memory>();
            std::uint64_t base = 0;
            EXPECT_EQ(open_memory(driver(), reader.on, in.handle, &base), status::ok);
            EXPECT_EQ(copy_now(reader.on, reader.at, base + offset, bytes), status::ok);
            EXPECT_TRUE(load(reader.at, bytes) == pattern(bytes, 5));
            const log_capture log;
            close_memory(driver(), reader.on, base);
            EXPECT_EQ(log.count(), 0U) << log.text();
            close_memory(driver(), reader.on, base);
            EXPECT_EQ(log.count(), 1U) << "closed twice: " << log.text();
            l.step();
        });
}

TEST(GpuIpc, APeerOnTheSameDeviceReadsExportedMemory)
{
    read_over_ipc(0, 0);
}

TEST(GpuIpc, APeerOnAnotherDeviceReadsExportedMemory)
{
    NEEDS_DEVICES(2)
    read_over_ipc(0, 1);
    read_over_ipc(1, 0);
}

ALONE(GpuIpc, VmmPoolAndManagedMemoryIsUnsupportedAndNotAnErrorAndHostMemoryCannotBeExported)
{
    program owner(mib);
    const log_capture log;
    exported_memory out;
    for (const CUdeviceptr at :
         {allocate_vmm(2 * mib), allocate_pool(2 * mib), allocate_managed(2 * mib)}) {
        EXPECT_EQ(export_memory(driver(), owner.on, at, &out), status::unsupported);
    }
    EXPECT_EQ(log.count(), 0U) << log.text();
    EXPECT_NE(export_memory(driver(), owner.on, reinterpret_cast<CUdeviceptr>(&out), &out),
              status::ok);
}

TEST(GpuIpc, MemoryThatItsOwnerFreedCannotBeOpened)
{
    NEEDS_SOFTCUDA()
    together(
        [](line &l) {
            program owner(mib);
            const exported_memory out = export_of(owner, owner.at);
            OK(CU(cuMemFree)(owner.at));
            l.put(out);
            l.wait();
        },
        [](line &l) {
            const log_capture log;
            program reader(mib);
            std::uint64_t base = 42;
            EXPECT_NE(open_memory(driver(), reader.on, l.get<exported_memory>().handle, &base),
                      status::ok);
            EXPECT_EQ(base, 42U);
            l.step();
        });
}

struct offer {
    exported_memory memory;
    CUipcEventHandle event;
};

// The owner's device is still writing when the reader asks: the reader's copy waits for the
// owner's event.
TEST(GpuIpc, ACopyThatWaitsForTheOwnersEventReadsWhatTheOwnerWroteBefore)
{
    constexpr std::size_t bytes = 64 * mib;
    together(
        [](line &l) {
            if (soft()) {
                setenv("GPUSM_SOFTCUDA_DELAY_US", "200000", 1);
            }
            program owner(bytes);
            CUstream slow = make_stream(CU_STREAM_NON_BLOCKING);
            OK(CU(cuMemsetD8Async)(owner.at, 'o', bytes, slow));
            OK(CU(cuStreamSynchronize)(slow));
            offer out{export_of(owner, owner.at), {}};
            CUevent event = nullptr;
            EXPECT_EQ(owner.table.ipc_event(owner.on, &event), status::ok);
            EXPECT_EQ(driver().ipc_get_event_handle(&out.event, event), CUDA_SUCCESS);
            l.put(out);
            l.wait(); // opened
            for (int i = 0; i < 4; ++i) {
                OK(CU(cuMemsetD8Async)(owner.at, 'a' + i, bytes, slow));
            }
            OK(CU(cuEventRecord)(event, slow));
            l.step();
            l.wait();
        },
        [](line &l) {
            program reader(bytes);
            const auto in = l.get<offer>();
            std::uint64_t base = 0;
            EXPECT_EQ(open_memory(driver(), reader.on, in.memory.handle, &base), status::ok);
            CUevent event = nullptr;
            EXPECT_EQ(driver().ipc_open_event_handle(&event, in.event), CUDA_SUCCESS);
            l.step();
            l.wait(); // recorded
            EXPECT_EQ(copy_now(reader.on, reader.at, base, bytes, event), status::ok);
            EXPECT_TRUE(load(reader.at, bytes) == std::string(bytes, 'd'))
                << "the last memset's letter";
            close_memory(driver(), reader.on, base);
            OK(CU(cuEventDestroy)(event));
            l.step();
        });
}

TEST(GpuIpc, AMappingOutlivesItsOwnersEndWithoutACrash)
{
    together(
        [](line &l) {
            program owner(mib);
            l.put(export_of(owner, owner.at));
            l.wait(); // and ends
        },
        [](line &l) {
            const log_capture log;
            program reader(mib);
            std::uint64_t base = 0;
            EXPECT_EQ(open_memory(driver(), reader.on, l.get<exported_memory>().handle, &base),
                      status::ok);
            l.step();
            (void)usleep(200000);
            close_memory(driver(), reader.on, base);
        });
}

} // namespace
