// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pointer.cc: what the driver tells about an address. Needs no current context.
#include "driver.h"

#include <cstring>
#include <iterator>

using namespace softcuda;

namespace {

// One attribute: the low bytes of `value`, or why there is none. Attributes that nobody here asks
// for have no bytes.
struct attribute {
    std::size_t bytes;
    std::uint64_t value;
    CUresult answer = CUDA_SUCCESS;
};

std::uint64_t handle_of(const void *what)
{
    return reinterpret_cast<std::uint64_t>(what);
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
attribute access_flags(const range &r)
{
    const context *ctx = current_context();
    if (ctx == nullptr) {
        return {4, 0, CUDA_ERROR_INVALID_CONTEXT};
    }
    const std::uint64_t all = r.from != nullptr            ? r.from->access
                              : r.kind == memory_kind::vmm ? r.access
                                                           : ~0ull;
    return {4, access_of(all, ctx->device)};
}

attribute look_up(int what, std::uint64_t at, const range &r)
{
    switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return {8, handle_of(r.ctx)};
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return {4, r.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST};
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return {8, at};
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return {8, at, r.cpu_accessible() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE};
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        return {1, r.sync_memops};
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return {8, r.buffer_id};
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return {1, r.kind == memory_kind::managed};
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return {4, static_cast<unsigned>(r.device)};
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return {1, r.kind == memory_kind::device};
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return {8, reserved_range(r).first};
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return {8, reserved_range(r).second};
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return {8, r.memory != nullptr && r.kind != memory_kind::ipc ? r.memory->handle_types : 0};
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return access_flags(r);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return {8, handle_of(r.from)}; // null for memory of no pool
    default:                           // theirs
        return {0, 0, CUDA_ERROR_INVALID_VALUE};
    }
}

range *find_live(const hold &, std::uint64_t at)
{
    range *r = drv().space.find(at);
    return r != nullptr && !r->freeing ? r : nullptr;
}

} // namespace

SOFTCUDA_LOCKED(init, cuPointerGetAttribute, (void *out, CUpointer_attribute what, CUdeviceptr at),
                (out, what, at))
{
    const range *r = find_live(held, at);
    REQUIRE(r != nullptr, CUDA_ERROR_INVALID_VALUE);
    const attribute found = look_up(static_cast<int>(what), at, *r);
    TRY(found.answer);
    std::memcpy(out, &found.value, found.bytes); // little-endian
    return CUDA_SUCCESS;
}

// Succeeds for any address; what does not apply is answered by zero.
SOFTCUDA_LOCKED(init, cuPointerGetAttributes,
                (unsigned count, CUpointer_attribute *what, void **out, CUdeviceptr at),
                (count, what, out, at))
{
    const range *r = find_live(held, at);
    for (unsigned i = 0; i < count; ++i) {
        const auto which = static_cast<int>(what[i]);
        attribute found = look_up(which, at, r != nullptr ? *r : range{});
        REQUIRE(found.bytes > 0, CUDA_ERROR_INVALID_VALUE);
        if (r == nullptr || found.answer != CUDA_SUCCESS) {
            found.value =
                which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? static_cast<unsigned>(-2) : 0;
        }
        std::memcpy(out[i], &found.value, found.bytes);
    }
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuPointerSetAttribute,
                (const void *value, CUpointer_attribute what, CUdeviceptr at), (value, what, at))
{
    range *r = find_live(held, at);
    REQUIRE(r != nullptr && what == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && r->on_device(),
            CUDA_ERROR_INVALID_VALUE);
    // Only a context can be marked for these.
    REQUIRE(r->kind != memory_kind::vmm && r->from == nullptr, CUDA_ERROR_NOT_SUPPORTED);
    r->sync_memops = *static_cast<const unsigned *>(value) != 0;
    return CUDA_SUCCESS;
}
