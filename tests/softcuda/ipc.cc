// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc.cc: legacy IPC handles of memory. A handle names the exporting process, the file of the
// block and where in the block the allocation lies; opening one maps the whole block and
// answers the address of the allocation in it.
#include "event.h"
#include "stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace softcuda {

namespace {

struct wire_handle { // CUipcMemHandle
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
static_assert(sizeof(wire_handle) == sizeof(CUipcMemHandle));
constexpr std::uint32_t wire_magic = 0x6d637367;

// A block that some context of this process has opened.
struct import {
    context *ctx;
    block_ref memory;
    std::uint64_t base;
    int ranges = 0;
    std::int32_t pid = 0; // of the exporter
};
std::map<std::pair<std::uint64_t, context *>, import> imports; // by block id

} // namespace

int open_foreign(int pid, int fd, std::uint64_t inode)
{
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    int mine = open(path, O_RDWR | O_CLOEXEC);
    struct stat st {};
    if (mine >= 0 && (fstat(mine, &st) != 0 || st.st_ino != inode)) {
        close(mine); // the number means another file by now
        mine = -1;
    }
    return mine;
}

void ipc_release(const hold &, range *what)
{
    auto it = imports.find({what->import_key, what->ctx});
    drv().space.erase(what->base);
    if (it != imports.end() && --it->second.ranges == 0) {
        drv().space.unreserve(it->second.base, it->second.memory->len_bytes);
        imports.erase(it);
    }
}

static CUresult open_handle(CUdeviceptr *out, const wire_handle &h)
{
    if (h.magic != wire_magic || h.len_bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (h.pid == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    hold held(drv().lock);
    context *ctx = current_context();
    int device = visible_device(h.device);
    if (device < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (device != ctx->device && !drv().peers_connected) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    // One context of a device at a time has memory of a process open.
    for (const auto &[key, other] : imports) {
        if (other.pid == h.pid && other.ctx != ctx && other.ctx->device == ctx->device) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    auto it = imports.find({h.block_id, ctx});
    if (it == imports.end()) {
        int fd = open_foreign(h.pid, h.fd, h.inode);
        if (fd < 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        CUresult why = CUDA_SUCCESS;
import fresh{ctx, adopt_block(fd, nullptr, false, & why), 0, 0, h.pid };
        if (fresh.memory == nullptr) {
            return why;
        }
        if (fresh.memory->id != h.block_id || h.offset >= fresh.memory->len_bytes ||
            h.len_bytes > fresh.memory->len_bytes - h.offset) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        fresh.base = drv().space.reserve(fresh.memory->len_bytes);
        if (fresh.base == 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        it = imports.emplace(std::make_pair(h.block_id, ctx), fresh).first;
    }
    import &in = it->second;
    if (h.offset >= in.memory->len_bytes || h.len_bytes > in.memory->len_bytes - h.offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    range *r = drv().space.find_base(in.base + h.offset);
    if (r == nullptr) {
        range made;
        made.kind = memory_kind::ipc;
        made.ctx = ctx;
        made.device = device;
        made.base = in.base + h.offset;
        made.len_bytes = h.len_bytes;
        made.memory = in.memory;
        made.offset = h.offset;
        made.import_key = h.block_id;
        r = &drv().space.insert(made);
        ++in.ranges;
    } else if (r->len_bytes < h.len_bytes) {
        r->len_bytes = h.len_bytes; // the owner freed it and made a longer one in its place
    }
    ++r->opens;
    *out = r->base;
    return CUDA_SUCCESS;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(context, cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr at), (out, at))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    range *r = drv().space.find(at);
    if (r == nullptr || r->kind != memory_kind::device || r->freeing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire_handle h{};
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

SOFTCUDA_API(context, cuIpcOpenMemHandle_v2,
             (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags), (out, handle, flags))
{
    if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire_handle h;
    std::memcpy(&h, &handle, sizeof(h));
    return open_handle(out, h);
}
SOFTCUDA_SAME(context, cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2,
              (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags), (out, handle, flags),
              (out, handle, flags))

SOFTCUDA_API(context, cuIpcCloseMemHandle, (CUdeviceptr at), (at))
{
    hold held(drv().lock);
    range *r = drv().space.find_base(at);
    if (r == nullptr || r->kind != memory_kind::ipc) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (--r->opens > 0) {
        return CUDA_SUCCESS;
    }
    // Copies that still run hold the memory itself; the address is gone now.
    ipc_release(held, r);
    return CUDA_SUCCESS;
}
