// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/peer.h: one other process: what is on the way to it and what has come from it.
//
// Sending: a fragment is posted into the peer's FIFO and stays on the list `in_flight_` until
// the peer says, by its counter `consumed`, that it is done with it; then reap() hands it
// back. When the FIFO is full the fragment waits on the same list, behind the posted ones, and
// flush() posts it later; so nothing overtakes and the caller never waits.
#ifndef GPUSM_SHM_PEER_H
#define GPUSM_SHM_PEER_H

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/shm/segment.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace gpusm {

// What a sender keeps of a fragment; lives inside the caller's descriptor. The caller owns it
// except between a post() that took it and the reap() that hands it back.
struct outgoing {
    frag_header *header = nullptr; // in this process's own segment
    std::uint32_t granule = 0;     // the same place, as the FIFO names it
    outgoing *next = nullptr;
};

class peer {
  public:
    // Nothing is mapped yet; `self` is this process's segment.
    peer(const segment_identity &self, const segment_identity &identity, std::string directory,
         bool threads);

    // Sends a fragment whose header and payload are complete; fills in its sequence number.
    // `ok`: posted. `busy`: kept, and posted by a later flush(). Anything else: the fragment
    // still is the caller's; `peer_gone` and `bad_peer` are final.
    status post(outgoing *fragment);

    // A post will follow soon. Does nothing that can be seen; needs no lock.
    void expect_post() const
    {
        if (attached()) {
            fifo_own_ahead(segment_.view().fifo);
        }
    }

    // Posts what had to wait. True: something was posted.
    bool flush();

    // The next fragment that the peer is done with, oldest first, or null. From a closed peer
    // every fragment comes back.
    outgoing *reap();

    // Ends all traffic with the peer; posted and waiting fragments become ready to reap.
    void close();

    bool closed() const { return closed_.load(std::memory_order_relaxed); }
    // Snapshots: another thread may post or reap meanwhile.
    bool waiting();
    bool idle();

    // Maps the peer's segment if that has not happened yet.
    status attach();
    // True once shared() may be used, by any thread.
    bool attached() const { return attached_.load(std::memory_order_acquire); }
    const peer_segment &shared() const { return segment_; }
    const segment_identity &identity() const { return identity_; }

    // Free for the layer above: its endpoint, or null.
    void *user = nullptr;
    // Which fragment of this peer's own stream is due next; kept by node::poll.
    std::uint64_t next_sequence = 0;

  private:
    status attach_locked();
    status connect();
    status post_to_fifo(const outgoing &fragment);

    optional_mutex mutex_;
    const segment_identity self_;
    const segment_identity identity_;
    const std::string directory_;
    peer_segment segment_;
    std::atomic<bool> attached_{false};
    bool connected_ = false;
    bool full_ = false; // the peer has no slot for us, now or later
    std::atomic<bool> closed_{false};
    status refused_ = status::ok;     // an answer of attach() that will not change
    std::uint32_t slot_ = 0;          // ours, in the peer's segment
    outgoing *in_flight_ = nullptr;   // oldest first; posted ones before unposted ones
    outgoing *last_ = nullptr;        // the newest of them
    outgoing *unposted_ = nullptr;    // the oldest that is not in the peer's FIFO yet
    std::uint64_t next_to_post_ = 0;  // sequence number of the next fragment
    std::uint64_t reaped_ = 0;        // fragments handed back
    std::uint32_t full_in_a_row_ = 0; // flushes that found no room since the last success
};

} // namespace gpusm

#endif
