// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fake_sharing.h: what the fake driver knows of VMM memory and pools, and of sharing them. A
// descriptor is a real file that says which allocation or pool it stands for, so that one that
// stays open is seen.
#ifndef GPUSM_TESTS_FAKE_SHARING_H
#define GPUSM_TESTS_FAKE_SHARING_H

#include "opal/mca/btl/gpusm/gpu/device.h"

#include "tests/unit/fake_driver.h"

#include <numeric>

#include <fcntl.h>
#include <sys/mman.h>

namespace gpusm_test {

inline constexpr std::uint64_t fake_granularity = 0x10000;
inline constexpr unsigned fake_sync_memops = 0x80;

struct fake_allocation {
    std::uint64_t len_bytes = 0;
    int device = 0;
    unsigned handle_types = 1;
    CUmemLocationType where = CU_MEM_LOCATION_TYPE_DEVICE;
    int references = 0; // by retain and import; the program's own do not matter here
};

struct fake_mapping {
    std::uint64_t len_bytes;
    std::uint64_t handle;
    std::uint64_t buffer_id;
};

struct fake_pool {
    unsigned handle_types = 1;
    bool exported = false;
};

struct fake_pointer { // from a pool, from cuMemAlloc
    std::uint64_t len_bytes;
    CUmemoryPool pool = nullptr;
};

struct fake_sharing {
    std::map<std::uint64_t, fake_allocation> allocations; // by handle
    std::map<std::uint64_t, fake_mapping> mapped;         // by address
    std::map<std::uint64_t, std::uint64_t> reserved;      // by us: address, length
    std::map<CUmemoryPool, fake_pool> pools;
    std::map<std::uint64_t, fake_pointer> pointers;
    unsigned context_flags = 0;
    bool one_range = false; // cuMemGetAddressRange makes one range of neighbours
    std::uint64_t next = 1;

