// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// capture.cc: stream capture, and graphs that come of it. From the driver's documentation, "Stream
// capture" of the programming guide and cuThreadExchangeStreamCaptureMode.
#include "capture.h"

#include <algorithm>
#include <cstring>

namespace softcuda {

std::atomic<int> captures_running{0};

namespace {

// Never destroyed: calls may come during exit.
auto &captures = *new std::vector<std::unique_ptr<capture>>;
auto &graphs = *new std::unordered_set<graph *>;
auto &executables = *new std::unordered_set<graph *>;
unsigned long long next_capture = 1;

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

// Calls that may wait for other work, or change what it can reach. The documentation names no list;
// that cuMemAlloc, cuEventQuery and the synchronising calls belong to it is known from reports.
bool capture_unsafe(const char *name) noexcept
{
    static const char *const names[] = {
        "cuCtxCreate",
        "cuCtxDestroy",
        "cuCtxSynchronize",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuDevicePrimaryCtxRelease",
        "cuIpcCloseMemHandle",
        "cuIpcOpenMemHandle",
        "cuDevicePrimaryCtxReset",
        "cuMemAlloc",
        "cuMemAllocHost",
        "cuMemAllocManaged",
        "cuMemAllocPitch",
        "cuMemFree",
        "cuMemFreeHost",
        "cuMemHostAlloc",
        "cuMemHostRegister",
        "cuMemHostUnregister",
        "cuMemcpy",
        "cuMemcpy2D",
        "cuMemcpy2DUnaligned",
        "cuMemcpyDtoD",
        "cuMemcpyDtoH",
        "cuMemcpyHtoD",
        "cuMemcpyPeer",
        "cuMemsetD16",
        "cuMemsetD32",
        "cuMemsetD8",
        "cuModuleLoadData",
        "cuModuleLoadDataEx",
        "cuModuleUnload",
        "cuStreamSynchronize",
        "cuStreamQuery",
    };
    return std::any_of(std::begin(names), std::end(names),
                       [name](const char *each) { return 0 == std::strcmp(each, name); });
}

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

static void drop(bool (*over)(const capture &, const void *), const void *argument)
{
    const auto gone = std::remove_if(captures.begin(), captures.end(),
                                     [&](const auto &each) { return over(*each, argument); });
    captures_running.fetch_sub(static_cast<int>(captures.end() - gone));
    captures.erase(gone, captures.end());
}

void drop_capture(const hold &, const stream *of)
{
    drop([](const capture &each, const void *s) { return each.of.get() == s; }, of);
}

void drop_captures(const hold &, const context *of)
{
    drop([](const capture &each, const void *ctx) { return each.of->ctx == ctx; }, of);
}

void record_node(const hold &held, const stream_ref &s, CUgraphNodeType type,
                 std::function<void()> run)
{
    capture_of(held, s)->recorded->nodes.push_back(
        std::make_shared<graph_node>(graph_node{type, std::move(run)}));
}

} // namespace softcuda

using namespace softcuda;

static CUresult begin(CUstream handle, CUstreamCaptureMode mode)
{
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    stream_ref s;
    const CUresult answer = find_stream(held, handle, &s, use::question);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (s->legacy) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (capture_of(held, s) != nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    auto made = std::make_unique<capture>();
    made->of = s;
    made->begun_by = pthread_self();
    made->mode = mode;
    made->id = next_capture++;
    captures.push_back(std::move(made));
    captures_running.fetch_add(1);
    return CUDA_SUCCESS;
}
SOFTCUDA_API(context, cuStreamBeginCapture_v2, (CUstream s, CUstreamCaptureMode mode), (s, mode))
{
    return begin(s, mode);
}
SOFTCUDA_API(context, cuStreamBeginCapture_v2_ptsz, (CUstream s, CUstreamCaptureMode mode),
             (s, mode))
{
    return begin(per_thread(s), mode);
}

static CUresult end(CUstream handle, CUgraph *out)
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold held(drv().lock);
    stream_ref s;
    const CUresult answer = find_stream(held, handle, &s, use::question);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    const auto running = std::find_if(captures.begin(), captures.end(),
                                      [&](const auto &each) { return each->of == s; });
    if (running == captures.end()) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    const std::unique_ptr<capture> ended = std::move(*running);
    captures.erase(running);
    captures_running.fetch_sub(1);
    *out = nullptr;
    if (CU_STREAM_CAPTURE_MODE_RELAXED != ended->mode &&
        0 == pthread_equal(ended->begun_by, pthread_self())) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (!ended->valid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    graph *made = ended->recorded.release();
    graphs.insert(made);
    *out = reinterpret_cast<CUgraph>(made);
    return CUDA_SUCCESS;
}
SOFTCUDA_API(context, cuStreamEndCapture, (CUstream s, CUgraph *out), (s, out))
{
    return end(s, out);
}
SOFTCUDA_API(context, cuStreamEndCapture_ptsz, (CUstream s, CUgraph *out), (s, out))
{
    return end(per_thread(s), out);
}

static CUresult ask(CUstream handle, CUstreamCaptureStatus *out, cuuint64_t *id)
{
    hold held(drv().lock);
    stream_ref s;
    const CUresult answer = find_stream(held, handle, &s, use::question);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    if (s->legacy && legacy_is_blocked(held, s->ctx, false)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const capture *running = capture_of(held, s);
    *out = running == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
           : running->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                              : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (running != nullptr && id != nullptr) {
        *id = running->id;
    }
    return CUDA_SUCCESS;
}
SOFTCUDA_API(context, cuStreamIsCapturing, (CUstream h, CUstreamCaptureStatus *out), (h, out))
{
    return ask(h, out, nullptr);
}
SOFTCUDA_API(context, cuStreamIsCapturing_ptsz, (CUstream h, CUstreamCaptureStatus *out), (h, out))
{
    return ask(per_thread(h), out, nullptr);
}
// The graph in the making and its last nodes are not told: nobody here adds nodes by hand.
SOFTCUDA_API(context, cuStreamGetCaptureInfo,
             (CUstream h, CUstreamCaptureStatus *out, cuuint64_t *id), (h, out, id))
{
    return ask(h, out, id);
}
SOFTCUDA_SAME(context, cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo,
              (CUstream h, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
               const CUgraphNode **nodes, size_t *count),
              (h, out, id, graph, nodes, count), (h, out, id))
#if CUDA_VERSION >= 12030
SOFTCUDA_SAME(context, cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo,
              (CUstream h, CUstreamCaptureStatus *out, cuuint64_t *id, CUgraph *graph,
               const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count),
              (h, out, id, graph, nodes, edges, count), (h, out, id))
#endif

SOFTCUDA_API(init, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode))
{
    if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- graphs

SOFTCUDA_API(init, cuGraphGetNodes, (CUgraph handle, CUgraphNode *out, size_t *count),
             (handle, out, count))
{
    hold held(drv().lock);
    auto *of = reinterpret_cast<graph *>(handle);
    if (graphs.count(of) == 0 || count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; out != nullptr && i < *count; ++i) {
        out[i] = i < of->nodes.size() ? reinterpret_cast<CUgraphNode>(of->nodes[i].get()) : nullptr;
    }
    *count = out == nullptr ? of->nodes.size() : std::min(*count, of->nodes.size());
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuGraphNodeGetType, (CUgraphNode handle, CUgraphNodeType *out), (handle, out))
{
    hold held(drv().lock);
    for (const graph *of : graphs) {
        for (const auto &each : of->nodes) {
            if (reinterpret_cast<CUgraphNode>(each.get()) == handle && out != nullptr) {
                *out = each->type;
                return CUDA_SUCCESS;
            }
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult destroy(std::unordered_set<graph *> *from, graph *what)
{
    hold held(drv().lock);
    if (from->erase(what) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    delete what;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuGraphDestroy, (CUgraph handle), (handle))
{
    return destroy(&graphs, reinterpret_cast<graph *>(handle));
}

SOFTCUDA_API(context, cuGraphInstantiateWithFlags,
             (CUgraphExec * out, CUgraph handle, unsigned long long flags), (out, handle, flags))
{
    (void)flags;
    hold held(drv().lock);
    auto *of = reinterpret_cast<graph *>(handle);
    if (out == nullptr || graphs.count(of) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto *made = new graph(*of);
    executables.insert(made);
    *out = reinterpret_cast<CUgraphExec>(made);
    return CUDA_SUCCESS;
}

SOFTCUDA_API(init, cuGraphExecDestroy, (CUgraphExec handle), (handle))
{
    return destroy(&executables, reinterpret_cast<graph *>(handle));
}

static CUresult launch_graph(CUgraphExec handle, CUstream where)
{
    hold held(drv().lock);
    auto *made = reinterpret_cast<graph *>(handle);
    stream_ref s;
    if (executables.count(made) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult answer = find_stream(held, where, &s);
    if (answer != CUDA_SUCCESS) {
        return answer;
    }
    for (const auto &each : made->nodes) {
        operation op;
        op.run = [each] { each->run(); };
        submit(held, s, std::move(op));
    }
    return CUDA_SUCCESS;
}
SOFTCUDA_API(context, cuGraphLaunch, (CUgraphExec made, CUstream s), (made, s))
{
    return launch_graph(made, s);
}
SOFTCUDA_API(context, cuGraphLaunch_ptsz, (CUgraphExec made, CUstream s), (made, s))
{
    return launch_graph(made, per_thread(s));
}
