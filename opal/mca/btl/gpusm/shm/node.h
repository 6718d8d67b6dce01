// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/node.h: this process among the others of its node: its segment, its inbox, its peers.
#ifndef GPUSM_SHM_NODE_H
#define GPUSM_SHM_NODE_H

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/shm/peer.h"
#include "opal/mca/btl/gpusm/shm/segment.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpusm {

class node {
  public:
    node(segment &&own, bool threads);

    segment &own() { return own_; }

    // The peer with that identity, made if it is new; the node owns it. Nothing is mapped.
    peer *add_peer(const segment_identity &identity, const std::string &directory);

    const std::vector<std::unique_ptr<peer>> &peers() const { return peers_; }

    // Takes up to `limit` messages from the inbox and calls handle(peer &, const frag_header &,
    // const unsigned char *payload) for each. The header is a copy that the sender cannot change
    // any more; the payload may be read until `handle` returns. Returns how many. One thread at a
    // time; `handle` must not call poll. A message that makes no sense is reported and its sender
    // closed.
    template <typename Handler> int poll(int limit, Handler &&handle)
    {
        int handled = 0;
        fifo_message message;
        while (handled < limit && inbox_.take(&message)) {
            ++handled;
            peer *from = sender_at(message.sender);
            fetch_ahead();
            frag_header header;
            const unsigned char *payload = nullptr;
            if (nullptr == from || !check(*from, message, &header, &payload)) {
                continue;
            }
            handle(*from, header, payload);
            // Release pairs with peer::reap: our reads of the fragment are over.
            own_.view().peers[message.sender].consumed.store(++from->next_sequence,
                                                             std::memory_order_release);
        }
        return handled;
    }

  private:
    // The peer behind one of our peer slots; mapped on its first message. Null: nobody that we
    // could talk to.
    peer *sender_at(std::uint32_t slot)
    {
        return slot < senders_.size() && senders_[slot].known ? senders_[slot].from
                                                              : new_sender(slot);
    }
    // The next message's lines come from another processor's cache, which takes about as long as
    // handling this one: so ask for them now. A wrong address does no harm.
    void fetch_ahead() const
    {
        fifo_message next;
        if (inbox_.peek(&next) && next.sender < senders_.size() &&
            senders_[next.sender].from != nullptr) {
            senders_[next.sender].from->shared().fetch_ahead(next.granule);
        }
    }
    struct sender {
        peer *from = nullptr; // null: its messages are dropped
        bool known = false;
    };
    peer *new_sender(std::uint32_t slot);
    bool check(peer &from, fifo_message message, frag_header *header,
               const unsigned char **payload);

    optional_mutex mutex_; // of peers_
    segment own_;
    fifo_reader inbox_;
    std::vector<std::unique_ptr<peer>> peers_;
    std::vector<sender> senders_; // by our peer slot
};

} // namespace gpusm

#endif
