// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pool.cc: memory pools and stream-ordered allocation.
#include "pool.h"
#include "stream.h"

#include <unistd.h>

#include <algorithm>

namespace softcuda {

namespace {

pool *find_pool(const hold &, CUmemoryPool handle)
{
    auto *p = reinterpret_cast<pool *>(handle);
    return drv().pools.count(p) != 0 && !p->destroyed ? p : nullptr;
}

void collect(const hold &, pool *p)
{
    if (p->destroyed && p->allocations == 0) {
        drv().pools.erase(p);
        if (p->fd >= 0) {
            close(p->fd);
        }
        delete p;
    }
}

pool *make_pool(const hold &, int device, unsigned handle_types)
{
    auto *p = new pool;
    p->device = device;
    p->handle_types = handle_types;
    p->access = 3ull << (2 * device);
    drv().pools.insert(p);
    return p;
}

CUresult allocate(CUdeviceptr *out, std::size_t len, pool *p, CUstream handle)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (p == nullptr) {
        p = drv().devices[static_cast<std::size_t>(s->ctx->device)].current_pool;
    }
    if (out == nullptr || len == 0 || drv().pools.count(p) == 0 || p->destroyed || p->imported) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int physical = drv().devices[static_cast<std::size_t>(p->device)].physical;
    range made;
    made.kind = memory_kind::pool;
    made.device = p->device;
    made.len_bytes = len;
    made.from = p;
    if (len < small_limit) {
        answer = p->small.allocate(physical, len, p->handle_types, &made);
        if (answer != CUDA_SUCCESS) {
            return answer;
        }
    } else {
        made.memory =
            make_block(physical, round_up(len, block_granularity), p->handle_types, &answer);
        if (made.memory == nullptr) {
            return answer;
        }
        made.base = drv().space.reserve(len);
        if (made.base == 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    drv().space.insert(made);
    ++p->allocations;
    p->used_bytes += len;
    p->used_high = std::max(p->used_high, p->used_bytes);
    *out = made.base;
    return CUDA_SUCCESS;
}

// The address is given back when the stream gets there.
CUresult free_later(CUdeviceptr at, CUstream handle)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    range *r = drv().space.find_base(at);
    if (r == nullptr || r->freeing ||
        (r->kind != memory_kind::pool && r->kind != memory_kind::pool_import &&
         r->kind != memory_kind::device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    r->freeing = true;
    operation op;
    op.run = [at] {
        hold inner(drv().lock);
        if (range *gone = drv().space.find_base(at); gone != nullptr && gone->freeing) {
            release_range(inner, gone);
        }
    };
    submit(held, s, std::move(op));
    return CUDA_SUCCESS;
}

} // namespace

pool *make_default_pool(const hold &held, int device)
{
    pool *p = make_pool(held, device, 0);
    p->is_default = true;
    return p;
}

void pool_release(const hold &held, range *what)
{
    pool *p = what->from;
    if (what->kind == memory_kind::pool_import) {
        // One mapping per imported pointer.
        drv().space.unreserve(what->import_key, what->memory->len_bytes);
    } else {
        p->used_bytes -= what->len_bytes;
        if (!p->small.release(*what)) {
            drv().space.unreserve(what->base, what->len_bytes);
        }
    }
    drv().space.erase(what->base);
    --p->allocations;
    collect(held, p);
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(init, cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props), (out, props))
{
    if (out == nullptr || props == nullptr || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (static_cast<unsigned>(props->handleTypes) & ~1u) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!valid_device(props->location.id)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    *out = reinterpret_cast<CUmemoryPool>(
        make_pool(held, props->location.id, static_cast<unsigned>(props->handleTypes)));
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemPoolDestroy, (CUmemoryPool handle), (handle))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (p == nullptr || p->is_default || (p->imported && p->allocations > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->imported && --p->imports > 0) {
        return CUDA_SUCCESS;
    }
    for (device_state &d : drv().devices) {
        d.current_pool = d.current_pool == p ? d.default_pool : d.current_pool;
    }
    p->destroyed = true;
    collect(held, p);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device), (out, device))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = reinterpret_cast<CUmemoryPool>(
        drv().devices[static_cast<std::size_t>(device)].default_pool);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device), (out, device))
{
    if (!valid_device(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    hold held(drv().lock);
    *out = reinterpret_cast<CUmemoryPool>(
        drv().devices[static_cast<std::size_t>(device)].current_pool);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuDeviceSetMemPool, (CUdevice device, CUmemoryPool handle), (device, handle))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (!valid_device(device) || p == nullptr || p->device != device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    drv().devices[static_cast<std::size_t>(device)].current_pool = p;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemAllocAsync, (CUdeviceptr * out, size_t len, CUstream s), (out, len, s))
{
    return allocate(out, len, nullptr, s);
}
SOFTCUDA_API(context, cuMemAllocAsync_ptsz, (CUdeviceptr * out, size_t len, CUstream s),
             (out, len, s))
{
    return allocate(out, len, nullptr, per_thread(s));
}
SOFTCUDA_API(context, cuMemAllocFromPoolAsync,
             (CUdeviceptr * out, size_t len, CUmemoryPool p, CUstream s), (out, len, p, s))
{
    return p == nullptr ? CUDA_ERROR_INVALID_VALUE
                        : allocate(out, len, reinterpret_cast<pool *>(p), s);
}
SOFTCUDA_API(context, cuMemAllocFromPoolAsync_ptsz,
             (CUdeviceptr * out, size_t len, CUmemoryPool p, CUstream s), (out, len, p, s))
{
    return p == nullptr ? CUDA_ERROR_INVALID_VALUE
                        : allocate(out, len, reinterpret_cast<pool *>(p), per_thread(s));
}
SOFTCUDA_API(context, cuMemFreeAsync, (CUdeviceptr at, CUstream s), (at, s))
{
    return free_later(at, s);
}
SOFTCUDA_API(context, cuMemFreeAsync_ptsz, (CUdeviceptr at, CUstream s), (at, s))
{
    return free_later(at, per_thread(s));
}

SOFTCUDA_API(init, cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep), (handle, keep))
{
    (void)keep; // nothing is kept in reserve
    hold held(drv().lock);
    return find_pool(held, handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SOFTCUDA_API(init, cuMemPoolSetAccess,
             (CUmemoryPool handle, const CUmemAccessDesc *list, size_t count),
             (handle, list, count))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (p == nullptr || list == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !valid_device(list[i].location.id) ||
            (list[i].location.id == p->device ? list[i].flags != 3 : !drv().peers_connected)) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
        int shift = 2 * list[i].location.id;
        p->access &= ~(3ull << shift);
        p->access |= static_cast<std::uint64_t>(list[i].flags) << shift;
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemPoolGetAccess,
             (CUmemAccess_flags * out, CUmemoryPool handle, CUmemLocation *where),
             (out, handle, where))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (out == nullptr || p == nullptr || where == nullptr ||
        where->type != CU_MEM_LOCATION_TYPE_DEVICE || !valid_device(where->id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = static_cast<CUmemAccess_flags>((p->access >> (2 * where->id)) & 3);
    return CUDA_SUCCESS;
}
