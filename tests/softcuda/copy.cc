// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy.cc: copies and fills: what the arguments mean, and how a call of each kind behaves towards
// its caller.
//
// From the driver's documentation, "API synchronization behavior": a copy out of pageable
// memory returns when the bytes are staged, which may be before they reach the device; a copy
// into pageable memory returns when it is complete; device to device and fills return at once,
// also in the synchronous functions; SYNC_MEMOPS makes synchronous functions wait.
#include "stream.h"

#include <algorithm>
#include <cstring>

namespace softcuda {

namespace {

// How a call treats its caller.
enum class manner {
    now,  // cuMemcpy and friends: legacy stream, returns when the documentation says so
    late, // ...Async: as late as the kinds of memory allow
};
use use_of(manner how)
{
    return how == manner::late ? use::node : use::work;
}

constexpr std::size_t staged_limit = 64 << 10;
constexpr unsigned context_sync_memops = 0x80; // CU_CTX_SYNC_MEMOPS, by number for old headers

enum class place { device, pinned, pageable };

struct side {
    std::vector<stretch> parts;
    place where = place::pageable;
    bool sync_memops = false;
    std::shared_ptr<std::vector<char>> staged; // pageable memory that was copied aside
};

bool look_up(const stream_ref &s, std::uint64_t at, std::size_t len, bool write, side *out)
{
    const range *r = drv().space.find(at);
    if (at + len < at || !drv().space.resolve(at, len, s->ctx->device, write, &out->parts)) {
        return false;
    }
    const auto of_device = std::count_if(out->parts.begin(), out->parts.end(),
                                         [](const stretch &part) { return part.keep != nullptr; });
    const auto parts = static_cast<std::ptrdiff_t>(out->parts.size());
    if (r != nullptr) {
        // Never across the end of one device allocation into another or into host memory.
        if (!r->cpu_accessible() &&
            (of_device < parts || (r->kind != memory_kind::vmm && parts > 1))) {
            return false;
        }
        out->where =
            r->cpu_accessible() && r->kind != memory_kind::managed ? place::pinned : place::device;
        // Host memory that is registered in part, or in two parts: an H200's driver refuses it.
        if (out->where == place::pinned && at + len > r->base + r->len_bytes) {
            return false;
        }
        out->sync_memops = r->sync_memops || (s->ctx->flags & context_sync_memops) != 0;
        return true;
    }
    // Registered from somewhere inside on, or with device memory in it.
    return (len == 0 || drv().space.find(at + len - 1) == nullptr) &&
           (parts <= 1 || of_device == 0);
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

// dst and src may be device, managed, pinned or pageable addresses.
CUresult copy(CUstream handle, manner how, std::uint64_t dst, std::uint64_t src, std::size_t len)
{
    hold held(drv().lock);
    stream_ref s;
    TRY(find_stream(held, handle, &s, use_of(how)));
    REQUIRE(len > 0, CUDA_SUCCESS);
    side to;
    side from;
    REQUIRE(dst != 0 && src != 0 && look_up(s, dst, len, true, &to) &&
                look_up(s, src, len, false, &from),
            CUDA_ERROR_INVALID_VALUE);
    if (capture *running = capture_of(held, s);
        running != nullptr && (to.where == place::pageable || from.where == place::pageable)) {
        running->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    bool wait = how == manner::now;
    if (to.where == place::device && from.where == place::device) {
        wait = wait && (to.sync_memops || from.sync_memops);
    }
    if (to.where == place::pageable) {
        wait = true;
    } else if (from.where == place::pageable) {
        wait = len > staged_limit || (how == manner::now && to.sync_memops);
        if (!wait) { // its bytes go at once, and arrive later
            if (how == manner::now) {
                wait_for(held, s, s->submitted); // "a stream sync is performed before the copy"
            }
            auto bytes = std::make_shared<std::vector<char>>(len);
            std::memcpy(bytes->data(), reinterpret_cast<const void *>(src), len);
            from.parts = {{bytes->data(), len, nullptr}};
            from.staged = bytes;
        }
    }
    const std::uint64_t number =
        submit_node(held, s, [to = std::move(to.parts), from = std::move(from)] {
            move_parts(to, from.parts);
        });
    if (wait) {
        wait_for(held, s, number);
    }
    return wait && how == manner::now ? s->ctx->sticky : CUDA_SUCCESS;
}

CUresult fill(CUstream handle, manner how, std::uint64_t dst, unsigned char value, std::size_t len)
{
    hold held(drv().lock);
    stream_ref s;
    TRY(find_stream(held, handle, &s, use_of(how)));
    side to;
    REQUIRE(look_up(s, dst, len, true, &to) && to.where != place::pageable,
            CUDA_ERROR_INVALID_VALUE);
    const bool wait = how == manner::now && (to.where == place::pinned || to.sync_memops);
    const std::uint64_t number = submit_node(held, s, [to = std::move(to.parts), value] {
        for (const stretch &part : to) {
            std::memset(part.at, value, part.len_bytes);
        }
    });
    if (wait) {
        wait_for(held, s, number);
    }
    return CUDA_SUCCESS;
}

// The layout of CUmemcpyAttributes, so that older headers will do as well.
struct batch_attributes {
    int order;
    int hints[4];
    unsigned flags;
};

CUresult copy_batch(CUstream s, const CUdeviceptr *dsts, const CUdeviceptr *srcs,
                    const std::size_t *sizes, std::size_t count, const void *attributes,
                    const std::size_t *indices, std::size_t attribute_count, std::size_t *failed)
{
    REQUIRE(s != nullptr && s != CU_STREAM_LEGACY && count > 0 && attribute_count > 0 &&
                attribute_count <= count && indices[0] == 0,
            CUDA_ERROR_INVALID_VALUE);
    const auto *list = static_cast<const batch_attributes *>(attributes);
    for (std::size_t i = 0; i < attribute_count; ++i) {
        REQUIRE(list[i].order >= 1 && list[i].order <= 3 && indices[i] < count &&
                    (i == 0 || indices[i] > indices[i - 1]),
                CUDA_ERROR_INVALID_VALUE);
    }
    for (std::size_t i = 0; i < count; ++i) {
        *failed = i;
        REQUIRE(sizes[i] > 0, CUDA_ERROR_INVALID_VALUE);
        TRY(copy(s, manner::late, dsts[i], srcs[i], sizes[i]));
    }
    return CUDA_SUCCESS;
}

} // namespace

} // namespace softcuda

using namespace softcuda;

// Each kind of copy, synchronous and asynchronous.
#define SOFTCUDA_COPY(name, async_name, first, second)                                             \
    SOFTCUDA_API(context_uncaptured, name, (first dst, second src, size_t len), (dst, src, len))   \
    {                                                                                              \
        return copy(nullptr, manner::now, std::uint64_t(dst), std::uint64_t(src), len);            \
    }                                                                                              \
    SOFTCUDA_API(context, async_name, (first dst, second src, size_t len, CUstream s),             \
                 (dst, src, len, s))                                                               \
    {                                                                                              \
        return copy(s, manner::late, std::uint64_t(dst), std::uint64_t(src), len);                 \
    }
SOFTCUDA_COPY(cuMemcpy, cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
SOFTCUDA_COPY(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
SOFTCUDA_COPY(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
SOFTCUDA_COPY(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

SOFTCUDA_API(context_uncaptured, cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t len),
             (dst, value, len))
{
    return fill(nullptr, manner::now, dst, value, len);
}
SOFTCUDA_API(context, cuMemsetD8Async,
             (CUdeviceptr dst, unsigned char value, size_t len, CUstream s), (dst, value, len, s))
{
    return fill(s, manner::late, dst, value, len);
}

#if CUDA_VERSION >= 12080
#define SOFTCUDA_ATTRIBUTES CUmemcpyAttributes
#else
#define SOFTCUDA_ATTRIBUTES void
#endif

// CUDA 12.8 and 12.9
SOFTCUDA_API(context, cuMemcpyBatchAsync,
             (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
              SOFTCUDA_ATTRIBUTES *attrs, size_t *indices, size_t attr_count, size_t *failed,
              CUstream s),
             (dsts, srcs, sizes, count, attrs, indices, attr_count, failed, s))
{
    return copy_batch(s, dsts, srcs, sizes, count, attrs, indices, attr_count, failed);
}
// CUDA 13
SOFTCUDA_API(context, cuMemcpyBatchAsync_v2,
             (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
              SOFTCUDA_ATTRIBUTES *attrs, size_t *indices, size_t attr_count, CUstream s),
             (dsts, srcs, sizes, count, attrs, indices, attr_count, s))
{
    size_t failed = 0;
    return copy_batch(s, dsts, srcs, sizes, count, attrs, indices, attr_count, &failed);
}

// Until the word in device memory or pinned host memory has that value.
SOFTCUDA_LOCKED(context, cuStreamWaitValue32_v2,
                (CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned flags),
                (handle, at, value, flags))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    std::vector<stretch> parts;
    REQUIRE(flags == CU_STREAM_WAIT_VALUE_EQ && drv().space.find(at) != nullptr &&
                drv().space.resolve(at, sizeof(value), s->ctx->device, false, &parts) &&
                parts.size() == 1,
            CUDA_ERROR_INVALID_VALUE);
    const auto reached = [word = parts[0], value] {
        return __atomic_load_n(reinterpret_cast<cuuint32_t *>(word.at), __ATOMIC_ACQUIRE) == value;
    };
    submit(held, s, {.ready = reached, .polled = true});
    return CUDA_SUCCESS;
}
