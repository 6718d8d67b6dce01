// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc.cc: legacy IPC handles of memory. A handle names the exporting process, the file of the
// block and where in the block the allocation lies; opening one maps the whole block and
// answers the address of the allocation in it.
#include "stream.h"

#include <unistd.h>

#include <algorithm>
#include <bit>

namespace softcuda {

namespace {

constexpr std::uint32_t wire_magic = 0x6d637367;

// A block that some context of this process has opened.
struct imported_block {
    block_ref memory;
    std::uint64_t base = 0;
    int ranges = 0;
    std::int32_t pid = 0; // of the exporter
};
std::map<std::pair<std::uint64_t, context *>, imported_block> imports; // by inode

CUresult open_handle(CUdeviceptr *out, const wire_place &h)
{
    REQUIRE(h.magic == wire_magic && h.len_bytes > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(h.pid != getpid(), CUDA_ERROR_INVALID_CONTEXT);
    hold held(drv().lock);
    context *ctx = current_context();
    const int device = visible_device(h.device);
    REQUIRE(device >= 0, CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(device == ctx->device || drv().peers_connected, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    for (const auto &[key, other] : imports) { // one context of a device at a time
        REQUIRE(other.pid != h.pid || key.second == ctx || key.second->device != ctx->device,
                CUDA_ERROR_INVALID_HANDLE);
    }
    auto it = imports.find({h.inode, ctx});
    if (it == imports.end()) {
        imported_block fresh;
        TRY(open_place(h, &fresh.memory));
        fresh.pid = h.pid;
        fresh.base = drv().space.reserve(fresh.memory->len_bytes);
        REQUIRE(fresh.base != 0, CUDA_ERROR_OUT_OF_MEMORY);
        it = imports.emplace(std::make_pair(h.inode, ctx), fresh).first;
    }
    imported_block &in = it->second;
    REQUIRE(h.offset < in.memory->len_bytes && h.len_bytes <= in.memory->len_bytes - h.offset,
            CUDA_ERROR_INVALID_VALUE);
    // As a real driver does, also when the owner has freed what overlaps.
    range *r = drv().space.find_base(in.base + h.offset);
    REQUIRE(r != nullptr ? r->len_bytes == h.len_bytes
                         : !drv().space.overlaps(in.base + h.offset, h.len_bytes),
            CUDA_ERROR_ALREADY_MAPPED);
    if (r == nullptr) {
        range made;
        made.kind = memory_kind::ipc;
        made.ctx = ctx;
        made.device = device;
        made.base = in.base + h.offset;
        made.len_bytes = h.len_bytes;
        made.memory = in.memory;
        made.offset = h.offset;
        made.import_key = h.inode;
        r = &drv().space.insert(made);
        ++in.ranges;
    }
    ++r->opens;
    return give(out, r->base);
}

} // namespace

void ipc_release(const hold &, range *what)
{
    auto it = imports.find({what->import_key, what->ctx});
    drv().space.erase(what->base);
    if (it != imports.end() && --it->second.ranges == 0) {
        drv().space.unreserve(it->second.base, it->second.memory->len_bytes);
        imports.erase(it);
    }
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(context, cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr at), (out, at))
{
    const range *r = drv().space.find(at);
    REQUIRE(r != nullptr && r->kind == memory_kind::device && !r->freeing,
            CUDA_ERROR_INVALID_VALUE);
    return give(out, std::bit_cast<CUipcMemHandle>(place_of(*r, wire_magic)));
}

SOFTCUDA_API(context_uncaptured, cuIpcOpenMemHandle_v2,
             (CUdeviceptr * out, CUipcMemHandle handle, unsigned flags), (out, handle, flags))
{
    REQUIRE(flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
    return open_handle(out, std::bit_cast<wire_place>(handle));
}

SOFTCUDA_LOCKED(context_uncaptured, cuIpcCloseMemHandle, (CUdeviceptr at), (at))
{
    range *r = drv().space.find_base(at);
    REQUIRE(r != nullptr && r->kind == memory_kind::ipc, CUDA_ERROR_INVALID_VALUE);
    wait_for_context(held, current_context());
    if (--r->opens == 0) { // copies that still run hold the memory itself
        ipc_release(held, r);
    }
    return CUDA_SUCCESS;
}
