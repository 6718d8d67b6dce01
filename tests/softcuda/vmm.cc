// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm.cc: virtual memory management: addresses, physical allocations, mappings, access.
#include "vmm.h"
#include "stream.h"

#include <fcntl.h>
#include <unistd.h>

using namespace softcuda;

namespace {

// Handles look like small numbers with a mark, never like addresses.
constexpr std::uint64_t handle_mark = 0x5643000000000000ULL;
std::uint64_t next_handle = 1;

vmm_allocation *find_allocation(const hold &, CUmemGenericAllocationHandle handle)
{
    auto it = drv().vmm.find(handle);
    return it == drv().vmm.end() ? nullptr : it->second;
}

vmm_allocation *new_allocation(const hold &, block_ref memory, int device, unsigned types)
{
    auto *a = new vmm_allocation;
    a->handle = handle_mark | next_handle++;
    a->memory = std::move(memory);
    a->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    a->properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    a->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a->properties.location.id = device;
    a->handles = 1;
    drv().vmm[a->handle] = a;
    return a;
}

void collect(const hold &, vmm_allocation *a)
{
    if (a->handles == 0 && a->mappings == 0) {
        drv().vmm.erase(a->handle);
        delete a;
    }
}

bool good_properties(const CUmemAllocationProp *p)
{
    return p != nullptr && p->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           p->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
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
    if (out == nullptr || !good_properties(p) || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(p->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = block_granularity;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemCreate,
             (CUmemGenericAllocationHandle * out, size_t len, const CUmemAllocationProp *p,
              unsigned long long flags),
             (out, len, p, flags))
{
    if (out == nullptr || len == 0 || len % block_granularity != 0 || flags != 0 ||
        !good_properties(p)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(p->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    auto types = static_cast<unsigned>(p->requestedHandleTypes);
    if ((types & ~1u) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED; // only file descriptors
    }
    hold held(drv().lock);
    CUresult why = CUDA_SUCCESS;
    int physical = drv().devices[static_cast<std::size_t>(p->location.id)].physical;
    block_ref memory = make_block(physical, len, types, &why);
    if (memory == nullptr) {
        return why;
    }
    vmm_allocation *a = new_allocation(held, std::move(memory), p->location.id, types);
    a->properties = *p;
    *out = a->handle;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
{
    hold held(drv().lock);
    vmm_allocation *a = find_allocation(held, handle);
    if (a == nullptr || a->handles == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    --a->handles;
    collect(held, a);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *at),
             (out, at))
{
    hold held(drv().lock);
    range *r = drv().space.find(reinterpret_cast<std::uint64_t>(at));
    if (out == nullptr || r == nullptr || r->kind != memory_kind::vmm) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ++find_allocation(held, r->handle)->handles;
    *out = r->handle;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemGetAllocationPropertiesFromHandle,
             (CUmemAllocationProp * out, CUmemGenericAllocationHandle handle), (out, handle))
{
    hold held(drv().lock);
    vmm_allocation *a = find_allocation(held, handle);
    if (out == nullptr || a == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = a->properties;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemExportToShareableHandle,
             (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
              unsigned long long flags),
             (out, handle, type, flags))
{
    hold held(drv().lock);
    vmm_allocation *a = find_allocation(held, handle);
    if (out == nullptr || a == nullptr || flags != 0 ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (static_cast<unsigned>(a->properties.requestedHandleTypes) & 1u) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = fcntl(a->memory->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *static_cast<int *>(out) = fd;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemImportFromShareableHandle,
             (CUmemGenericAllocationHandle * out, void *os_handle, CUmemAllocationHandleType type),
             (out, os_handle, type))
{
    if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    CUresult why = CUDA_SUCCESS;
    unsigned types = 0;
    block_ref memory = adopt_block(fd, &types, true, &why);
    if (memory == nullptr) {
        return why;
    }
    int device = visible_device(memory->device);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = new_allocation(held, std::move(memory), device, types)->handle;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemAddressReserve,
             (CUdeviceptr * out, size_t len, size_t alignment, CUdeviceptr hint,
              unsigned long long flags),
             (out, len, alignment, hint, flags))
{
    if (out == nullptr || len == 0 || len % block_granularity != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    std::uint64_t at = hint;
    if (hint == 0 || !drv().space.reserve_at(hint, len)) {
        at = drv().space.reserve(len, alignment);
    }
    if (at == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    drv().reservations[at] = len;
    *out = at;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemAddressFree, (CUdeviceptr at, size_t len), (at, len))
{
    hold held(drv().lock);
    auto it = drv().reservations.find(at);
    if (it == drv().reservations.end() || it->second != len || drv().space.overlaps(at, len)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    drv().reservations.erase(it);
    drv().space.unreserve(at, len);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemMap,
             (CUdeviceptr at, size_t len, size_t offset, CUmemGenericAllocationHandle handle,
              unsigned long long flags),
             (at, len, offset, handle, flags))
{
    hold held(drv().lock);
    vmm_allocation *a = find_allocation(held, handle);
    auto it = drv().reservations.upper_bound(at);
    if (a == nullptr || len == 0 || offset != 0 || flags != 0 || len != a->memory->len_bytes ||
        at % block_granularity != 0 || it == drv().reservations.begin()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    --it;
    if (at + len > it->first + it->second || drv().space.overlaps(at, len)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
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

SOFTCUDA_API(init, cuMemUnmap, (CUdeviceptr at, size_t len), (at, len))
{
    hold held(drv().lock);
    std::vector<range *> list;
    if (!mappings_of(held, at, len, &list)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (range *r : list) { // copies that still run hold the memory
        vmm_allocation *a = find_allocation(held, r->handle);
        drv().space.erase(r->base);
        --a->mappings;
        collect(held, a);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemSetAccess,
             (CUdeviceptr at, size_t len, const CUmemAccessDesc *list, size_t count),
             (at, len, list, count))
{
    hold held(drv().lock);
    std::vector<range *> mapped;
    if (list == nullptr || count == 0 || !mappings_of(held, at, len, &mapped)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            (list[i].flags != 0 && list[i].flags != 1 && list[i].flags != 3)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!valid_device(list[i].location.id)) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    for (range *r : mapped) {
        for (size_t i = 0; i < count; ++i) {
            if (list[i].location.id != r->device && !drv().peers_connected) {
                return CUDA_ERROR_INVALID_DEVICE;
            }
        }
    }
    for (range *r : mapped) {
        for (size_t i = 0; i < count; ++i) {
            int shift = 2 * list[i].location.id;
            r->access &= ~(3ull << shift);
            r->access |= static_cast<std::uint64_t>(list[i].flags) << shift;
        }
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemGetAccess,
             (unsigned long long *out, const CUmemLocation *where, CUdeviceptr at),
             (out, where, at))
{
    hold held(drv().lock);
    range *r = drv().space.find(at);
    if (out == nullptr || where == nullptr || r == nullptr || r->kind != memory_kind::vmm ||
        where->type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(where->id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (r->access >> (2 * where->id)) & 3;
    return CUDA_SUCCESS;
}
