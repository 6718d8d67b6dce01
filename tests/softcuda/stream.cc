// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream.cc: the stream functions of the driver.
#include "capture.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace softcuda {

namespace {

// Whether a stream that exists can be used for this, whatever is captured.
CUresult usable(const hold &held, const stream_ref &s, use wanted)
{
    if (use::question == wanted || captures_running.load(std::memory_order_relaxed) == 0) {
        return CUDA_SUCCESS;
    }
    if (s->legacy) {
        return legacy_is_blocked(held, s->ctx, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                                     : CUDA_SUCCESS;
    }
    capture *running = capture_of(held, s);
    if (running == nullptr || (running->valid && use::node == wanted)) {
        return CUDA_SUCCESS;
    }
    return std::exchange(running->valid, false) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

void forget(const stream_ref &s)
{
    auto &of = s->ctx->streams;
    of.erase(std::remove(of.begin(), of.end(), s), of.end());
}

} // namespace

CUresult find_stream(const hold &held, CUstream handle, stream_ref *out, use wanted)
{
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        REQUIRE(current_context() != nullptr, CUDA_ERROR_INVALID_CONTEXT);
        *out = current_context()->legacy;
    } else {
        auto it = drv().streams.find(reinterpret_cast<stream *>(handle));
        REQUIRE(it != drv().streams.end(), CUDA_ERROR_INVALID_HANDLE);
        *out = it->second;
    }
    return usable(held, *out, wanted);
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(context, cuStreamCreate, (CUstream * out, unsigned flags), (out, flags))
{
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    context *ctx = current_context();
    stream_ref s = make_stream(held, ctx, flags);
    ctx->streams.push_back(s);
    drv().streams[s.get()] = s;
    *out = reinterpret_cast<CUstream>(s.get());
    return CUDA_SUCCESS;
}
SOFTCUDA_LOCKED(context, cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority),
                (out, flags, priority))
{
    return do_cuStreamCreate(held, out, flags);
}

SOFTCUDA_LOCKED(init, cuStreamDestroy_v2, (CUstream handle), (handle))
{
    auto it = drv().streams.find(reinterpret_cast<stream *>(handle));
    REQUIRE(it != drv().streams.end(), CUDA_ERROR_INVALID_HANDLE);
    stream_ref s = it->second;
    drv().streams.erase(it);
    drop_capture(held, s.get());
    if (s->completed == s->submitted) {
        forget(s);
    } else {
        // What was submitted still runs, and the legacy stream still waits for it.
        operation last;
        last.run = [s] {
            hold inner(drv().lock);
            forget(s);
        };
        submit(held, s, std::move(last));
    }
    s->destroyed = true;
    s->work.notify_one();
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuStreamSynchronize, (CUstream handle), (handle))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    if (s->legacy && !stream_idle(held, s)) {
        submit(held, s, operation{}); // takes its place behind the blocking streams
    }
    wait_for(held, s, s->submitted);
    return s->ctx->sticky;
}

SOFTCUDA_LOCKED(init, cuStreamQuery, (CUstream handle), (handle))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    TRY(s->ctx->sticky);
    REQUIRE(!stream_idle(held, s), CUDA_SUCCESS);
    held.unlock();
    sched_yield(); // a caller that spins here must not keep the worker from the processor
    return CUDA_ERROR_NOT_READY;
}
