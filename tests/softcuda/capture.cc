// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// capture.cc: stream capture, and graphs that come of it. From the driver's documentation, "Stream
// capture" of the programming guide and cuThreadExchangeStreamCaptureMode.
#include "stream.h"

#include <algorithm>

namespace softcuda {

std::atomic<int> captures_running{0};

namespace {

// Never destroyed: calls may come during exit.
auto &captures = *new std::vector<std::unique_ptr<capture>>;
auto &graphs = *new std::unordered_set<graph *>; // and those that can be launched

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Whether this thread's capture mode and that capture forbid unsafe calls here.
bool forbids(const capture &running)
{
    if (CU_STREAM_CAPTURE_MODE_RELAXED == thread_mode ||
        CU_STREAM_CAPTURE_MODE_RELAXED == running.mode) {
        return false;
    }
    return 0 != pthread_equal(running.begun_by, pthread_self()) ||
           (CU_STREAM_CAPTURE_MODE_GLOBAL == thread_mode &&
            CU_STREAM_CAPTURE_MODE_GLOBAL == running.mode);
}

} // namespace

bool capture_forbids() noexcept
{
    hold held(drv().lock);
    bool forbidden = false;
    for (const auto &each : captures) {
        if (forbids(*each)) {
            each->valid = false;
            forbidden = true;
        }
    }
    return forbidden;
}

capture *capture_of(const hold &, const stream_ref &s)
{
    if (captures_running.load(std::memory_order_relaxed) == 0) {
        return nullptr;
    }
    for (const auto &each : captures) {
        if (each->of == s) {
            return each.get();
        }
    }
    return nullptr;
}

bool legacy_is_blocked(const hold &, const context *ctx, bool spoil)
{
    bool blocked = false;
    for (const auto &each : captures) {
        if (each->of->ctx == ctx && each->of->blocking()) {
            blocked = true;
            each->valid = each->valid && !spoil;
        }
    }
    return blocked;
}

bool spoil_captures_of(const hold &, const context *ctx)
{
    bool any = false;
    for (const auto &each : captures) {
        if (each->of->ctx == ctx) {
            each->valid = false;
            any = true;
        }
    }
    return any;
}

std::uint64_t submit_node(const hold &held, const stream_ref &s, std::function<void()> run)
{
    if (capture *running = capture_of(held, s)) {
        running->recorded.push_back(std::move(run));
        return 0;
    }
    return submit(held, s, {.run = std::move(run)});
}

} // namespace softcuda

using namespace softcuda;

SOFTCUDA_LOCKED(context, cuStreamBeginCapture_v2, (CUstream handle, CUstreamCaptureMode mode),
                (handle, mode))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s, use::question));
    REQUIRE(!s->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(capture_of(held, s) == nullptr, CUDA_ERROR_ILLEGAL_STATE);
    captures.push_back(std::make_unique<capture>(capture{s, pthread_self(), mode}));
    captures_running.fetch_add(1);
    return CUDA_SUCCESS;
}

SOFTCUDA_LOCKED(context, cuStreamEndCapture, (CUstream handle, CUgraph *out), (handle, out))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s, use::question));
    const auto running = std::find_if(captures.begin(), captures.end(),
                                      [&](const auto &each) { return each->of == s; });
    REQUIRE(running != captures.end(), CUDA_ERROR_ILLEGAL_STATE);
    const std::unique_ptr<capture> ended = std::move(*running);
    captures.erase(running);
    captures_running.fetch_sub(1);
    *out = nullptr;
    REQUIRE(ended->valid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    auto *made = new graph(std::move(ended->recorded));
    graphs.insert(made);
    return give(out, reinterpret_cast<CUgraph>(made));
}

SOFTCUDA_LOCKED(context, cuStreamIsCapturing, (CUstream handle, CUstreamCaptureStatus *out),
                (handle, out))
{
    stream_ref s;
    TRY(find_stream(held, handle, &s, use::question));
    REQUIRE(!s->legacy || !legacy_is_blocked(held, s->ctx, false),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    const capture *running = capture_of(held, s);
    *out = running == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
           : running->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                              : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode))
{
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- graphs

// How many there are; the nodes themselves have no names here.
SOFTCUDA_LOCKED(init, cuGraphGetNodes, (CUgraph handle, CUgraphNode *out, size_t *count),
                (handle, out, count))
{
    auto *of = reinterpret_cast<graph *>(handle);
    REQUIRE(graphs.count(of) != 0 && out == nullptr, CUDA_ERROR_INVALID_VALUE);
    return give(count, of->size());
}

static CUresult destroy(graph *what)
{
    hold held(drv().lock);
    REQUIRE(graphs.erase(what) != 0, CUDA_ERROR_INVALID_VALUE);
    delete what;
    return CUDA_SUCCESS;
}
SOFTCUDA_API(init, cuGraphDestroy, (CUgraph handle), (handle))
{
    return destroy(reinterpret_cast<graph *>(handle));
}
SOFTCUDA_API(init, cuGraphExecDestroy, (CUgraphExec handle), (handle))
{
    return destroy(reinterpret_cast<graph *>(handle));
}

SOFTCUDA_LOCKED(context, cuGraphInstantiateWithFlags,
                (CUgraphExec * out, CUgraph handle, unsigned long long flags), (out, handle, flags))
{
    auto *of = reinterpret_cast<graph *>(handle);
    REQUIRE(graphs.count(of) != 0, CUDA_ERROR_INVALID_VALUE);
    auto *made = new graph(*of);
    graphs.insert(made);
    return give(out, reinterpret_cast<CUgraphExec>(made));
}

SOFTCUDA_LOCKED(context, cuGraphLaunch, (CUgraphExec handle, CUstream where), (handle, where))
{
    auto *made = reinterpret_cast<graph *>(handle);
    stream_ref s;
    REQUIRE(graphs.count(made) != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(find_stream(held, where, &s));
    for (const auto &run : *made) {
        submit(held, s, {.run = run});
    }
    return CUDA_SUCCESS;
}
