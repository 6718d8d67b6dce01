// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// alloc.cc: cuMemAlloc and its host and managed sisters, registration, what is free.
#include "stream.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace softcuda {

CUresult allocate_device(int device, std::uint64_t len_bytes, unsigned handle_types,
                         small_heap *small, range *made)
{
    const int physical = state_of(device).physical;
    made->device = device;
    made->len_bytes = len_bytes;
    if (len_bytes < small_limit) {
        return small->allocate(physical, len_bytes, handle_types, made);
    }
    TRY(make_block(physical, round_up(len_bytes, block_granularity), handle_types, &made->memory));
    made->base = drv().space.reserve(len_bytes);
    REQUIRE(made->base != 0, CUDA_ERROR_OUT_OF_MEMORY);
    return CUDA_SUCCESS;
}

void release_range(const hold &held, range *what)
{
    switch (what->kind) {
    case memory_kind::device:
        if (!what->ctx->small->release(*what)) {
            drv().space.unreserve(what->base, what->len_bytes);
        }
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

// Waits for the work that may use the memory, then gives it back.
static CUresult free_now(hold &held, range *what)
{
    const std::uint64_t base = what->base;
    what->freeing = true;
    wait_for_context(held, what->ctx != nullptr ? what->ctx : current_context());
    if (range *still = drv().space.find_base(base)) { // unless its context has ended meanwhile
        release_range(held, still);
    }
    return CUDA_SUCCESS;
}

// Enters memory of the current context.
static void enter_range(memory_kind kind, std::uint64_t base, std::size_t len)
{
    range made;
    made.kind = kind;
    made.ctx = current_context();
    made.device = made.ctx->device;
    made.base = base;
    made.len_bytes = len;
    drv().space.insert(made);
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemAlloc_v2, (CUdeviceptr * out, size_t len), (out, len))
{
    REQUIRE(len > 0, CUDA_ERROR_INVALID_VALUE);
    range made;
    made.ctx = current_context();
    TRY(allocate_device(made.ctx->device, len, 0, made.ctx->small.get(), &made));
    return give(out, drv().space.insert(made).base);
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemFree_v2, (CUdeviceptr address), (address))
{
    REQUIRE(address != 0, CUDA_SUCCESS);
    range *r = drv().space.find_base(address);
    REQUIRE(r != nullptr && !r->freeing && r->kind != memory_kind::host &&
                r->kind != memory_kind::registered && r->kind != memory_kind::ipc &&
                r->kind != memory_kind::vmm,
            CUDA_ERROR_INVALID_VALUE);
    return free_now(held, r);
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemAllocManaged,
                (CUdeviceptr * out, size_t len, unsigned flags), (out, len, flags))
{
    REQUIRE(len > 0, CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t base = drv().space.reserve(len);
    REQUIRE(base != 0 && mprotect(reinterpret_cast<void *>(base), round_up(len, block_granularity),
                                  PROT_READ | PROT_WRITE) == 0,
            CUDA_ERROR_OUT_OF_MEMORY);
    enter_range(memory_kind::managed, base, len);
    return give(out, base);
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemHostAlloc, (void **out, size_t len, unsigned flags),
                (out, len, flags))
{
    REQUIRE(len > 0 && flags <= 7, CUDA_ERROR_INVALID_VALUE);
    void *at = mmap(nullptr, round_up(len, 4096), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    enter_range(memory_kind::host, reinterpret_cast<std::uint64_t>(at), len);
    return give(out, at);
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemFreeHost, (void *at), (at))
{
    range *r = drv().space.find_base(reinterpret_cast<std::uint64_t>(at));
    REQUIRE(r != nullptr && r->kind == memory_kind::host && !r->freeing, CUDA_ERROR_INVALID_VALUE);
    return free_now(held, r);
}

// Is a page of [base, base + len_bytes) registered, by whatever is registered of it?
static bool has_registered_page(std::uint64_t base, std::uint64_t len_bytes)
{
    const std::uint64_t page = drv().page_bytes;
    return page != 0 &&
           std::any_of(drv().space.all().begin(), drv().space.all().end(), [=](const auto &each) {
               const range &r = each.second;
               return r.kind == memory_kind::registered &&
                      r.base / page <= (base + len_bytes - 1) / page &&
                      base / page <= (r.base + r.len_bytes - 1) / page;
           });
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemHostRegister_v2, (void *at, size_t len, unsigned flags),
                (at, len, flags))
{
    const auto base = reinterpret_cast<std::uint64_t>(at);
    REQUIRE(at != nullptr && len > 0 && flags <= 15, CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t first = base / 4096 * 4096;
    const bool mapped =
        msync(reinterpret_cast<void *>(first), round_up(base + len, 4096) - first, MS_ASYNC) == 0 ||
        errno != ENOMEM;
    REQUIRE(mapped, CUDA_ERROR_INVALID_VALUE);
    if (drv().space.overlaps(base, len)) {
        const range *r = drv().space.find(base);
        return r != nullptr && r->on_device() ? CUDA_ERROR_INVALID_VALUE
                                              : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    REQUIRE(!has_registered_page(base, len), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    enter_range(memory_kind::registered, base, len);
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context_uncaptured, cuMemHostUnregister, (void *at), (at))
{
    range *r = drv().space.find_base(reinterpret_cast<std::uint64_t>(at));
    REQUIRE(r != nullptr, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    REQUIRE(r->kind == memory_kind::registered && !r->freeing, CUDA_ERROR_INVALID_VALUE);
    return free_now(held, r);
}

SOFTCUDA_LOCKED(context, cuMemHostGetDevicePointer_v2,
                (CUdeviceptr * out, void *at, unsigned flags), (out, at, flags))
{
    const range *r = drv().space.find(reinterpret_cast<std::uint64_t>(at));
    REQUIRE(flags == 0 && r != nullptr && !r->on_device(), CUDA_ERROR_INVALID_VALUE);
    *out = reinterpret_cast<std::uint64_t>(at); // one address space
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemGetInfo_v2, (size_t * free_bytes, size_t *total_bytes),
             (free_bytes, total_bytes))
{
    *total_bytes = device_bytes;
    return give(free_bytes,
                device_bytes - std::min(device_bytes,
                                        taken_bytes(state_of(current_context()->device).physical)));
}

SOFTCUDA_LOCKED(context, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *len, CUdeviceptr at),
                (base, len, at))
{
    const range *r = drv().space.find(at);
    REQUIRE(r != nullptr && !r->freeing, CUDA_ERROR_NOT_FOUND);
    if (base != nullptr) {
        *base = r->base;
    }
    if (len != nullptr) {
        *len = r->len_bytes;
    }
    return CUDA_SUCCESS;
}
