// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_memory_support.h: memory of every kind, as a program would allocate it, on whatever driver
// there is; and copies by the copy engine that a test waits for.
#ifndef GPUSM_TESTS_GPU_MEMORY_SUPPORT_H
#define GPUSM_TESTS_GPU_MEMORY_SUPPORT_H

#include "opal/mca/btl/gpusm/gpu/copy_engine.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include "tests/unit/shm_support.h"
#include "tests/unit/softcuda_support.h"

namespace gpusm_test {

inline constexpr std::size_t mib = 1U << 20;

// The driver's table; ends the child when there is none.
inline const gpusm::driver_api &driver()
{
    const gpusm::driver_api *api = gpusm::driver_load();
    if (nullptr == api) {
        ADD_FAILURE() << "there is no driver";
        _exit(10);
    }
    return *api;
}

// A program that has started a device, memory there, and what gpusm keeps of it. Ends the child
// when the device cannot be used.
struct program {
    explicit program(std::size_t len_bytes = mib, int ordinal = 0)
        : context(softcuda_test::start(ordinal)), at(softcuda_test::allocate(len_bytes)),
          on(device_of(at))
    {
    }
    gpusm::device &device_of(CUdeviceptr memory)
    {
        gpusm::device *found = nullptr;
        if (gpusm::status::ok !=
            table.for_memory(gpusm::inspect_pointer(driver(), memory), &found)) {
            ADD_FAILURE() << "no device for the test's memory";
            _exit(11);
        }
        return *found;
    }

    const CUcontext context;
    const CUdeviceptr at;
    gpusm::device_table table{driver()};
    gpusm::device &on;
};

// What the driver says is current here.
inline CUcontext current_context()
{
    CUcontext current = nullptr;
    OK(CU(cuCtxGetCurrent)(&current));
    return current;
}

inline CUdeviceptr allocate_managed(std::size_t len_bytes)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAllocManaged)(&at, len_bytes, CU_MEM_ATTACH_GLOBAL));
    return at;
}

// Maps a new allocation at reserved addresses, and keeps no handle of it.
inline void map_chunk(CUdeviceptr at, std::size_t len_bytes, bool exportable, int on)
{
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = on;
    properties.requestedHandleTypes =
        exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    CUmemGenericAllocationHandle memory = 0;
    OK(CU(cuMemCreate)(&memory, len_bytes, &properties, 0));
    OK(CU(cuMemMap)(at, len_bytes, 0, memory, 0));
    OK(CU(cuMemRelease)(memory));
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(CU(cuMemSetAccess)(at, len_bytes, &access, 1));
}

// Virtual memory management: some multiple of 2 MiB on device 0.
inline CUdeviceptr allocate_vmm(std::size_t len_bytes)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAddressReserve)(&at, len_bytes, 0, 0, 0));
    map_chunk(at, len_bytes, false, 0);
    return at;
}

// From the device's default pool.
inline CUdeviceptr allocate_pool(std::size_t len_bytes)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAllocAsync)(&at, len_bytes, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    return at;
}

// A text of that length that tells one place from another.
inline std::string pattern(std::size_t len_bytes, unsigned seed)
{
    std::string text(len_bytes, ' ');
    for (std::size_t i = 0; i < len_bytes; ++i) {
        text[i] = static_cast<char>('!' + (i * 7 + i / 251 + seed * 31) % 90);
    }
    return text;
}

// Asks until everything is back or the deadline is over; how many came back `ok`.
inline int collect_all(gpusm::copy_engine &engine)
{
    const deadline end(30);
    int good = 0;
    while (!engine.idle() && !end.over()) {
        for (const auto *each = engine.collect(); each != nullptr; each = each->next) {
            good += gpusm::status::ok == each->outcome ? 1 : 0;
        }
    }
    EXPECT_TRUE(engine.idle()) << "copies do not end";
    return good;
}

// One copy, from beginning to end.
inline gpusm::status copy_now(gpusm::copy_engine &engine, gpusm::device &on, CUdeviceptr to,
                              CUdeviceptr from, std::size_t len_bytes, CUevent wait_for = nullptr)
{
    gpusm::copy_request request;
    request.destination = to;
    request.source = from;
    request.len_bytes = len_bytes;
    request.wait_for = wait_for;
    engine.submit(on, &request);
    (void)collect_all(engine);
    return request.outcome;
}
// Likewise by an engine of its own.
inline gpusm::status copy_now(gpusm::device &on, CUdeviceptr to, CUdeviceptr from,
                              std::size_t len_bytes, CUevent wait_for = nullptr)
{
    gpusm::copy_engine engine(driver(), {});
    return copy_now(engine, on, to, from, len_bytes, wait_for);
}

} // namespace gpusm_test

#endif
