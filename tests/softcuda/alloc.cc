// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// alloc.cc: cuMemAlloc and its host and managed sisters, registration, what is free.
#include "pool.h"
#include "stream.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace softcuda {

void release_range(const hold &held, range *what)
{
    switch (what->kind) {
    case memory_kind::device:
        if (what->ctx->small->release(*what)) {
            drv().space.erase(what->base);
            return;
        }
        drv().space.unreserve(what->base, what->len_bytes);
        break;
    case memory_kind::managed: {
        // Back to an address that faults, and the pages to the system.
        std::uint64_t len = round_up(what->len_bytes, block_granularity);
        mmap(reinterpret_cast<void *>(what->base), len, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drv().space.unreserve(what->base, len);
        break;
    }
    case memory_kind::host:
        munmap(reinterpret_cast<void *>(what->base), round_up(what->len_bytes, 4096));
        break;
    case memory_kind::registered:
    case memory_kind::vmm:
        break;
    case memory_kind::ipc:
        ipc_release(held, what);
        return;
    case memory_kind::pool:
    case memory_kind::pool_import:
        pool_release(held, what);
        return;
    }
    drv().space.erase(what->base);
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(context, cuMemAlloc_v2, (CUdeviceptr * out, size_t len), (out, len))
{
    if (out == nullptr || len == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    context *ctx = current_context();
    int physical = drv().devices[static_cast<std::size_t>(ctx->device)].physical;
    range made;
    made.kind = memory_kind::device;
    made.ctx = ctx;
    made.device = ctx->device;
    made.len_bytes = len;
    CUresult why = CUDA_SUCCESS;
    if (len < small_limit) {
        why = ctx->small->allocate(physical, len, 0, &made);
        if (why != CUDA_SUCCESS) {
            return why;
        }
    } else {
        made.memory = make_block(physical, round_up(len, block_granularity), 0, &why);
        if (made.memory == nullptr) {
            return why;
        }
        made.base = drv().space.reserve(len);
        if (made.base == 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    drv().space.insert(made);
    *out = made.base;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemAllocPitch_v2,
             (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element),
             (out, pitch, width, height, element))
{
    if (pitch == nullptr || width == 0 || height == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    (void)element;
    *pitch = round_up(width, 512);
    return do_cuMemAlloc_v2(out, *pitch * height);
}

SOFTCUDA_API(context, cuMemFree_v2, (CUdeviceptr address), (address))
{
    if (address == 0) {
        return CUDA_SUCCESS;
    }
    hold held(drv().lock);
    range *r = drv().space.find_base(address);
    if (r == nullptr || r->freeing ||
        (r->kind != memory_kind::device && r->kind != memory_kind::managed &&
         r->kind != memory_kind::pool && r->kind != memory_kind::pool_import)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    r->freeing = true;
    wait_for_context(held, r->ctx != nullptr ? r->ctx : current_context());
    release_range(held, drv().space.find_base(address));
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemAllocManaged, (CUdeviceptr * out, size_t len, unsigned flags),
             (out, len, flags))
{
    if (out == nullptr || len == 0 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    range made;
    made.kind = memory_kind::managed;
    made.ctx = current_context();
    made.device = made.ctx->device;
    made.len_bytes = len;
    made.base = drv().space.reserve(len);
    if (made.base == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *at = mmap(reinterpret_cast<void *>(made.base), round_up(len, block_granularity),
                    PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                    -1, 0);
    if (at == MAP_FAILED) {
        drv().space.unreserve(made.base, len);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    drv().space.insert(made);
    *out = made.base;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemHostAlloc, (void **out, size_t len, unsigned flags), (out, len, flags))
{
    if (out == nullptr || len == 0 || flags > 7) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *at = mmap(nullptr, round_up(len, 4096), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    hold held(drv().lock);
    range made;
    made.kind = memory_kind::host;
    made.ctx = current_context();
    made.device = made.ctx->device;
    made.base = reinterpret_cast<std::uint64_t>(at);
    made.len_bytes = len;
    made.host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    drv().space.insert(made);
    *out = at;
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(context, cuMemAllocHost_v2, cuMemHostAlloc, (void **out, size_t len), (out, len),
              (out, len, 0))

SOFTCUDA_API(context, cuMemFreeHost, (void *at), (at))
{
    hold held(drv().lock);
    auto base = reinterpret_cast<std::uint64_t>(at);
    range *r = drv().space.find_base(base);
    if (r == nullptr || r->kind != memory_kind::host) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wait_for_context(held, r->ctx);
    r = drv().space.find_base(base);
    if (r != nullptr) {
        release_range(held, r);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemHostRegister_v2, (void *at, size_t len, unsigned flags),
             (at, len, flags))
{
    auto base = reinterpret_cast<std::uint64_t>(at);
    if (at == nullptr || len == 0 || flags > 15 || base + len < base) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t first = base / 4096 * 4096;
    if (msync(reinterpret_cast<void *>(first), round_up(base + len, 4096) - first, MS_ASYNC) != 0 &&
        errno == ENOMEM) {
        return CUDA_ERROR_INVALID_VALUE; // not mapped
    }
    hold held(drv().lock);
    if (drv().space.overlaps(base, len)) {
        range *r = drv().space.find(base);
        return r != nullptr && r->on_device() ? CUDA_ERROR_INVALID_VALUE
                                              : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    range made;
    made.kind = memory_kind::registered;
    made.ctx = current_context();
    made.device = made.ctx->device;
    made.base = base;
    made.len_bytes = len;
    made.host_flags = flags;
    drv().space.insert(made);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemHostUnregister, (void *at), (at))
{
    hold held(drv().lock);
    auto base = reinterpret_cast<std::uint64_t>(at);
    range *r = drv().space.find_base(base);
    if (r == nullptr || r->kind != memory_kind::registered) {
        return r != nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    wait_for_context(held, r->ctx);
    r = drv().space.find_base(base);
    if (r != nullptr) {
        release_range(held, r);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *at, unsigned flags),
             (out, at, flags))
{
    hold held(drv().lock);
    auto address = reinterpret_cast<std::uint64_t>(at);
    range *r = drv().space.find(address);
    if (out == nullptr || flags != 0 || r == nullptr || r->on_device()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = address; // one address space
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemHostGetFlags, (unsigned *out, void *at), (out, at))
{
    hold held(drv().lock);
    range *r = drv().space.find(reinterpret_cast<std::uint64_t>(at));
    if (out == nullptr || r == nullptr || r->on_device()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = r->host_flags;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemGetInfo_v2, (size_t * free_bytes, size_t *total_bytes),
             (free_bytes, total_bytes))
{
    int physical = drv().devices[static_cast<std::size_t>(current_context()->device)].physical;
    std::uint64_t used = drv().taken.used(physical);
    if (free_bytes != nullptr) {
        *free_bytes = drv().memory_bytes - (used < drv().memory_bytes ? used : drv().memory_bytes);
    }
    if (total_bytes != nullptr) {
        *total_bytes = drv().memory_bytes;
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *len, CUdeviceptr at),
             (base, len, at))
{
    hold held(drv().lock);
    range *r = drv().space.find(at);
    if (r == nullptr || r->freeing) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
        *base = r->base;
    }
    if (len != nullptr) {
        *len = r->len_bytes;
    }
    return CUDA_SUCCESS;
}
