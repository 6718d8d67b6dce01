// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu_memory_support.h: memory of every kind, as a program would allocate it, and as two processes
// hand it over, on whatever driver there is; and copies by the copy engine that a test waits for.
#ifndef GPUSM_TESTS_GPU_MEMORY_SUPPORT_H
#define GPUSM_TESTS_GPU_MEMORY_SUPPORT_H

#include "opal/mca/common/gpusm/gpu/copy_engine.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/ipc/by_descriptor.h"

#include "tests/unit/shm_support.h"
#include "tests/unit/softcuda_support.h"

#include <cstdint>
#include <numeric>

namespace gpusm_test {

using softcuda_test::line;

inline constexpr std::size_t mib = 1U << 20;
inline constexpr auto two = std::int64_t(2 * mib); // see allocate_chunks

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

// What a driver may need for itself while memory comes and goes; tests move much more.
inline constexpr std::size_t slack_bytes = 64 * mib;

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

// From the device's default pool.
inline CUdeviceptr allocate_pool(std::size_t len_bytes)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAllocAsync)(&at, len_bytes, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    return at;
}

// VMM memory: chunks of these lengths side by side on device `on`. A length with its sign turned
// cannot be exported, and 0 stands for a gap of 2 MiB.
inline CUdeviceptr allocate_chunks(const std::vector<std::int64_t> &lengths, int on = 0)
{
    const auto bytes_of = [](std::int64_t length) {
        return static_cast<std::size_t>(0 == length ? 2 * std::int64_t(mib) : std::abs(length));
    };
    CUdeviceptr at = 0;
    std::size_t total = 0;
    for (const std::int64_t each : lengths) {
        total += bytes_of(each);
    }
    OK(CU(cuMemAddressReserve)(&at, total, 0, 0, 0));
    CUdeviceptr next = at;
    for (const std::int64_t each : lengths) {
        if (each != 0) {
            map_chunk(next, bytes_of(each), each > 0, on);
        }
        next += bytes_of(each);
    }
    return at;
}

inline CUmemoryPool
make_pool(int on = 0, CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
{
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = on;
    properties.handleTypes = types;
    CUmemoryPool pool = nullptr;
    OK(CU(cuMemPoolCreate)(&pool, &properties));
    return pool;
}

inline CUdeviceptr allocate_from(CUmemoryPool pool, std::size_t len_bytes)
{
    CUdeviceptr at = 0;
    OK(CU(cuMemAllocFromPoolAsync)(&at, len_bytes, pool, nullptr));
    OK(CU(cuStreamSynchronize)(nullptr));
    return at;
}

// A text of that length that tells one place from another.
inline std::string pattern(std::size_t len_bytes, unsigned seed)
{
    std::mt19937 random(seed);
    std::string text(len_bytes, ' ');
    for (char &each : text) {
        each = static_cast<char>(random());
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

// One copy by an engine of its own, from beginning to end.
inline gpusm::status copy_now(gpusm::device &on, CUdeviceptr to, CUdeviceptr from,
                              std::size_t len_bytes, CUevent wait_for = nullptr)
{
    gpusm::copy_engine engine(driver(), {});
    gpusm::copy_request request{to, from, len_bytes, wait_for};
    engine.submit(on, &request);
    (void)collect_all(engine);
    return request.outcome;
}

// The memory around an address, as its owner describes it and an importer maps it.
struct parcel {
    using enum gpusm::share_kind;
    using status = gpusm::status;

    status describe(gpusm::device &on, CUdeviceptr at, std::size_t len_bytes)
    {
        status s = status::ok;
        if (legacy == kind) {
            s = export_memory(api, on, at, &memory);
            s = gpusm::status::ok == s ? wait_for_earlier_copies(api, on, memory.mark) : s;
        } else if (descriptors == kind) {
            std::vector<gpusm::memory_chunk> found;
            s = list_run(
                api, on, at, len_bytes, [](std::uint64_t) { return false; }, &found);
            s = status::ok == s ? export_chunks(api, found, &chunks) : s;
            if (status::ok == s) {
                memory = {found[0].base, sum(), {}};
            }
        } else {
            bool exportable = false;
            const CUmemoryPool from = pool_of(api, at, &exportable);
            EXPECT_TRUE(exportable);
            s = export_pool_pointer(api, on, from, at, &memory);
            if (status::ok == s) {
                chunks.lengths = {0};
                s = export_pool(api, from, &chunks.fds.emplace_back());
            }
        }
        return s;
    }
    static parcel of(gpusm::share_kind kind, gpusm::device &on, CUdeviceptr at,
                     std::size_t len_bytes)
    {
        parcel made{driver(), kind};
        EXPECT_EQ(made.describe(on, at, len_bytes), status::ok);
        return made;
    }
    void send(line &l)
    {
        l.put(kind);
        l.put(memory);
        l.put(chunks.fds.size());
        for (std::size_t i = 0; i < chunks.fds.size(); ++i) {
            l.put(chunks.lengths[i]);
            l.put_fd(chunks.fds[i].get());
        }
        chunks.fds.clear();
    }
    static parcel receive(line &l)
    {
        parcel made{driver(), l.get<gpusm::share_kind>(), l.get<gpusm::exported_memory>()};
        for (auto count = l.get<std::size_t>(); count > 0; --count) {
            made.chunks.lengths.push_back(l.get<std::uint64_t>());
            made.chunks.fds.emplace_back(l.get_fd());
        }
        return made;
    }
    // The descriptors are closed on success.
    status map(const gpusm::device &into, std::uint64_t *base)
    {
        status s = status::ok;
        if (legacy == kind) {
            s = open_memory(api, into, memory.handle, base);
        } else if (descriptors == kind) {
            s = map_chunks(api, into, chunks, sum(), base);
        } else {
            s = import_pool(api, chunks.fds[0], &imported);
            s = status::ok == s ? allow_pool(api, imported, into) : s;
            s = status::ok == s ? import_pool_pointer(api, into, imported, memory.handle, base) : s;
        }
        if (status::ok == s) {
            chunks.fds.clear();
        } else {
            give_back_pool();
        }
        return s;
    }
    void unmap(const gpusm::device &from, std::uint64_t base) const
    {
        if (legacy == kind) {
            close_memory(api, from, base);
        } else if (descriptors == kind) {
            unmap_chunks(api, base, sum());
        } else {
            free_device(api, from, base); // and then give_back_pool
        }
    }
    // When nothing of it is mapped any more: the driver asks for that order.
    void give_back_pool() const
    {
        if (imported != nullptr) {
            close_pool(api, imported);
        }
    }
    std::uint64_t sum() const
    {
        return std::accumulate(chunks.lengths.begin(), chunks.lengths.end(), std::uint64_t{0});
    }

    const gpusm::driver_api &api;
    gpusm::share_kind kind = none;
    gpusm::exported_memory memory;
    gpusm::descriptor_message chunks; // or the pool's descriptor
    CUmemoryPool imported = nullptr;
};

} // namespace gpusm_test

#endif
