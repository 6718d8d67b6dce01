// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pool.cc: memory pools, stream-ordered allocation, and pools that two processes share.
#include "stream.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdio>

namespace softcuda {

namespace {

constexpr std::uint32_t wire_magic = 0x6f6f7067;

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

CUresult enter_range(range *made, pool *p, memory_kind kind, CUdeviceptr *out)
{
    made->kind = kind;
    made->from = p;
    ++p->allocations;
    return give(out, drv().space.insert(*made).base);
}

// Null: the default pool of the stream's device.
CUresult allocate(CUdeviceptr *out, std::size_t len, CUmemoryPool from, CUstream handle)
{
    hold held(drv().lock);
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    pool *p = from == nullptr ? state_of(s->ctx->device).default_pool : find_pool(held, from);
    REQUIRE(len > 0 && p != nullptr && p->imports == 0, CUDA_ERROR_INVALID_VALUE);
    range made;
    TRY(allocate_device(p->device, len, p->handle_types, &p->small, &made));
    return enter_range(&made, p, memory_kind::pool, out);
}

} // namespace

pool *make_pool(const hold &, int device, unsigned handle_types)
{
    auto *p = new pool;
    p->device = device;
    p->handle_types = handle_types;
    p->access = 3ull << (2 * device);
    drv().pools.insert(p);
    return p;
}

void pool_release(const hold &held, range *what)
{
    pool *p = what->from;
    if (what->kind == memory_kind::pool_import) { // one mapping per imported pointer
        drv().space.unreserve(what->import_key, what->memory->len_bytes);
    } else if (!p->small.release(*what)) {
        drv().space.unreserve(what->base, what->len_bytes);
    }
    drv().space.erase(what->base);
    --p->allocations;
    collect(held, p);
}

CUresult set_access(std::uint64_t *access, int owner, const CUmemAccessDesc *list, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        const int device = list[i].location.id;
        REQUIRE(list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && valid_device(device) &&
                    (device == owner || drv().peers_connected),
                CUDA_ERROR_INVALID_DEVICE);
        *access &= ~(3ull << (2 * device));
        *access |= static_cast<std::uint64_t>(list[i].flags) << (2 * device);
    }
    return CUDA_SUCCESS;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(init, cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props),
                (out, props))
{
    REQUIRE(props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                props->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(valid_device(props->location.id), CUDA_ERROR_INVALID_DEVICE);
    return give(out, reinterpret_cast<CUmemoryPool>(make_pool(
                         held, props->location.id, static_cast<unsigned>(props->handleTypes))));
}

SOFTCUDA_LOCKED(init, cuMemPoolDestroy, (CUmemoryPool handle), (handle))
{
    pool *p = find_pool(held, handle);
    REQUIRE(p != nullptr && (p->imports == 0 || p->allocations == 0), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(p->imports == 0 || --p->imports == 0, CUDA_SUCCESS);
    p->destroyed = true;
    collect(held, p);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(context, cuMemAllocAsync, (CUdeviceptr * out, size_t len, CUstream s), (out, len, s))
{
    return allocate(out, len, nullptr, s);
}
SOFTCUDA_API(context, cuMemAllocFromPoolAsync,
             (CUdeviceptr * out, size_t len, CUmemoryPool p, CUstream s), (out, len, p, s))
{
    return p == nullptr ? CUDA_ERROR_INVALID_VALUE : allocate(out, len, p, s);
}

// The address is given back when the stream gets there.
SOFTCUDA_LOCKED(context, cuMemFreeAsync, (CUdeviceptr at, CUstream handle), (at, handle))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    range *r = drv().space.find_base(at);
    REQUIRE(r != nullptr && !r->freeing &&
                (r->kind == memory_kind::pool || r->kind == memory_kind::pool_import),
            CUDA_ERROR_INVALID_VALUE);
    r->freeing = true;
    const auto give_back = [at] {
        hold inner(drv().lock);
        if (range *gone = drv().space.find_base(at); gone != nullptr && gone->freeing) {
            release_range(inner, gone);
        }
    };
    submit(held, s, {.run = give_back});
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuMemPoolSetAccess,
                (CUmemoryPool handle, const CUmemAccessDesc *list, size_t count),
                (handle, list, count))
{
    pool *p = find_pool(held, handle);
    REQUIRE(p != nullptr, CUDA_ERROR_INVALID_VALUE);
    return set_access(&p->access, p->device, list, count);
}

SOFTCUDA_LOCKED(init_uncaptured, cuMemPoolGetAccess,
                (CUmemAccess_flags * out, CUmemoryPool handle, CUmemLocation *where),
                (out, handle, where))
{
    const pool *p = find_pool(held, handle);
    REQUIRE(p != nullptr && where->type == CU_MEM_LOCATION_TYPE_DEVICE && valid_device(where->id),
            CUDA_ERROR_INVALID_VALUE);
    return give(out, static_cast<CUmemAccess_flags>(access_of(p->access, where->id)));
}

// ---------------------------------------------------------------- shared by two processes

// The descriptor of a pool is an empty file whose name says which device it is for.
SOFTCUDA_LOCKED(init, cuMemPoolExportToShareableHandle,
                (void *out, CUmemoryPool handle, CUmemAllocationHandleType type,
                 unsigned long long flags),
                (out, handle, type, flags))
{
    pool *p = find_pool(held, handle);
    REQUIRE(p != nullptr && p->imports == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                (p->handle_types & 1) != 0,
            CUDA_ERROR_INVALID_VALUE);
    if (p->fd < 0) {
        const std::string name = "softcuda-pool:" + std::to_string(state_of(p->device).physical);
        p->fd = memfd_create(name.c_str(), MFD_CLOEXEC);
    }
    return give_copy(p->fd, out);
}

SOFTCUDA_LOCKED(init, cuMemPoolImportFromShareableHandle,
                (CUmemoryPool * out, void *os_handle, CUmemAllocationHandleType type,
                 unsigned long long flags),
                (out, os_handle, type, flags))
{
    const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    char name[128] = {};
    int physical = -1;
    struct stat about {};
    REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                readlink(link.c_str(), name, sizeof(name) - 1) > 0 &&
                std::sscanf(name, "/memfd:softcuda-pool:%d", &physical) == 1 &&
                fstat(fd, &about) == 0,
            CUDA_ERROR_INVALID_VALUE);
    const int device = visible_device(physical);
    REQUIRE(device >= 0, CUDA_ERROR_INVALID_DEVICE);
    pool *p = nullptr;
    for (pool *known : drv().pools) { // the same pool has the same handle
        if (!known->destroyed && known->imported_inode == about.st_ino) {
            p = known;
        }
    }
    if (p == nullptr) {
        p = make_pool(held, device, 1);
        p->imported_inode = about.st_ino;
    }
    ++p->imports;
    return give(out, reinterpret_cast<CUmemoryPool>(p));
}

SOFTCUDA_LOCKED(init, cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr at),
                (out, at))
{
    const range *r = drv().space.find(at);
    REQUIRE(r != nullptr && r->kind == memory_kind::pool && !r->freeing &&
                (r->from->handle_types & 1) != 0 && r->from->fd >= 0, // the pool is exported first
            CUDA_ERROR_INVALID_VALUE);
    return give(out, std::bit_cast<CUmemPoolPtrExportData>(place_of(*r, wire_magic)));
}

SOFTCUDA_LOCKED(init, cuMemPoolImportPointer,
                (CUdeviceptr * out, CUmemoryPool handle, CUmemPoolPtrExportData *data),
                (out, handle, data))
{
    pool *p = find_pool(held, handle);
    const auto place = std::bit_cast<wire_place>(*data);
    REQUIRE(p != nullptr && p->imports > 0 && place.magic == wire_magic, CUDA_ERROR_INVALID_VALUE);
    range made;
    TRY(open_place(place, &made.memory));
    made.import_key = drv().space.reserve(made.memory->len_bytes);
    REQUIRE(made.import_key != 0, CUDA_ERROR_OUT_OF_MEMORY);
    made.device = p->device;
    made.base = made.import_key + place.offset;
    made.len_bytes = place.len_bytes;
    made.offset = place.offset;
    p->kept.push_back(made.memory);
    return enter_range(&made, p, memory_kind::pool_import, out);
}
