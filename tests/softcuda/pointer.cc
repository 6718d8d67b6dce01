// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pointer.cc: what the driver tells about an address. Needs no current context.
#include "pool.h"
#include "vmm.h"

#include <cstring>
#include <iterator>
#include <utility>

using namespace softcuda;

namespace {

// Attributes newer than CUDA 11.8 go by number.
constexpr int attribute_hw_decompress = 21;

template <class T> CUresult put(void *out, T value)
{
    std::memcpy(out, &value, sizeof(value));
    return CUDA_SUCCESS;
}

unsigned handle_types_of(const range &r)
{
    switch (r.kind) {
    case memory_kind::pool:
    case memory_kind::pool_import:
        return r.from->handle_types;
    case memory_kind::vmm:
        return static_cast<unsigned>(drv().vmm[r.handle]->properties.requestedHandleTypes);
    case memory_kind::device:
    case memory_kind::managed:
    case memory_kind::host:
    case memory_kind::registered:
    case memory_kind::ipc:
        return 0;
    }
    return 0;
}

// What the address was reserved as: the allocation, or for VMM memory the reservation around it.
std::pair<std::uint64_t, std::uint64_t> reserved_range(const range &r)
{
    if (r.kind != memory_kind::vmm) {
        return {r.base, r.len_bytes};
    }
    return *std::prev(drv().reservations.upper_bound(r.base));
}

// What the device of the current context may do with it (CUmemAccess_flags).
CUresult put_access(void *out, const range &r)
{
    const context *ctx = current_context();
    if (ctx == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    std::uint64_t all = r.from != nullptr            ? r.from->access
                        : r.kind == memory_kind::vmm ? r.access
                                                     : ~0ull;
    return put<unsigned>(out, (all >> (2 * ctx->device)) & 3);
}

// `size` of what the driver writes for an unknown address in the list form: zero.
std::size_t size_of(int what)
{
    switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return 8;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        return 16;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return 4;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case attribute_hw_decompress:
        return 1;
    default: // theirs
        return 0;
    }
}

CUresult answer_for(void *out, int what, std::uint64_t at, const range &r)
{
    switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return put(out, r.ctx);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return put<unsigned>(out, r.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return put(out, at);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return r.cpu_accessible() ? put(out, at) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return put<unsigned char>(out, r.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return put<unsigned long long>(out, r.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return put<unsigned char>(out, r.kind == memory_kind::managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return put<int>(out, r.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return put<unsigned char>(out, r.kind == memory_kind::device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return put<std::uint64_t>(out, reserved_range(r).first);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return put<std::size_t>(out, reserved_range(r).second);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return put<unsigned char>(out, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return put<std::uint64_t>(out, handle_types_of(r));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return put<unsigned char>(out, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return put_access(out, r);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return put(out, r.from); // null for memory of no pool
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return put<std::size_t>(out, r.memory != nullptr && r.kind != memory_kind::vmm
                                         ? r.memory->len_bytes
                                         : r.len_bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return put<std::uint64_t>(out, r.base - r.offset);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return put<unsigned long long>(out, r.memory != nullptr ? r.memory->id : r.buffer_id);
    case attribute_hw_decompress:
        return put<unsigned char>(out, 0);
    default: // theirs
        return CUDA_ERROR_INVALID_VALUE;
    }
}

range *find_live(const hold &, std::uint64_t at)
{
    range *r = drv().space.find(at);
    return r != nullptr && !r->freeing ? r : nullptr;
}

} // namespace

SOFTCUDA_API(init, cuPointerGetAttribute, (void *out, CUpointer_attribute what, CUdeviceptr at),
             (out, what, at))
{
    hold held(drv().lock);
    range *r = find_live(held, at);
    if (out == nullptr || r == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return answer_for(out, static_cast<int>(what), at, *r);
}

// Succeeds for any address; what does not apply is answered by zero.
SOFTCUDA_API(init, cuPointerGetAttributes,
             (unsigned count, CUpointer_attribute *what, void **out, CUdeviceptr at),
             (count, what, out, at))
{
    if (what == nullptr || out == nullptr || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    range *r = find_live(held, at);
    for (unsigned i = 0; i < count; ++i) {
        auto which = static_cast<int>(what[i]);
        std::size_t bytes = size_of(which);
        if (bytes == 0 || out[i] == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (r == nullptr || answer_for(out[i], which, at, *r) != CUDA_SUCCESS) {
            std::memset(out[i], 0, bytes);
            if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
                put<int>(out[i], -2);
            }
        }
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuPointerSetAttribute,
             (const void *value, CUpointer_attribute what, CUdeviceptr at), (value, what, at))
{
    hold held(drv().lock);
    range *r = find_live(held, at);
    if (value == nullptr || r == nullptr || what != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        r->kind == memory_kind::host || r->kind == memory_kind::registered) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (r->kind == memory_kind::vmm || r->kind == memory_kind::pool ||
        r->kind == memory_kind::pool_import) {
        return CUDA_ERROR_NOT_SUPPORTED; // only a context can be marked for these
    }
    r->sync_memops = *static_cast<const unsigned *>(value) != 0;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemGetHandleForAddressRange,
             (void *out, CUdeviceptr at, size_t len, CUmemRangeHandleType type,
              unsigned long long flags),
             (out, at, len, type, flags))
{
    (void)out;
    (void)at;
    (void)len;
    (void)type;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED; // no dma-buf
}

#if CUDA_VERSION >= 13000
SOFTCUDA_API(init, cuMemAdvise_v2,
             (CUdeviceptr at, size_t len, CUmem_advise advice, CUmemLocation where),
             (at, len, advice, where))
{
    (void)len;
    (void)advice;
    (void)where;
    hold held(drv().lock);
    range *r = find_live(held, at);
    return r != nullptr && r->kind == memory_kind::managed ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}
SOFTCUDA_API(context, cuMemPrefetchAsync_v2,
             (CUdeviceptr at, size_t len, CUmemLocation where, unsigned flags, CUstream s),
             (at, len, where, flags, s))
{
    (void)len;
    (void)where;
    (void)flags;
    (void)s;
    hold held(drv().lock);
    range *r = find_live(held, at);
    return r != nullptr && r->kind == memory_kind::managed ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}
#endif
