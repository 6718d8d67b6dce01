// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// capture.h: stream capture: which streams record into a graph instead of working, and which calls
// of which threads a capture does not survive.
#ifndef GPUSM_SOFTCUDA_CAPTURE_H
#define GPUSM_SOFTCUDA_CAPTURE_H

#include "stream.h"

#include <pthread.h>

namespace softcuda {

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

// The stream, or the context with all that is in it, comes to an end.
void drop_capture(const hold &held, const stream *of);
void drop_captures(const hold &held, const context *of);

// Puts one more node into the stream's capture.
void record_node(const hold &held, const stream_ref &s, std::function<void()> run);

} // namespace softcuda

#endif
