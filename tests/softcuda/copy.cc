// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy.cc: see copy.h.
//
// From the driver's documentation, "API synchronization behavior": a copy out of pageable
// memory returns when the bytes are staged, which may be before they reach the device; a copy
// into pageable memory returns when it is complete; device to device and fills return at once,
// also in the synchronous functions; SYNC_MEMOPS makes synchronous functions wait.
#include "copy.h"
#include "capture.h"

#include <cstring>

namespace softcuda {

namespace {

constexpr std::size_t staged_limit = 64 << 10;
constexpr unsigned context_sync_memops = 0x80; // CU_CTX_SYNC_MEMOPS, by number for old headers

enum class place { device, pinned, pageable };

struct side {
    std::vector<stretch> parts;
    place where = place::pageable;
    bool sync_memops = false;
};

bool look_up(const stream_ref &s, std::uint64_t at, std::size_t len, bool write, side *out)
{
    range *r = drv().space.find(at);
    if (at + len < at || !drv().space.resolve(at, len, s->ctx->device, write, &out->parts)) {
        return false;
    }
    if (r != nullptr) {
        if (!r->cpu_accessible()) {
            // Never across the end of one device allocation into another or into host memory.
            for (const stretch &part : out->parts) {
                if (part.keep == nullptr ||
                    (r->kind != memory_kind::vmm && out->parts.size() > 1)) {
                    return false;
                }
            }
        }
        out->where =
            r->cpu_accessible() && r->kind != memory_kind::managed ? place::pinned : place::device;
        // Host memory that is registered in part, or in two parts: an H200's driver refuses it.
        if (out->where == place::pinned && at + len > r->base + r->len_bytes) {
            return false;
        }
        out->sync_memops = r->sync_memops || (s->ctx->flags & context_sync_memops) != 0;
    } else if (len > 0 && drv().space.find(at + len - 1) != nullptr) {
        return false; // registered from somewhere inside on
    } else if (out->parts.size() > 1) {
        for (const stretch &part : out->parts) {
            if (part.keep != nullptr) {
                return false;
            }
        }
    }
    return true;
}

void move_parts(const std::vector<stretch> &dst, const std::vector<stretch> &src)
{
    std::size_t i = 0;
    std::size_t j = 0;
    std::size_t in_i = 0;
    std::size_t in_j = 0;
    while (i < dst.size() && j < src.size()) {
        std::size_t part = std::min(dst[i].len_bytes - in_i, src[j].len_bytes - in_j);
        std::memmove(dst[i].at + in_i, src[j].at + in_j, part);
        if ((in_i += part) == dst[i].len_bytes) {
            ++i;
            in_i = 0;
        }
        if ((in_j += part) == src[j].len_bytes) {
            ++j;
            in_j = 0;
        }
    }
}

} // namespace

CUresult copy(CUstream handle, manner how, std::uint64_t dst, std::uint64_t src, std::size_t len)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer =
        find_stream(held, handle, &s, how == manner::asynchronous ? use::node : use::work);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (len == 0) {
        return CUDA_SUCCESS;
    }
    side to;
    side from;
    if (dst == 0 || src == 0 || !look_up(s, dst, len, true, &to) ||
        !look_up(s, src, len, false, &from)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (capture *running = capture_of(held, s)) {
        if (to.where == place::pageable || from.where == place::pageable) {
            running->valid = false;
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        record_node(held, s, CU_GRAPH_NODE_TYPE_MEMCPY,
                    [to = to.parts, from = from.parts] { move_parts(to, from); });
        return CUDA_SUCCESS;
    }
    bool wait = how == manner::synchronous;
    if (to.where == place::device && from.where == place::device) {
        wait = wait && (to.sync_memops || from.sync_memops);
    }
    if (to.where == place::pageable) {
        wait = true;
    }
    if (from.where == place::pageable) {
        bool early = drv().early_return && len <= staged_limit && to.where != place::pageable &&
                     !(how == manner::synchronous && to.sync_memops);
        wait = !early;
        if (early) {
            if (how == manner::synchronous) { // "a stream sync is performed before the copy"
                wait_for(held, s, s->submitted);
            }
            auto bytes = std::make_shared<std::vector<char>>(len);
            std::memcpy(bytes->data(), reinterpret_cast<const void *>(src), len);
            operation op;
            op.run = [to = std::move(to.parts), bytes] {
                move_parts(to, {{bytes->data(), bytes->size(), nullptr}});
            };
            submit(held, s, std::move(op));
            return CUDA_SUCCESS;
        }
    }
    operation op;
    op.run = [to = std::move(to.parts), from = std::move(from.parts)] { move_parts(to, from); };
    std::uint64_t number = submit(held, s, std::move(op));
    if (wait) {
        wait_for(held, s, number);
        return how == manner::synchronous ? s->ctx->sticky : CUDA_SUCCESS;
    }
    return CUDA_SUCCESS;
}

CUresult fill(CUstream handle, manner how, std::uint64_t dst, unsigned value, unsigned unit,
              std::size_t count)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer =
        find_stream(held, handle, &s, how == manner::asynchronous ? use::node : use::work);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    side to;
    std::size_t len = count * unit;
    if (dst % unit != 0 || !look_up(s, dst, len, true, &to) ||
        (len > 0 && to.where == place::pageable)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool wait = how == manner::synchronous && (to.where == place::pinned || to.sync_memops);
    operation op;
    op.run = [to = std::move(to.parts), value, unit] {
        for (const stretch &part : to) {
            if (unit == 1) {
                std::memset(part.at, static_cast<int>(value), part.len_bytes);
                continue;
            }
            for (std::size_t i = 0; i + unit <= part.len_bytes; i += unit) {
                std::memcpy(part.at + i, &value, unit); // little-endian: the low bytes
            }
        }
    };
    if (capture_of(held, s) != nullptr) {
        record_node(held, s, CU_GRAPH_NODE_TYPE_MEMSET, std::move(op.run));
        return CUDA_SUCCESS;
    }
    std::uint64_t number = submit(held, s, std::move(op));
    if (wait) {
        wait_for(held, s, number);
    }
    return CUDA_SUCCESS;
}

bool find_word(const hold &, const stream_ref &s, std::uint64_t at, std::size_t len, stretch *out)
{
    std::vector<stretch> parts;
    if (drv().space.find(at) == nullptr ||
        !drv().space.resolve(at, len, s->ctx->device, true, &parts) || parts.size() != 1) {
        return false;
    }
    *out = parts[0];
    return true;
}

} // namespace softcuda
