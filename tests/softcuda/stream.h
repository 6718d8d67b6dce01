// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream.h: work that runs late. Every stream has a worker thread of its own, started with the
// first operation; an idle one sleeps. Order between streams (legacy stream, events) is kept by the
// operations themselves.
#ifndef GPUSM_SOFTCUDA_STREAM_H
#define GPUSM_SOFTCUDA_STREAM_H

#include "driver.h"

#include <pthread.h>

#include <chrono>
#include <deque>
#include <functional>

namespace softcuda {

struct dependency {
    stream_ref on;
    std::uint64_t number; // done when on->completed reaches it
};

struct operation {
    std::function<void()> run = {};   // outside the lock; may be empty
    std::function<bool()> ready = {}; // under the lock; empty: always
    bool polled = false;              // `ready` looks at something no worker of ours changes
    std::vector<dependency> after = {};
    std::chrono::steady_clock::time_point not_before = {};
};

struct stream {
    context *ctx = nullptr;
    unsigned flags = 0;
    bool legacy = false;
    bool destroyed = false;
    bool started = false;
    std::uint64_t submitted = 0;
    std::uint64_t completed = 0;
    std::deque<operation> queue;
    std::condition_variable work;

    bool blocking() const { return !legacy && (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

// What a stream is looked up for, which decides whether it may be one that is being captured.
enum class use {
    work,     // no: the call cannot be a node of a graph, and the capture ends over it
    node,     // yes: see submit_node
    question, // yes, and the legacy stream may be asked about whatever else is captured
};

// What a CUstream means in the calling thread. INVALID_HANDLE for one that does not exist.
CUresult find_stream(const hold &held, CUstream handle, stream_ref *out, use wanted = use::work);

stream_ref make_stream(const hold &held, context *ctx, unsigned flags);

// Puts the operation at the end of the stream, ordered with the context's legacy stream.
// Returns its number.
std::uint64_t submit(const hold &held, const stream_ref &s, operation op);

// Blocks until the operation is done.
void wait_for(hold &held, const stream_ref &s, std::uint64_t number);

// Blocks until everything submitted to the context so far is done.
void wait_for_context(hold &held, context *ctx);

// Blocks until some operation of this process is done; `polled`: for a moment at most.
void wait_for_any(hold &held, bool polled);

// The stream is done with everything that it would have to wait for now.
bool stream_idle(const hold &held, const stream_ref &s);

// ---------------------------------------------------------------- capture

// A stream that is captured records into a graph instead of working, and some calls of some threads
// a capture does not survive.

// What its nodes do, called once per launch. A capture of one stream has no branches, so the order
// is all there is.
using graph = std::vector<std::function<void()>>;

// One capture sequence, from cuStreamBeginCapture to cuStreamEndCapture.
struct capture {
    stream_ref of;
    pthread_t begun_by;
    CUstreamCaptureMode mode;
    bool valid = true;
    graph recorded = {};
};

// The capture that the stream records into, or null.
capture *capture_of(const hold &held, const stream_ref &s);

// Some blocking stream of the context is being captured. Then its legacy stream, which waits for
// all of them, cannot be used; `spoil`: and the captures end over the attempt.
bool legacy_is_blocked(const hold &held, const context *ctx, bool spoil);

// Any stream of the context is being captured; these captures end over it.
bool spoil_captures_of(const hold &held, const context *ctx);

// One more node of the graph if the stream is being captured, else one more operation of the
// stream. Returns its number there; for a node 0.
std::uint64_t submit_node(const hold &held, const stream_ref &s, std::function<void()> run);

} // namespace softcuda

#endif
