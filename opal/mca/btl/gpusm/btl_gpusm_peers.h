// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_peers.h: peers whose process has ended: how that is noticed, what Open MPI is told, and
// how what was kept for them is given back.
#ifndef BTL_GPUSM_PEERS_H
#define BTL_GPUSM_PEERS_H

#include <cstdint>

struct mca_btl_base_endpoint_t;

namespace gpusm {

struct transport;

// What is known of the end of a peer's process, or of its use of MPI.
struct peer_end {
    bool seen = false;
    std::uint64_t end_of_inbox = 0; // node::end_of_inbox then
    std::int64_t seen_at_ns = 0;
};

// Housekeeping, to be called now and then by the thread that makes progress: tells ob1 of the peers
// that have been closed, and asks one peer, every millisecond at most, whether its process lives.
// One that has ended is closed when all that it has sent has been read: at once if it has said that
// it ends, or if it shares no communicator with this process; else some seconds later, as a
// failure, which ob1 is told if the runtime has not acted by then. Then, when nothing of it is in
// flight, all that was kept for it is given back. One that was gone before this process had
// anything to do with it is no failure.
void look_after_peers(transport &all);

// The end of this process's sends to that peer (null: to all): returns when they have been posted
// and can be read without this process's file, or will never be read, as the peer has ended or is
// about to. Takes no messages. Where there is something to wait for, it sleeps between its looks.
void finish_sends(transport &all, const mca_btl_base_endpoint_t *to = nullptr);

} // namespace gpusm

#endif