    // The program's memory: `len_bytes` mapped at `at`.
    void add_chunk(std::uint64_t at, std::uint64_t len_bytes)
    {
        const std::uint64_t handle = 0xa000 + next++;
        mapped[at] = {len_bytes, handle, 100 + next};
        allocations[handle].len_bytes = len_bytes;
    }
    CUmemoryPool add_pool(unsigned handle_types)
    {
        const auto pool = handle_of<CUmemoryPool>(0xb000 + next++);
        pools[pool].handle_types = handle_types;
        return pool;
    }
    int references() const
    {
        return std::accumulate(allocations.begin(), allocations.end(), 0,
                               [](int sum, const auto &at) { return sum + at.second.references; });
    }
};

inline fake_sharing &sharing()
{
    static fake_sharing the_one;
    return the_one;
}

// The entry that `at` lies in.
template <typename Map> typename Map::iterator fake_find(Map &map, std::uint64_t at)
{
    auto next = map.upper_bound(at);
    if (next == map.begin()) {
        return map.end();
    }
    const auto found = std::prev(next);
    return at - found->first < found->second.len_bytes ? found : map.end();
}

inline int fake_descriptor(std::uint64_t value)
{
    const int fd = memfd_create("fake", 0);
    return sizeof(value) == write(fd, &value, sizeof(value)) ? fd : -1;
}

inline std::uint64_t fake_described(void *descriptor)
{
    std::uint64_t value = 0;
    const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
    return sizeof(value) == pread(fd, &value, sizeof(value), 0) ? value : 0;
}

inline CUresult fake_attribute(CUpointer_attribute what, void *out, std::uint64_t at)
{
    const auto chunk = fake_find(sharing().mapped, at);
    const auto pointer = fake_find(sharing().pointers, at);
    const bool is_chunk = chunk != sharing().mapped.end();
    const CUmemoryPool pool = pointer != sharing().pointers.end() ? pointer->second.pool : nullptr;
    std::uint64_t value = 0;
    if (CU_POINTER_ATTRIBUTE_BUFFER_ID == what && is_chunk) {
        value = chunk->second.buffer_id;
    } else if (CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE == what) {
        value = reinterpret_cast<std::uintptr_t>(pool);
    } else if (CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES == what) {
        value = is_chunk          ? sharing().allocations[chunk->second.handle].handle_types
                : pool != nullptr ? sharing().pools[pool].handle_types
                                  : 0;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(out, &value, sizeof(value));
    return CUDA_SUCCESS;
}

// One line of these for each statement, as in fake_driver.h.
// clang-format off
inline void add_questions(gpusm::driver_api &api)
{
    GPUSM_FAKE(pointer_get_attribute, (void *out, CUpointer_attribute what, CUdeviceptr at),
        return fake_attribute(what, out, at);)
    GPUSM_FAKE(pointer_get_attributes,
               (unsigned count, CUpointer_attribute *what, void **out, CUdeviceptr at),
        for (unsigned i = 0; i < count; ++i) {
            if (CUDA_SUCCESS != fake_attribute(what[i], out[i], at)) {
                std::memset(out[i], 0, sizeof(std::uint64_t));
            }
        })
    GPUSM_FAKE(mem_get_address_range, (CUdeviceptr *base, size_t *len_bytes, CUdeviceptr at),
        if (nullptr == fake().current()) { return CUDA_ERROR_INVALID_CONTEXT; }
        if (const auto it = fake_find(sharing().pointers, at); it != sharing().pointers.end()) {
            *base = it->first;
            *len_bytes = it->second.len_bytes;
            return CUDA_SUCCESS;
        }
        const auto chunk = fake_find(sharing().mapped, at);
        if (chunk == sharing().mapped.end()) { return CUDA_ERROR_NOT_FOUND; }
        *base = chunk->first;
        *len_bytes = chunk->second.len_bytes;
        auto next = std::next(chunk);
        while (sharing().one_range && next != sharing().mapped.end() &&
               next->first == *base + *len_bytes) {
            *len_bytes += (next++)->second.len_bytes;
        })
}

inline void add_vmm(gpusm::driver_api &api)
{
    GPUSM_FAKE(mem_retain_allocation_handle, (CUmemGenericAllocationHandle *out, void *at),
        const auto found = fake_find(sharing().mapped, reinterpret_cast<std::uintptr_t>(at));
        if (found == sharing().mapped.end()) { return CUDA_ERROR_INVALID_VALUE; }
        *out = found->second.handle;
        ++sharing().allocations[*out].references;)
    GPUSM_FAKE(mem_release, (CUmemGenericAllocationHandle handle),
        --sharing().allocations[handle].references;)
    GPUSM_FAKE(mem_get_allocation_properties,
               (CUmemAllocationProp *out, CUmemGenericAllocationHandle handle),
        const fake_allocation &about = sharing().allocations[handle];
        out->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        out->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(about.handle_types);
        out->location.type = about.where;
        out->location.id = about.device;)
    GPUSM_FAKE(mem_export_to_shareable_handle,
               (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType,
                unsigned long long),
        *static_cast<int *>(out) = fake_descriptor(handle);)
    GPUSM_FAKE(mem_import_from_shareable_handle,
               (CUmemGenericAllocationHandle *out, void *descriptor, CUmemAllocationHandleType),
        *out = fake_described(descriptor);
        if (0 == sharing().allocations.count(*out)) { return CUDA_ERROR_INVALID_VALUE; }
        ++sharing().allocations[*out].references;)
    GPUSM_FAKE(mem_address_reserve,
               (CUdeviceptr *out, size_t len_bytes, size_t, CUdeviceptr, unsigned long long),
        *out = 0x700000000000 + (sharing().next++ << 36);
        sharing().reserved[*out] = len_bytes;)
    GPUSM_FAKE(mem_address_free, (CUdeviceptr at, size_t len_bytes),
        const auto found = sharing().reserved.find(at);
        if (found == sharing().reserved.end() || found->second != len_bytes ||
            fake_find(sharing().mapped, at) != sharing().mapped.end()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        sharing().reserved.erase(found);)
    GPUSM_FAKE(mem_map,
               (CUdeviceptr at, size_t len_bytes, size_t, CUmemGenericAllocationHandle handle,
                unsigned long long),
        if (len_bytes % fake_granularity != 0 ||
            len_bytes > sharing().allocations[handle].len_bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        sharing().mapped[at] = {len_bytes, handle, 100 + sharing().next++};)
    GPUSM_FAKE(mem_unmap, (CUdeviceptr at, size_t len_bytes),
        for (std::uint64_t done = 0; done < len_bytes;) { // of whole chunks
            const auto found = sharing().mapped.find(at + done);
            if (found == sharing().mapped.end() || found->second.len_bytes > len_bytes - done) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            done += found->second.len_bytes;
            sharing().mapped.erase(found);
        })
    GPUSM_FAKE(mem_set_access,
               (CUdeviceptr at, size_t len_bytes, const CUmemAccessDesc *, size_t),
        for (std::uint64_t done = 0; done < len_bytes;) {
            const auto found = sharing().mapped.find(at + done);
            if (found == sharing().mapped.end()) { return CUDA_ERROR_INVALID_VALUE; }
            done += found->second.len_bytes;
        })
}

inline void add_pools(gpusm::driver_api &api)
{
    GPUSM_FAKE(mem_pool_export_to_shareable_handle,
               (void *out, CUmemoryPool pool, CUmemAllocationHandleType, unsigned long long),
        sharing().pools[pool].exported = true;
        *static_cast<int *>(out) = fake_descriptor(reinterpret_cast<std::uintptr_t>(pool));)
    GPUSM_FAKE(mem_pool_import_from_shareable_handle,
               (CUmemoryPool *out, void *descriptor, CUmemAllocationHandleType, unsigned long long),
        if (0 == sharing().pools.count(handle_of<CUmemoryPool>(fake_described(descriptor)))) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *out = sharing().add_pool(1);)
    GPUSM_FAKE(mem_pool_destroy, (CUmemoryPool pool),
        return if_one(sharing().pools.erase(pool), CUDA_ERROR_INVALID_VALUE);)
    GPUSM_FAKE(mem_pool_set_access, (CUmemoryPool, const CUmemAccessDesc *, size_t), )
    GPUSM_FAKE(mem_pool_export_pointer, (CUmemPoolPtrExportData *out, CUdeviceptr at),
        if (!sharing().pools[fake_find(sharing().pointers, at)->second.pool].exported) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        std::memset(out, 0, sizeof(*out));
        std::memcpy(out, &at, sizeof(at));)
    GPUSM_FAKE(mem_pool_import_pointer,
               (CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data),
        std::memcpy(out, data, sizeof(*out));
        do {
            *out += 0x100000000ULL;
        } while (0 != sharing().pointers.count(*out)); // imported before
        sharing().pointers[*out] = {0x8000, pool};)
}

// The table of a fresh fake, with all of this.
inline gpusm::driver_api reset_fake_sharing()
{
    gpusm::driver_api api = reset_fake();
    sharing() = fake_sharing{};
    add_questions(api);
    add_vmm(api);
    add_pools(api);
    GPUSM_FAKE(mem_alloc, (CUdeviceptr *out, size_t len_bytes),
        *out = 0x900000000000 + (sharing().next++ << 32);
        sharing().pointers[*out] = {len_bytes, nullptr};)
    GPUSM_FAKE(mem_free, (CUdeviceptr at),
        return if_one(sharing().pointers.erase(at), CUDA_ERROR_INVALID_VALUE);)
    GPUSM_FAKE(ctx_get_flags, (unsigned *out), *out = sharing().context_flags;)
    GPUSM_FAKE(ctx_set_flags, (unsigned flags), sharing().context_flags = flags;)
    return api;
}
// clang-format on

#undef GPUSM_FAKE

} // namespace gpusm_test

#endif
