// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memset.cc: the exported fill functions.
#include "copy.h"

using namespace softcuda;

#define SOFTCUDA_FILL(bits, type)                                                                  \
    SOFTCUDA_API(context, cuMemsetD##bits##_v2, (CUdeviceptr dst, type value, size_t count),       \
                 (dst, value, count))                                                              \
    {                                                                                              \
        return fill(nullptr, manner::synchronous, dst, value, (bits) / 8, count);                  \
    }                                                                                              \
    SOFTCUDA_API(context, cuMemsetD##bits##_v2_ptds, (CUdeviceptr dst, type value, size_t count),  \
                 (dst, value, count))                                                              \
    {                                                                                              \
        return fill(CU_STREAM_PER_THREAD, manner::synchronous, dst, value, (bits) / 8, count);     \
    }                                                                                              \
    SOFTCUDA_API(context, cuMemsetD##bits##Async,                                                  \
                 (CUdeviceptr dst, type value, size_t count, CUstream s), (dst, value, count, s))  \
    {                                                                                              \
        return fill(s, manner::asynchronous, dst, value, (bits) / 8, count);                       \
    }                                                                                              \
    SOFTCUDA_API(context, cuMemsetD##bits##Async_ptsz,                                             \
                 (CUdeviceptr dst, type value, size_t count, CUstream s), (dst, value, count, s))  \
    {                                                                                              \
        return fill(per_thread(s), manner::asynchronous, dst, value, (bits) / 8, count);           \
    }                                                                                              \
    SOFTCUDA_API(context, cuMemsetD2D##bits##_v2,                                                  \
                 (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),         \
                 (dst, pitch, value, width, height))                                               \
    {                                                                                              \
        for (size_t y = 0; y < height; ++y) {                                                      \
            CUresult answer =                                                                      \
                fill(nullptr, manner::synchronous, dst + y * pitch, value, (bits) / 8, width);     \
            if (answer != CUDA_SUCCESS) {                                                          \
                return answer;                                                                     \
            }                                                                                      \
        }                                                                                          \
        return CUDA_SUCCESS;                                                                       \
    }

SOFTCUDA_FILL(8, unsigned char)
SOFTCUDA_FILL(16, unsigned short)
SOFTCUDA_FILL(32, unsigned)
