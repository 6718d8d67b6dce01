// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm.cc: virtual memory management: addresses, physical allocations, mappings, access.
#include "driver.h"

#include <fcntl.h>

using namespace softcuda;

namespace {

// Handles look like small numbers with a mark, never like addresses.
constexpr std::uint64_t handle_mark = 0x5643000000000000ULL;
std::uint64_t next_handle = 1;

vmm_allocation *find_allocation(const hold &, CUmemGenericAllocationHandle handle)
{
    auto it = drv().vmm.find(handle);
    return it == drv().vmm.end() ? nullptr : &it->second;
}

CUmemGenericAllocationHandle new_allocation(const hold &, block_ref memory, int device)
{
    const std::uint64_t handle = handle_mark | next_handle++;
    vmm_allocation &a = drv().vmm[handle];
    a.handle = handle;
    a.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    a.properties.requestedHandleTypes =
        static_cast<CUmemAllocationHandleType>(memory->handle_types);
    a.properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a.properties.location.id = device;
    a.memory = std::move(memory);
    a.handles = 1;
    return handle;
}

void collect(const hold &, const vmm_allocation &a)
{
    if (a.handles == 0 && a.mappings == 0) {
        drv().vmm.erase(a.handle);
    }
}

// The mappings that make up [at, at + len) exactly, or none.
bool mappings_of(const hold &, CUdeviceptr at, size_t len, std::vector<range *> *out)
{
    std::uint64_t next = at;
    while (next < at + len) {
        range *r = drv().space.find_base(next);
        if (r == nullptr || r->kind != memory_kind::vmm || r->len_bytes > at + len - next) {
            return false;
        }
        out->push_back(r);
        next += r->len_bytes;
    }
    return len > 0;
}

} // namespace

SOFTCUDA_API(init, cuMemGetAllocationGranularity,
             (size_t * out, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags option),
             (out, p, option))
{
    REQUIRE(valid_device(p->location.id), CUDA_ERROR_INVALID_DEVICE);
    return give(out, block_granularity);
}

SOFTCUDA_LOCKED(init, cuMemCreate,
                (CUmemGenericAllocationHandle * out, size_t len, const CUmemAllocationProp *p,
                 unsigned long long flags),
                (out, len, p, flags))
{
    REQUIRE(len > 0 && len % block_granularity == 0 && p->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                p->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(valid_device(p->location.id), CUDA_ERROR_INVALID_DEVICE);
    const auto types = static_cast<unsigned>(p->requestedHandleTypes);
    REQUIRE((types & ~1u) == 0, CUDA_ERROR_NOT_SUPPORTED); // only file descriptors
    block_ref memory;
    TRY(make_block(state_of(p->location.id).physical, len, types, &memory));
    return give(out, new_allocation(held, std::move(memory), p->location.id));
}

SOFTCUDA_LOCKED(init, cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
{
    vmm_allocation *a = find_allocation(held, handle);
    REQUIRE(a != nullptr && a->handles > 0, CUDA_ERROR_INVALID_VALUE);
    --a->handles;
    collect(held, *a);
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *at),
                (out, at))
{
    const range *r = drv().space.find(reinterpret_cast<std::uint64_t>(at));
    REQUIRE(r != nullptr && r->kind == memory_kind::vmm, CUDA_ERROR_INVALID_VALUE);
    ++find_allocation(held, r->handle)->handles;
    return give(out, r->handle);
}

SOFTCUDA_LOCKED(init, cuMemGetAllocationPropertiesFromHandle,
                (CUmemAllocationProp * out, CUmemGenericAllocationHandle handle), (out, handle))
{
    const vmm_allocation *a = find_allocation(held, handle);
    REQUIRE(a != nullptr, CUDA_ERROR_INVALID_VALUE);
    return give(out, a->properties);
}

SOFTCUDA_LOCKED(init, cuMemExportToShareableHandle,
                (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                 unsigned long long flags),
                (out, handle, type, flags))
{
    const vmm_allocation *a = find_allocation(held, handle);
    REQUIRE(a != nullptr && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                (a->memory->handle_types & 1u) != 0,
            CUDA_ERROR_INVALID_VALUE);
    return give_copy(a->memory->fd, out);
}

SOFTCUDA_LOCKED(init, cuMemImportFromShareableHandle,
                (CUmemGenericAllocationHandle * out, void *os_handle,
                 CUmemAllocationHandleType type),
                (out, os_handle, type))
{
    const int fd =
        fcntl(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), F_DUPFD_CLOEXEC, 0);
    REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && fd >= 0, CUDA_ERROR_INVALID_VALUE);
    block_ref memory;
    TRY(adopt_block(fd, &memory));
    const int device = visible_device(memory->device);
    REQUIRE(device >= 0, CUDA_ERROR_INVALID_DEVICE);
    return give(out, new_allocation(held, std::move(memory), device));
}

