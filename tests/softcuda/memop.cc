// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memop.cc: 32- and 64-bit words written and waited for in stream order.
#include "copy.h"

#include <atomic>

using namespace softcuda;

namespace {

template <class T> CUresult write_value(CUstream handle, CUdeviceptr at, T value, unsigned flags)
{
    hold held(drv().lock);
    stream_ref s;
    stretch where;
    CUresult answer = find_stream(held, handle, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (flags > 1 || at % sizeof(T) != 0 || !find_word(held, s, at, sizeof(T), &where)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation op;
    op.run = [where, value] {
        reinterpret_cast<std::atomic<T> *>(where.at)->store(value, std::memory_order_release);
    };
    submit(held, s, std::move(op));
    return CUDA_SUCCESS;
}

template <class T> CUresult wait_value(CUstream handle, CUdeviceptr at, T value, unsigned flags)
{
    hold held(drv().lock);
    stream_ref s;
    stretch where;
    CUresult answer = find_stream(held, handle, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    unsigned how = flags & 3;
    if (at % sizeof(T) != 0 || !find_word(held, s, at, sizeof(T), &where)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation op;
    op.polled = true;
    op.ready = [where, value, how] {
        T now = reinterpret_cast<std::atomic<T> *>(where.at)->load(std::memory_order_acquire);
        switch (how) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return static_cast<std::make_signed_t<T>>(now - value) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ:
            return now == value;
        case CU_STREAM_WAIT_VALUE_AND:
            return (now & value) != 0;
        default:
            return (~(now | value)) != 0;
        }
    };
    submit(held, s, std::move(op));
    return CUDA_SUCCESS;
}

} // namespace

#define SOFTCUDA_MEMOP(name, type, body)                                                           \
    SOFTCUDA_API(context, name, (CUstream s, CUdeviceptr at, type value, unsigned flags),          \
                 (s, at, value, flags))                                                            \
    {                                                                                              \
        return body(s, at, value, flags);                                                          \
    }                                                                                              \
    SOFTCUDA_API(context, name##_ptsz, (CUstream s, CUdeviceptr at, type value, unsigned flags),   \
                 (s, at, value, flags))                                                            \
    {                                                                                              \
        return body(per_thread(s), at, value, flags);                                              \
    }

SOFTCUDA_MEMOP(cuStreamWriteValue32, cuuint32_t, write_value)
SOFTCUDA_MEMOP(cuStreamWriteValue64, cuuint64_t, write_value)
SOFTCUDA_MEMOP(cuStreamWaitValue32, cuuint32_t, wait_value)
SOFTCUDA_MEMOP(cuStreamWaitValue64, cuuint64_t, wait_value)
SOFTCUDA_MEMOP(cuStreamWriteValue32_v2, cuuint32_t, write_value)
SOFTCUDA_MEMOP(cuStreamWriteValue64_v2, cuuint64_t, write_value)
SOFTCUDA_MEMOP(cuStreamWaitValue32_v2, cuuint32_t, wait_value)
SOFTCUDA_MEMOP(cuStreamWaitValue64_v2, cuuint64_t, wait_value)

SOFTCUDA_API(context, cuStreamBatchMemOp_v2,
             (CUstream s, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags),
             (s, count, list, flags))
{
    if (list == nullptr || flags != 0 || count > 256) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
        const CUstreamBatchMemOpParams &p = list[i];
        CUresult answer = CUDA_ERROR_INVALID_VALUE;
        switch (static_cast<int>(p.operation)) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            answer = wait_value<cuuint32_t>(s, p.waitValue.address, p.waitValue.value,
                                            p.waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            answer = wait_value<cuuint64_t>(s, p.waitValue.address, p.waitValue.value64,
                                            p.waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            answer = write_value<cuuint32_t>(s, p.writeValue.address, p.writeValue.value, 0);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            answer = write_value<cuuint64_t>(s, p.writeValue.address, p.writeValue.value64, 0);
            break;
        default: // theirs: barriers and what comes later
            answer = CUDA_ERROR_NOT_SUPPORTED;
            break;
        }
        if (answer != CUDA_SUCCESS) {
            return answer;
        }
    }
    return CUDA_SUCCESS;
}
