// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_bounce.h: copies between device memory and ordinary host memory, ours or a peer's, in
// pieces through registered memory of ours (btl_gpusm_bounce.cc).
//
// Everything here is called under the GPU lock.
#ifndef BTL_GPUSM_BOUNCE_H
#define BTL_GPUSM_BOUNCE_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

enum class bounce_way : std::uint8_t {
    out,  // device memory to host memory of this process
    push, // device memory to host memory of `peer`
    pull, // host memory of `peer` to device memory
};

// One such copy. The caller fills in the first part, and owns it again when `over` is called.
struct bounce {
    bounce_way way;
    device *on; // in whose context the device's side is copied
    std::uint64_t source;
    std::uint64_t destination;
    std::uint64_t len_bytes;
    CUevent wait_for; // for the device memory to be read; null: nothing
    bool for_kernel;  // a kernel may touch the device memory
    bool is_part;     // of a message that is copied in parts: in one piece, if there are such
    mca_btl_base_endpoint_t *peer;
    void (*over)(bounce *job); // it has ended, as `failed` says

    std::uint64_t sent_bytes; // of which pieces have been sent out
    std::uint32_t under_way;  // pieces
    bool failed;
    bool waits; // in a list, for places of further pieces
    bounce *next;
};

// Is there memory for pieces, after having tried to get it?
bool can_bounce();
// Begins a copy of 1 byte or more, for which can_bounce() has been true.
void start_bounce(bounce *job);

// A copy_part::bounce has ended.
void bounced(copy_request *copy);
// Copies what has arrived, some tens of microseconds at most, so that other messages do not wait
// longer, and sends out further pieces.
void progress_bounces();
std::size_t bounce_bytes(); // what it may take of our segment, once
void release_bounces();     // copies have been cancelled

} // namespace gpusm

#endif
