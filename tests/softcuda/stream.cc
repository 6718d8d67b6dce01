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
// The per-thread default stream of each (thread, context).
struct thread_streams {
    std::map<context *, std::weak_ptr<stream>> of;
};
thread_local thread_streams *mine = nullptr; // leaked at thread end: a destructor may run too late

CUresult find_any_stream(const hold &held, CUstream handle, stream_ref *out)
{
    context *ctx = current_context();
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        if (ctx == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (handle != CU_STREAM_PER_THREAD) {
            *out = ctx->legacy;
            return CUDA_SUCCESS;
        }
        if (mine == nullptr) {
            mine = new thread_streams;
        }
        stream_ref s = mine->of[ctx].lock();
        if (s == nullptr || s->destroyed) {
            s = make_stream(held, ctx, 0, 0);
            s->per_thread = true;
            ctx->streams.push_back(s);
            mine->of[ctx] = s;
        }
        *out = s;
        return CUDA_SUCCESS;
    }
    auto it = drv().streams.find(reinterpret_cast<stream *>(handle));
    if (it == drv().streams.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *out = it->second;
    return CUDA_SUCCESS;
}

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

} // namespace

CUresult find_stream(const hold &held, CUstream handle, stream_ref *out, use wanted)
{
    stream_ref found;
    CUresult answer = find_any_stream(held, handle, &found);
    if (answer == CUDA_SUCCESS) {
        answer = usable(held, found, wanted);
    }
    if (answer == CUDA_SUCCESS) {
        *out = found;
    }
    return answer;
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_API(context, cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority),
             (out, flags, priority))
{
    if (out == nullptr || flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    context *ctx = current_context();
    stream_ref s = make_stream(held, ctx, flags, std::clamp(priority, -5, 0));
    ctx->streams.push_back(s);
    drv().streams[s.get()] = s;
    *out = reinterpret_cast<CUstream>(s.get());
    return CUDA_SUCCESS;
}
SOFTCUDA_SAME(context, cuStreamCreate, cuStreamCreateWithPriority, (CUstream * out, unsigned flags),
              (out, flags), (out, flags, 0))

SOFTCUDA_API(init, cuStreamDestroy_v2, (CUstream handle), (handle))
{
    hold held(drv().lock);
    auto it = drv().streams.find(reinterpret_cast<stream *>(handle));
    if (it == drv().streams.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    stream_ref s = it->second;
    drv().streams.erase(it);
    drop_capture(held, s.get());
    auto &of = s->ctx->streams;
    if (s->completed == s->submitted) {
        of.erase(std::remove(of.begin(), of.end(), s), of.end());
    } else {
        // What was submitted still runs, and the legacy stream still waits for it.
        operation last;
        last.run = [s] {
            hold inner(drv().lock);
            auto &list = s->ctx->streams;
            list.erase(std::remove(list.begin(), list.end(), s), list.end());
        };
        submit(held, s, std::move(last));
    }
    s->destroyed = true;
    s->work.notify_one();
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (s->legacy && !stream_idle(held, s)) {
        submit(held, s, operation{}); // takes its place behind the blocking streams
    }
    wait_for(held, s, s->submitted);
    return s->ctx->sticky;
}
SOFTCUDA_API(init, cuStreamSynchronize, (CUstream s), (s))
{
    return synchronize(s);
}
SOFTCUDA_API(init, cuStreamSynchronize_ptsz, (CUstream s), (s))
{
    return synchronize(per_thread(s));
}

static CUresult query(CUstream handle)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (s->ctx->sticky != CUDA_SUCCESS) {
        return s->ctx->sticky;
    }
    if (stream_idle(held, s)) {
        return CUDA_SUCCESS;
    }
    held.unlock();
    sched_yield(); // a caller that spins here must not keep the worker from the processor
    return CUDA_ERROR_NOT_READY;
}
SOFTCUDA_API(init, cuStreamQuery, (CUstream s), (s))
{
    return query(s);
}
SOFTCUDA_API(init, cuStreamQuery_ptsz, (CUstream s), (s))
{
    return query(per_thread(s));
}

// One attribute of a stream, read under the lock.
template <class F> static CUresult inspect(CUstream handle, F &&read)
{
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s, use::question);
    if (answer == CUDA_SUCCESS) {
        read(*s);
    }
    return answer;
}

SOFTCUDA_API(init, cuStreamGetFlags, (CUstream h, unsigned *out), (h, out))
{
    return inspect(h, [&](stream &s) { *out = s.flags; });
}
SOFTCUDA_API(init, cuStreamGetPriority, (CUstream h, int *out), (h, out))
{
    return inspect(h, [&](stream &s) { *out = s.priority; });
}
SOFTCUDA_API(init, cuStreamGetId, (CUstream h, unsigned long long *out), (h, out))
{
    return inspect(h, [&](stream &s) { *out = s.id; });
}
SOFTCUDA_API(init, cuStreamGetCtx, (CUstream h, CUcontext *out), (h, out))
{
    return inspect(h, [&](stream &s) { *out = reinterpret_cast<CUcontext>(s.ctx); });
}
#if CUDA_VERSION >= 12080
SOFTCUDA_API(init, cuStreamGetDevice, (CUstream h, CUdevice *out), (h, out))
{
    return inspect(h, [&](stream &s) { *out = s.ctx->device; });
}
#endif

static CUresult host_function(CUstream handle, CUhostFn function, void *data)
{
    if (function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s);
    if (answer == CUDA_SUCCESS) {
        operation op;
        op.run = [function, data] { function(data); };
        submit(held, s, std::move(op));
    }
    return answer;
}
SOFTCUDA_API(context, cuLaunchHostFunc, (CUstream s, CUhostFn function, void *data),
             (s, function, data))
{
    return host_function(s, function, data);
}
SOFTCUDA_API(context, cuLaunchHostFunc_ptsz, (CUstream s, CUhostFn function, void *data),
             (s, function, data))
{
    return host_function(per_thread(s), function, data);
}

SOFTCUDA_API(context, cuStreamAddCallback,
             (CUstream handle, CUstreamCallback function, void *data, unsigned flags),
             (handle, function, data, flags))
{
    (void)flags;
    hold held(drv().lock);
    stream_ref s;
    CUresult answer = find_stream(held, handle, &s);
    if (answer == CUDA_SUCCESS) {
        operation op;
        op.run = [=] { function(handle, CUDA_SUCCESS, data); };
        submit(held, s, std::move(op));
    }
    return answer;
}

SOFTCUDA_API(context, cuStreamAttachMemAsync,
             (CUstream s, CUdeviceptr at, size_t len, unsigned flags), (s, at, len, flags))
{
    (void)at;
    (void)len;
    (void)flags;
    return inspect(s, [](stream &) {});
}