SOFTCUDA_LOCKED(init, cuMemAddressReserve,
                (CUdeviceptr * out, size_t len, size_t alignment, CUdeviceptr hint,
                 unsigned long long flags),
                (out, len, alignment, hint, flags))
{
    REQUIRE(len > 0 && len % block_granularity == 0 && alignment <= block_granularity,
            CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t at = drv().space.reserve(len);
    REQUIRE(at != 0, CUDA_ERROR_OUT_OF_MEMORY);
    drv().reservations[at] = len;
    return give(out, at);
}

SOFTCUDA_LOCKED(init, cuMemAddressFree, (CUdeviceptr at, size_t len), (at, len))
{
    auto it = drv().reservations.find(at);
    REQUIRE(it != drv().reservations.end() && it->second == len && !drv().space.overlaps(at, len),
            CUDA_ERROR_INVALID_VALUE);
    drv().reservations.erase(it);
    drv().space.unreserve(at, len);
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuMemMap,
                (CUdeviceptr at, size_t len, size_t offset, CUmemGenericAllocationHandle handle,
                 unsigned long long flags),
                (at, len, offset, handle, flags))
{
    vmm_allocation *a = find_allocation(held, handle);
    auto it = drv().reservations.upper_bound(at);
    REQUIRE(a != nullptr && offset == 0 && len == a->memory->len_bytes &&
                at % block_granularity == 0 && it != drv().reservations.begin(),
            CUDA_ERROR_INVALID_VALUE);
    --it;
    REQUIRE(at + len <= it->first + it->second && !drv().space.overlaps(at, len),
            CUDA_ERROR_INVALID_VALUE);
    range made;
    made.kind = memory_kind::vmm;
    made.device = a->properties.location.id;
    made.base = at;
    made.len_bytes = len;
    made.memory = a->memory;
    made.handle = handle;
    drv().space.insert(made);
    ++a->mappings;
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuMemUnmap, (CUdeviceptr at, size_t len), (at, len))
{
    std::vector<range *> list;
    REQUIRE(mappings_of(held, at, len, &list), CUDA_ERROR_INVALID_VALUE);
    for (const range *r : list) { // copies that still run hold the memory
        vmm_allocation *a = find_allocation(held, r->handle);
        drv().space.erase(r->base);
        --a->mappings;
        collect(held, *a);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuMemSetAccess,
                (CUdeviceptr at, size_t len, const CUmemAccessDesc *list, size_t count),
                (at, len, list, count))
{
    std::vector<range *> mapped;
    REQUIRE(count > 0 && mappings_of(held, at, len, &mapped), CUDA_ERROR_INVALID_VALUE);
    for (range *r : mapped) {
        TRY(set_access(&r->access, r->device, list, count));
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuMemGetAccess,
                (unsigned long long *out, const CUmemLocation *where, CUdeviceptr at),
                (out, where, at))
{
    const range *r = drv().space.find(at);
    REQUIRE(r != nullptr && r->kind == memory_kind::vmm &&
                where->type == CU_MEM_LOCATION_TYPE_DEVICE && valid_device(where->id),
            CUDA_ERROR_INVALID_VALUE);
    return give(out, access_of(r->access, where->id));
}
