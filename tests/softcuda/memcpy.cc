// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memcpy.cc: the exported copy functions.
#include "copy.h"

#include <vector>

using namespace softcuda;

namespace {

std::uint64_t address(const void *p)
{
    return reinterpret_cast<std::uint64_t>(p);
}

constexpr manner now = manner::synchronous;
constexpr manner late = manner::asynchronous;

// A row at a time; the rows of one call stay in stream order.
CUresult copy_2d(CUstream s, manner how, const CUDA_MEMCPY2D *c)
{
    if (c == nullptr || c->srcMemoryType == CU_MEMORYTYPE_ARRAY ||
        c->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t src = c->srcMemoryType == CU_MEMORYTYPE_HOST ? address(c->srcHost) : c->srcDevice;
    std::uint64_t dst = c->dstMemoryType == CU_MEMORYTYPE_HOST ? address(c->dstHost) : c->dstDevice;
    std::size_t src_pitch = c->srcPitch != 0 ? c->srcPitch : c->WidthInBytes;
    std::size_t dst_pitch = c->dstPitch != 0 ? c->dstPitch : c->WidthInBytes;
    if (src_pitch < c->WidthInBytes || dst_pitch < c->WidthInBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    src += c->srcY * src_pitch + c->srcXInBytes;
    dst += c->dstY * dst_pitch + c->dstXInBytes;
    for (std::size_t y = 0; y < c->Height; ++y) {
        CUresult answer = copy(s, how, dst + y * dst_pitch, src + y * src_pitch, c->WidthInBytes);
        if (answer != CUDA_SUCCESS) {
            return answer;
        }
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
    if (failed != nullptr) {
        *failed = SIZE_MAX;
    }
    if (s == nullptr || s == CU_STREAM_LEGACY || count == 0 || dsts == nullptr || srcs == nullptr ||
        sizes == nullptr || attributes == nullptr || indices == nullptr || attribute_count == 0 ||
        attribute_count > count || indices[0] != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto *list = static_cast<const batch_attributes *>(attributes);
    for (std::size_t i = 0; i < attribute_count; ++i) {
        if (list[i].order < 1 || list[i].order > 3 || (i > 0 && indices[i] <= indices[i - 1]) ||
            indices[i] >= count) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        CUresult answer =
            sizes[i] == 0 ? CUDA_ERROR_INVALID_VALUE : copy(s, late, dsts[i], srcs[i], sizes[i]);
        if (answer != CUDA_SUCCESS) {
            if (failed != nullptr) {
                *failed = i;
            }
            return answer;
        }
    }
    return CUDA_SUCCESS;
}

} // namespace

// Each synchronous function, with its _ptds twin, and each asynchronous one with _ptsz.
#define SOFTCUDA_COPY(name, first, second)                                                         \
    SOFTCUDA_API(context, name, (first dst, second src, size_t len), (dst, src, len))              \
    {                                                                                              \
        return copy(nullptr, now, std::uint64_t(dst), std::uint64_t(src), len);                    \
    }                                                                                              \
    SOFTCUDA_API(context, name##_ptds, (first dst, second src, size_t len), (dst, src, len))       \
    {                                                                                              \
        return copy(CU_STREAM_PER_THREAD, now, std::uint64_t(dst), std::uint64_t(src), len);       \
    }
#define SOFTCUDA_COPY_ASYNC(name, first, second)                                                   \
    SOFTCUDA_API(context, name, (first dst, second src, size_t len, CUstream s),                   \
                 (dst, src, len, s))                                                               \
    {                                                                                              \
        return copy(s, late, std::uint64_t(dst), std::uint64_t(src), len);                         \
    }                                                                                              \
    SOFTCUDA_API(context, name##_ptsz, (first dst, second src, size_t len, CUstream s),            \
                 (dst, src, len, s))                                                               \
    {                                                                                              \
        return copy(per_thread(s), late, std::uint64_t(dst), std::uint64_t(src), len);             \
    }

SOFTCUDA_COPY(cuMemcpy, CUdeviceptr, CUdeviceptr)
SOFTCUDA_COPY(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
SOFTCUDA_COPY(cuMemcpyDtoH_v2, void *, CUdeviceptr)
SOFTCUDA_COPY(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
SOFTCUDA_COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
SOFTCUDA_COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
SOFTCUDA_COPY_ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
SOFTCUDA_COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

static bool known_contexts(CUcontext a, CUcontext b)
{
    hold held(drv().lock);
    auto *x = reinterpret_cast<context *>(a);
    auto *y = reinterpret_cast<context *>(b);
    return drv().contexts.count(x) != 0 && drv().contexts.count(y) != 0 && x->alive && y->alive;
}

SOFTCUDA_API(context, cuMemcpyPeer,
             (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t len),
             (dst, to, src, from, len))
{
    return known_contexts(to, from) ? copy(nullptr, now, dst, src, len)
                                    : CUDA_ERROR_INVALID_CONTEXT;
}
SOFTCUDA_API(context, cuMemcpyPeerAsync,
             (CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t len,
              CUstream s),
             (dst, to, src, from, len, s))
{
    return known_contexts(to, from) ? copy(s, late, dst, src, len) : CUDA_ERROR_INVALID_CONTEXT;
}

SOFTCUDA_API(context, cuMemcpy2D_v2, (const CUDA_MEMCPY2D *c), (c))
{
    return copy_2d(nullptr, now, c);
}
SOFTCUDA_API(context, cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *c), (c))
{
    return copy_2d(nullptr, now, c);
}
SOFTCUDA_API(context, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *c, CUstream s), (c, s))
{
    return copy_2d(s, late, c);
}
SOFTCUDA_API(context, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *c, CUstream s), (c, s))
{
    return copy_2d(per_thread(s), late, c);
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
    return copy_batch(s, dsts, srcs, sizes, count, attrs, indices, attr_count, nullptr);
}
