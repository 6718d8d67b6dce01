// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/node.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cinttypes>
#include <mutex>
#include <utility>

namespace gpusm {

node::node(segment &&own, bool threads)
    : mutex_(threads), own_(std::move(own)), inbox_(own_.view().fifo)
{
}

peer *node::add_peer(const segment_identity &identity, const std::string &directory)
{
    const std::lock_guard guard(mutex_);
    for (const auto &known : peers_) {
        if (known->identity() == identity) {
            return known.get();
        }
    }
    const bool threads = mutex_.threads();
    peers_.push_back(std::make_unique<peer>(own_.identity(), identity, directory, threads));
    return peers_.back().get();
}

peer *node::new_sender(std::uint32_t slot)
{
    const segment_view &view = own_.view();
    // In this order: a slot that nobody has taken may have no memory behind it.
    if (slot >= view.peer_slots ||
        slot >= view.header->peers_claimed.load(std::memory_order_acquire) ||
        1 != view.peers[slot].ready.load(std::memory_order_acquire)) {
        log_line(log_level::error,
                 "a message from peer slot %" PRIu32 ", which nobody has taken, was dropped", slot);
        return nullptr;
    }
    if (slot >= senders_.size()) {
        senders_.resize(slot + 1);
    }
    const segment_identity identity = view.peers[slot].identity;
    // A peer of whom the layer above has not spoken yet keeps its file where we keep ours.
    peer *from = add_peer(identity, own_.directory());
    const status s = from->attach();
    // A passing failure is tried again with the next message; this one is lost.
    senders_[slot].known = status::ok == s || status::bad_peer == s || status::peer_gone == s;
    if (status::ok == s) {
        senders_[slot].from = from;
    } else if (status::bad_peer != s) { // of which attach() has said what is wrong
        log_line(log_level::error,
                 "messages from process %" PRIu32 " of job %08" PRIx32
                 " are dropped: its segment cannot be mapped: %s",
                 identity.vpid, identity.jobid, to_string(s));
    }
    return senders_[slot].from;
}

bool node::check(peer &from, fifo_message message, frag_header *header,
                 const unsigned char **payload)
{
    if (from.closed()) {
        return false;
    }
    if (from.shared().read_fragment(message.granule, header, payload) &&
        header->sequence == from.next_sequence) {
        return true;
    }
    log_line(log_level::error,
             "process %" PRIu32 " of job %08" PRIx32
             " sent a message that makes no sense (granule %" PRIu32
             "); nothing more is sent to it or taken from it",
             from.identity().vpid, from.identity().jobid, message.granule);
    from.close();
    return false;
}

} // namespace gpusm
