// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pool_share.cc: pool attributes, and pools that two processes share.
#include "pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

using namespace softcuda;

namespace {

struct wire_pointer { // CUmemPoolPtrExportData
    std::uint32_t magic;
    std::int32_t pid;
    std::int32_t fd;
    std::int32_t device; // physical
    std::uint64_t block_id;
    std::uint64_t inode;
    std::uint64_t offset;
    std::uint64_t len_bytes;
    std::uint64_t reserved[2];
};
static_assert(sizeof(wire_pointer) == sizeof(CUmemPoolPtrExportData));
constexpr std::uint32_t wire_magic = 0x6f6f7067;

pool *find_pool(const hold &, CUmemoryPool handle)
{
    auto *p = reinterpret_cast<pool *>(handle);
    return drv().pools.count(p) != 0 && !p->destroyed ? p : nullptr;
}

} // namespace

SOFTCUDA_API(init, cuMemPoolSetAttribute,
             (CUmemoryPool handle, CUmemPool_attribute what, void *value), (handle, what, value))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (p == nullptr || value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (static_cast<int>(what)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        p->reuse[what - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] =
            *static_cast<int *>(value);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        p->release_threshold = *static_cast<cuuint64_t *>(value);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        p->used_high = p->used_bytes;
        return CUDA_SUCCESS;
    default: // theirs: attributes that cannot be set
        return CUDA_ERROR_INVALID_VALUE;
    }
}

SOFTCUDA_API(init, cuMemPoolGetAttribute,
             (CUmemoryPool handle, CUmemPool_attribute what, void *value), (handle, what, value))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (p == nullptr || value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (static_cast<int>(what)) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *static_cast<int *>(value) =
            p->reuse[what - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *static_cast<cuuint64_t *>(value) = p->release_threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *static_cast<cuuint64_t *>(value) = p->used_bytes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *static_cast<cuuint64_t *>(value) = p->used_high;
        return CUDA_SUCCESS;
    default: // theirs
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// The descriptor of a pool is an empty file whose name says which device it is for.
SOFTCUDA_API(init, cuMemPoolExportToShareableHandle,
             (void *out, CUmemoryPool handle, CUmemAllocationHandleType type,
              unsigned long long flags),
             (out, handle, type, flags))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (out == nullptr || p == nullptr || flags != 0 || p->imported ||
        type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (p->handle_types & 1) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->fd < 0) {
        char name[64];
        std::snprintf(name, sizeof(name), "softcuda-pool:%d",
                      drv().devices[static_cast<std::size_t>(p->device)].physical);
        p->fd = memfd_create(name, MFD_CLOEXEC);
    }
    int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *static_cast<int *>(out) = fd;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemPoolImportFromShareableHandle,
             (CUmemoryPool * out, void *os_handle, CUmemAllocationHandleType type,
              unsigned long long flags),
             (out, os_handle, type, flags))
{
    char link[64];
    char name[128] = {};
    int physical = -1;
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d",
                  static_cast<int>(reinterpret_cast<intptr_t>(os_handle)));
    if (out == nullptr || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        readlink(link, name, sizeof(name) - 1) < 0 ||
        std::sscanf(name, "/memfd:softcuda-pool:%d", &physical) != 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct stat about {};
    if (fstat(static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), &about) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    int device = visible_device(physical);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    for (pool *known : drv().pools) { // the same pool has the same handle
        if (known->imported && !known->destroyed && known->imported_inode == about.st_ino) {
            ++known->imports;
            *out = reinterpret_cast<CUmemoryPool>(known);
            return CUDA_SUCCESS;
        }
    }
    auto *p = new pool;
    p->imported_inode = about.st_ino;
    p->device = device;
    p->imported = true;
    p->imports = 1;
    p->handle_types = 1;
    p->access = 3ull << (2 * device);
    drv().pools.insert(p);
    *out = reinterpret_cast<CUmemoryPool>(p);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr at),
             (out, at))
{
    hold held(drv().lock);
    range *r = drv().space.find(at);
    if (out == nullptr || r == nullptr || r->kind != memory_kind::pool || r->freeing ||
        (r->from->handle_types & 1) == 0 || r->from->fd < 0) { // the pool is to be exported first
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire_pointer h{};
    h.magic = wire_magic;
    h.pid = getpid();
    h.fd = r->memory->fd;
    h.device = r->memory->device;
    h.block_id = r->memory->id;
    h.inode = r->memory->inode;
    h.offset = r->offset;
    h.len_bytes = r->len_bytes;
    std::memcpy(out, &h, sizeof(h));
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuMemPoolImportPointer,
             (CUdeviceptr * out, CUmemoryPool handle, CUmemPoolPtrExportData *data),
             (out, handle, data))
{
    hold held(drv().lock);
    pool *p = find_pool(held, handle);
    if (out == nullptr || data == nullptr || p == nullptr || !p->imported) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire_pointer h;
    std::memcpy(&h, data, sizeof(h));
    int fd = h.magic == wire_magic ? open_foreign(h.pid, h.fd, h.inode) : -1;
    if (fd < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult why = CUDA_SUCCESS;
    block_ref memory = adopt_block(fd, nullptr, false, &why);
    if (memory == nullptr) {
        return why;
    }
    if (h.offset >= memory->len_bytes || h.len_bytes > memory->len_bytes - h.offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t base = drv().space.reserve(memory->len_bytes);
    if (base == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range made;
    made.kind = memory_kind::pool_import;
    made.device = p->device;
    made.base = base + h.offset;
    made.len_bytes = h.len_bytes;
    made.memory = std::move(memory);
    made.offset = h.offset;
    made.from = p;
    made.import_key = base;
    p->kept.push_back(made.memory);
    *out = drv().space.insert(made).base;
    ++p->allocations;
    return CUDA_SUCCESS;
}
