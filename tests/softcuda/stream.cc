// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream.cc: the workers behind stream.h, and the stream functions of the driver.
#include "stream.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace softcuda {

namespace {

using clock = std::chrono::steady_clock;

bool may_run(operation &op)
{
    while (!op.after.empty()) {
        const dependency &d = op.after.back();
        if (d.on->completed < d.number) {
            return false;
        }
        op.after.pop_back();
    }
    return !op.ready || op.ready();
}

void worker(stream_ref s)
{
    hold held(drv().lock);
    for (;;) {
        if (s->queue.empty()) {
            if (s->destroyed) {
                return;
            }
            s->work.wait(held);
            continue;
        }
        operation &head = s->queue.front(); // only this thread removes it
        auto now = clock::now();
        if (now < head.not_before) {
            held.unlock();
            std::this_thread::sleep_for(head.not_before - now);
            held.lock();
            continue;
        }
        if (!may_run(head)) {
            wait_for_any(held, head.polled);
            continue;
        }
        operation op = std::move(head);
        held.unlock();
        if (op.run) {
            op.run();
        }
        op = operation{}; // what it kept alive goes before anybody is told
        held.lock();
        s->queue.pop_front();
        ++s->completed;
        if (drv().finished_waiters > 0) {
            drv().finished.notify_all();
        }
    }
}

void start_worker(const stream_ref &s)
{
    // The application's signals are not for this thread.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(worker, s).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void order_after(operation &op, const stream_ref &s)
{
    if (s->completed < s->submitted) {
        op.after.push_back({s, s->submitted});
    }
}

} // namespace

void wait_for_any(hold &held, bool polled)
{
    driver &d = drv();
    ++d.finished_waiters;
    if (polled) {
        d.finished.wait_for(held, std::chrono::microseconds(50));
    } else {
        d.finished.wait(held);
    }
    --d.finished_waiters;
}

stream_ref make_stream(const hold &, context *ctx, unsigned flags)
{
    auto s = std::make_shared<stream>();
    s->ctx = ctx;
    s->flags = flags;
    return s;
}

std::uint64_t submit(const hold &, const stream_ref &s, operation op)
{
    if (s->legacy) {
        for (const stream_ref &other : s->ctx->streams) {
            if (other->blocking()) {
                order_after(op, other);
            }
        }
    } else if (s->blocking() && s->ctx->legacy != nullptr) {
        order_after(op, s->ctx->legacy);
    }
    const bool waits_for_legacy = s->legacy || s->blocking();
    op.not_before =
        clock::now() +
        std::chrono::microseconds(waits_for_legacy ? drv().delay_us : drv().delay_nonblocking_us);
    s->queue.push_back(std::move(op));
    if (!s->started) {
        s->started = true;
        start_worker(s);
    }
    s->work.notify_one();
    return ++s->submitted;
}

void wait_for(hold &held, const stream_ref &s, std::uint64_t number)
{
    while (s->completed < number) {
        wait_for_any(held, false);
    }
}

void wait_for_context(hold &held, context *ctx)
{
    std::vector<dependency> all;
    if (ctx->legacy != nullptr) {
        all.push_back({ctx->legacy, ctx->legacy->submitted});
    }
    for (const stream_ref &s : ctx->streams) {
        all.push_back({s, s->submitted});
    }
    for (const dependency &d : all) {
        wait_for(held, d.on, d.number);
    }
}

bool stream_idle(const hold &, const stream_ref &s)
{
    if (s->completed < s->submitted) {
        return false;
    }
    if (s->legacy) {
        return std::all_of(s->ctx->streams.begin(), s->ctx->streams.end(), [](const stream_ref &o) {
            return !o->blocking() || o->completed == o->submitted;
        });
    }
    return true;
}

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
    return give(out, reinterpret_cast<CUstream>(s.get()));
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
    if (s->completed == s->submitted) {
        forget(s);
    } else {
        // What was submitted still runs, and the legacy stream still waits for it.
        const auto last = [s] {
            hold inner(drv().lock);
            forget(s);
        };
        submit(held, s, {.run = last});
    }
    s->destroyed = true;
    s->work.notify_one();
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init, cuLaunchHostFunc, (CUstream handle, CUhostFn run, void *with),
                (handle, run, with))
{
    REQUIRE(run != nullptr, CUDA_ERROR_INVALID_VALUE);
    stream_ref s;
    TRY(find_stream(held, handle, &s, use::node));
    submit_node(held, s, [run, with] { run(with); });
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(init_uncaptured, cuStreamSynchronize, (CUstream handle), (handle))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    if (s->legacy && !stream_idle(held, s)) {
        submit(held, s, operation{}); // takes its place behind the blocking streams
    }
    wait_for(held, s, s->submitted);
    return s->ctx->sticky;
}

SOFTCUDA_LOCKED(init_uncaptured, cuStreamQuery, (CUstream handle), (handle))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s));
    TRY(s->ctx->sticky);
    REQUIRE(!stream_idle(held, s), CUDA_SUCCESS);
    held.unlock();
    sched_yield(); // a caller that spins here must not keep the worker from the processor
    return CUDA_ERROR_NOT_READY;
}
