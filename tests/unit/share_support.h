// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// share_support.h: memory that CUDA IPC refuses, made as a program would make it, and descriptors
// that two processes hand over; on whatever driver there is.
#ifndef GPUSM_TESTS_SHARE_SUPPORT_H
#define GPUSM_TESTS_SHARE_SUPPORT_H

#include "opal/mca/btl/gpusm/ipc/by_descriptor.h"

#include "tests/unit/gpu_memory_support.h"

#include <array>
#include <cstdint>
#include <numeric>

namespace gpusm_test {

using softcuda_test::free_bytes;
using softcuda_test::line;

// What a driver may need for itself while memory comes and goes; the tests move much more.
inline constexpr std::size_t slack_bytes = 64 * mib;

inline gpusm::status list_chunks(const gpusm::device &on, CUdeviceptr at, std::size_t len_bytes,
                                 std::vector<gpusm::memory_chunk> *out)
{
    return list_run(
        driver(), on, at, len_bytes, [](std::uint64_t) { return false; }, out);
}

// Describes the allocation of a pool around `at`.
inline gpusm::status describe_pooled(const gpusm::device &on, CUdeviceptr at,
                                     gpusm::exported_memory *out)
{
    bool exportable = false;
    return export_pool_pointer(driver(), on, gpusm::pool_of(driver(), at, &exportable), at, out);
}

// Chunks of these lengths side by side on device `on`. A length with its sign turned cannot be
// exported, and 0 stands for a gap of 2 MiB.
inline CUdeviceptr allocate_chunks(const std::vector<std::int64_t> &lengths, int on = 0)
{
    CUdeviceptr at = 0;
    const auto bytes_of = [](std::int64_t length) {
        return static_cast<std::size_t>(0 == length ? 2 * std::int64_t(mib) : std::abs(length));
    };
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

inline CUmemoryPool make_pool(int on = 0)
{
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = on;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
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

// Descriptors and what they stand for, as two processes hand them over.
struct parcel : gpusm::descriptor_message {
    // The export of the chunks that hold [at, at + len_bytes).
    static parcel of(const gpusm::device &on, CUdeviceptr at, std::size_t len_bytes)
    {
        std::vector<gpusm::memory_chunk> found;
        parcel made;
        EXPECT_EQ(list_chunks(on, at, len_bytes, &found), gpusm::status::ok);
        EXPECT_EQ(export_chunks(driver(), found, &made), gpusm::status::ok);
        return made;
    }
    void send(line &l)
    {
        l.put(fds.size());
        for (std::size_t i = 0; i < fds.size(); ++i) {
            l.put(lengths[i]);
            l.put_fd(fds[i].get());
        }
        fds.clear();
    }
    static parcel receive(line &l)
    {
        parcel made;
        for (auto count = l.get<std::size_t>(); count > 0; --count) {
            made.lengths.push_back(l.get<std::uint64_t>());
            made.fds.emplace_back(l.get_fd());
        }
        return made;
    }
    // Maps them; the descriptors are closed on success.
    gpusm::status map(const gpusm::device &into, std::uint64_t *base)
    {
        const gpusm::status s = map_chunks(driver(), into, *this, len_bytes(), base);
        if (gpusm::status::ok == s) {
            fds.clear();
        }
        return s;
    }
    void unmap(std::uint64_t base) const { unmap_chunks(driver(), base, len_bytes()); }
    std::uint64_t len_bytes() const
    {
        return std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
    }
};

// A descriptor of the pool, handed over.
inline void send_pool(line &l, CUmemoryPool pool)
{
    gpusm::file_descriptor fd;
    EXPECT_EQ(export_pool(driver(), pool, &fd), gpusm::status::ok);
    l.put_fd(fd.get());
}
inline CUmemoryPool receive_pool(line &l)
{
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(import_pool(driver(), gpusm::file_descriptor(l.get_fd()), &pool), gpusm::status::ok);
    return pool;
}

// One copy of up to 4 MiB in eight parts, which the gather kernel makes together.
inline void copy_by_kernel(gpusm::device &on, CUdeviceptr to, CUdeviceptr from,
                           std::size_t len_bytes)
{
    gpusm::copy_engine engine(driver(), {});
    std::array<gpusm::copy_request, 8> parts;
    engine.hold(true);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::size_t begin = len_bytes * i / parts.size();
        parts[i].destination = to + begin;
        parts[i].source = from + begin;
        parts[i].len_bytes = len_bytes * (i + 1) / parts.size() - begin;
        parts[i].for_kernel = true;
        engine.submit(on, &parts[i]);
    }
    engine.hold(false);
    EXPECT_EQ(collect_all(engine), 8);
    EXPECT_GE(engine.submissions()[static_cast<std::size_t>(gpusm::copy_way::kernel)], 1U);
}

} // namespace gpusm_test

#endif
