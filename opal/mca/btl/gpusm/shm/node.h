// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/node.h: this process among the others of its node: its segment, its inbox, its peers.
#ifndef GPUSM_SHM_NODE_H
#define GPUSM_SHM_NODE_H

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/shm/fast_box.h"
#include "opal/mca/btl/gpusm/shm/peer.h"
#include "opal/mca/btl/gpusm/shm/segment.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace gpusm {

class node {
  public:
    // At most `fast_box_max` senders get a fast box (shm/fast_box.h), if the segment has them at
    // all.
    node(segment &&own, bool threads, std::uint32_t fast_box_max = 0);

    segment &own() { return own_; }

    // The peer with that identity, made if it is new; the node owns it. Nothing is mapped.
    peer *add_peer(const segment_identity &identity, const std::string &directory);

    // Tells a peer that we cannot read its host memory and want fragments.
    void refuse_single_copies(const peer &from)
    {
        if (from.inbound_slot != peer::no_slot) {
            own_.view().peers[from.inbound_slot].refuses_single_copies.store(
                1, std::memory_order_relaxed);
        }
    }

    const std::vector<std::unique_ptr<peer>> &peers() const { return peers_; }

    // Takes about `limit` messages from the fast boxes and the FIFO and calls handle(peer &, const
    // frag_header &, const unsigned char *payload) for each. The header is a copy that the sender
    // cannot change any more; the payload may be read until `handle` returns. Returns how many. One
    // thread at a time; `handle` must not call poll. A message that makes no sense is reported and
    // its sender closed.
    template <typename Handler> int poll(int limit, Handler &&handle)
    {
        int handled = 0;
        for (inbound &each : fast_boxes_) {
            if (each.ring.has(each.from->next_sequence)) {
                handled += drain(each, std::min(limit, most_of_one_fast_box), handle);
            }
        }
        fifo_message next;
        if (inbox_.peek(&next)) {
            handled += drain_fifo(limit, handle);
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
        std::uint32_t fast_box = no_fast_box; // index in fast boxes_
    };
    struct inbound {
        fast_box_reader ring;
        peer *from;
        std::uint32_t slot;
    };
    static constexpr std::uint32_t no_fast_box = UINT32_MAX;
    static constexpr int most_of_one_fast_box = 32;
    static constexpr std::uint32_t payload_fetched_ahead = 2048;
    // Who has sent so many messages gets a fast box.
    static constexpr std::uint64_t messages_before_fast_box = 16;

    // The payload of a message in a fast box comes while the message is being matched, but for the
    // line that its word is in.
    static void fetch_ahead(const unsigned char *payload, std::size_t bytes)
    {
        for (std::size_t line = cache_line_bytes; line < bytes; line += cache_line_bytes) {
            __builtin_prefetch(payload + line);
        }
    }
    // Not a part of poll(), which would have to put away registers for it in every idle round.
    template <typename Handler> [[gnu::noinline]] int drain_fifo(int limit, Handler &handle)
    {
        int handled = 0;
        fifo_message message;
        for (int taken = 0; taken < limit && inbox_.take(&message); ++taken) {
            peer *from = sender_at(message.sender);
            fetch_ahead();
            if (from != nullptr && !from->closed()) {
                handled += take_fragment(*from, message, handle);
            }
        }
        return handled;
    }

    // A fragment of `from` whose word has been taken from the FIFO.
    template <typename Handler> int take_fragment(peer &from, fifo_message message, Handler &handle)
    {
        int handled = 0;
        frag_header header;
        const unsigned char *payload = nullptr;
        bool sane = from.shared().read_fragment(message.granule, &header, &payload);
        if (sane && header.sequence != from.next_sequence &&
            senders_[message.sender].fast_box != no_fast_box) {
            // What was sent before it is in the fast box, to its end.
            handled = drain(fast_boxes_[senders_[message.sender].fast_box], INT_MAX, handle);
        }
        sane = sane && header.sequence == from.next_sequence;
        if (!sane || from.closed()) {
            report(from, message.granule);
            return handled;
        }
        finish_fragment(from, message.sender, header, payload, handle);
        if (messages_before_fast_box == from.next_sequence) {
            open_fast_box(message.sender);
        }
        return handled + 1;
    }

    template <typename Handler>
    void finish_fragment(peer &from, std::uint32_t slot, const frag_header &header,
                         const unsigned char *payload, Handler &handle)
    {
        handle(from, header, payload);
        // Release pairs with peer::reap: our reads of the fragment are over.
        own_.view().peers[slot].consumed.store(++from.next_sequence, std::memory_order_release);
    }

    // Takes messages from a fast box as long as it is their turn.
    template <typename Handler> int drain(inbound &box, int limit, Handler &handle)
    {
        peer &from = *box.from;
        int handled = 0;
        fast_box_message message;
        const unsigned char *payload = nullptr;
        fast_box_reader::look found = fast_box_reader::look::nothing;
        while (handled < limit && !from.closed()) {
            found = box.ring.take(from.next_sequence, &message, &payload);
            if (fast_box_reader::look::message != found) {
                break;
            }
            if (fast_box_word::reference != message.kind) [[likely]] {
                if (0 == handled) { // else the processor has seen by itself where this goes
                    fetch_ahead(payload, message.bytes);
                }
                const frag_header header{.sequence = from.next_sequence++,
                                         .payload_bytes = message.bytes,
                                         .kind = static_cast<frag_kind>(message.kind),
                                         .tag = message.tag,
                                         .reserved = {}};
                handle(from, header, payload);
            } else if (!take_reference(box, message, payload, handle)) {
                found = fast_box_reader::look::garbage;
                break;
            }
            ++handled;
        }
        if (handled > 0) {
            box.ring.give_back();
        }
        if (fast_box_reader::look::garbage == found) {
            report(from, 0);
        }
        return handled;
    }

    // A fragment that a fast box names. False: it makes no sense.
    template <typename Handler>
    [[gnu::noinline]] bool take_reference(inbound &box, const fast_box_message &message,
                                          const unsigned char *reference, Handler &handle)
    {
        peer &from = *box.from;
        fast_box_reference where;
        if (sizeof(where) != message.bytes) {
            return false;
        }
        std::memcpy(&where, reference, sizeof(where));
        // The payload comes from the other processor's cache while the message is being matched.
        from.shared().fetch_ahead(where.granule,
                                  std::min(where.payload_bytes, payload_fetched_ahead));
        frag_header header;
        const unsigned char *payload = nullptr;
        if (!from.shared().read_fragment(where.granule, &header, &payload) ||
            header.sequence != from.next_sequence) {
            return false;
        }
        finish_fragment(from, box.slot, header, payload, handle);
        return true;
    }

    peer *new_sender(std::uint32_t slot);
    void open_fast_box(std::uint32_t slot);
    // Says that the peer has sent nonsense, and closes it; once.
    void report(peer &from, std::uint32_t granule);

    optional_mutex mutex_; // of peers_
    segment own_;
    fifo_reader inbox_;
    std::vector<std::unique_ptr<peer>> peers_;
    std::vector<sender> senders_; // by our peer slot
    std::vector<inbound> fast_boxes_;
    const std::uint32_t max_fast_boxes_;
};

} // namespace gpusm

#endif
