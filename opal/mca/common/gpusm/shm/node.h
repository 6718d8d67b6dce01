// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/node.h: this process among the others of its node: its segment, its inbox, its peers.
#ifndef GPUSM_SHM_NODE_H
#define GPUSM_SHM_NODE_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/fast_box.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/segment.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gpusm {

class node {
  public:
    // At most `fast_box_max` senders get a fast box (shm/fast_box.h).
    explicit node(segment &&own, std::uint32_t fast_box_max = 0);

    segment &own() { return own_; }
    const segment &own() const { return own_; }

    // The peer with that identity, made if it is new; the node owns it. Nothing is mapped.
    peer *add_peer(const segment_identity &identity, const std::string &directory);

    // Tells a peer that we cannot read its host memory and want fragments; or that we can, after
    // all, as it has let us try again.
    void refuse_single_copies(const peer &from, bool refuse = true)
    {
        if (from.inbound_slot != peer::no_slot) {
            auto &refusals = own_.view().peers[from.inbound_slot].single_copy_refusals;
            const std::uint32_t so_far = refusals.load(std::memory_order_relaxed);
            // Threads may count two of them as one.
            refusals.store(refuse ? std::max(so_far + 1, 1U) : 0, std::memory_order_relaxed);
        }
    }

    // By peer::number; null past the last one. Any thread.
    peer *peer_at(std::size_t number);
    // Those that have not been forgotten, in any order, which changes when one is. Any thread.
    peer *live_peer_at(std::size_t index);

    // These three by the thread that polls. Where what a peer that has ended may have posted ends.
    std::uint64_t end_of_inbox() const { return inbox_.end(); }
    // All that it has sent has been read, or, if it is closed, will not be.
    bool has_read_all_of(const peer &ended, std::uint64_t end_of_inbox) const;
    // Then, when it is closed: its peer slot and its fast box are for others, and it is no live
    // peer any more.
    void forget(peer &ended);

    // Takes about `limit` messages from the fast boxes and the FIFO and calls handle(peer &, const
    // frag_header &, const unsigned char *payload) for each. The header is a copy that the sender
    // cannot change any more; the payload may be read until `handle` returns. Returns how many. One
    // thread at a time; `handle` must not call poll. A message that makes no sense is reported and
    // its sender closed. What comes from a sender that cannot be mapped now, for want of memory or
    // descriptors, is put aside.
    template <typename Handler> int poll(int limit, Handler &&handle)
    {
        int handled = 0;
        for (peer *each : fast_boxes_) {
            if (each->inbox.has(each->next_sequence)) {
                handled += drain_fast_box(*each, std::min(limit, most_of_one_fast_box), handle);
            }
        }
        fifo_message next;
        if (inbox_.peek(&next)) {
            handled += drain_fifo(limit, handle);
        }
        return handled;
    }

    // Tries again to map a sender whose messages have been put aside, with each call the next one,
    // and handles them in their order, as poll() does. Returns how many. To be called now and then,
    // by the thread that polls.
    template <typename Handler> int take_put_aside(Handler &&handle)
    {
        int handled = 0;
        peer *from = nullptr;
        std::deque<std::uint32_t> granules;
        if (!put_aside_.empty() && next_put_aside(&from, &granules)) {
            for (const std::uint32_t granule : granules) {
                handled += take_from_fifo(from, granule, handle);
            }
        }
        return handled;
    }

    // Goes one step towards order in a FIFO that a broken process has overwritten; said once. To be
    // called now and then, by the thread that polls.
    void mend_inbox();

  private:
    static constexpr int most_of_one_fast_box = 32;
    static constexpr std::uint32_t payload_fetched_ahead = 2048;
    // Who has sent so many messages gets a fast box.
    static constexpr std::uint64_t messages_before_fast_box = 16;

    // Not a part of poll(), which would have to put away registers for it in every idle round.
    template <typename Handler> [[gnu::noinline]] int drain_fifo(int limit, Handler &handle)
    {
        int handled = 0;
        fifo_message message;
        for (int taken = 0; taken < limit && inbox_.peek(&message); ++taken) {
            peer *from = message.sender < senders_.size() ? senders_[message.sender] : nullptr;
            if (nullptr == from && !new_sender(message.sender, &from)) {
                if (!put_aside(message)) {
                    break;
                }
                inbox_.pop();
                continue;
            }
            inbox_.pop();
            handled += take_from_fifo(from, message.granule, handle);
        }
        return handled;
    }

    // A message that the FIFO had, from a peer or, null, from nobody. Returns how many have been
    // handled.
    template <typename Handler>
    [[gnu::always_inline]] int take_from_fifo(peer *from, std::uint32_t granule, Handler &handle)
    {
        int handled = 0;
        if (from != nullptr && from->inbox.open()) {
            // What was sent before it is in the fast box, to its end.
            handled += drain_fast_box(*from, INT_MAX, handle);
        }
        if (nullptr == from || from->closed()) {
            return handled;
        }
        if (!take_fragment(*from, granule, handle)) {
            from->close_for_nonsense();
            return handled;
        }
        if (messages_before_fast_box == from->next_sequence) {
            open_fast_box(*from);
        }
        return handled + 1;
    }

    // The fragment of `from` whose turn it is. False: there is none at that place.
    template <typename Handler>
    [[gnu::noinline]] bool take_fragment(peer &from, std::uint32_t granule, Handler &handle)
    {
        frag_header header;
        const unsigned char *payload = nullptr;
        if (!from.shared().read_fragment(granule, &header, &payload) ||
            header.sequence != from.next_sequence) {
            return false;
        }
        handle(from, header, payload);
        // Release pairs with peer::take_back: our reads of the fragment are over.
        own_.view().peers[from.inbound_slot].consumed.store(++from.next_sequence,
                                                            std::memory_order_release);
        return true;
    }

    // Takes messages from the sender's fast box as long as it is their turn.
    template <typename Handler> int drain_fast_box(peer &from, int limit, Handler &handle)
    {
        int handled = 0;
        fast_box_message message;
        const unsigned char *payload = nullptr;
        fast_box_reader::look found = fast_box_reader::look::nothing;
        while (handled < limit && !from.closed()) {
            found = from.inbox.take(from.next_sequence, &message, &payload);
            if (fast_box_reader::look::message != found) {
                break;
            }
            if (fast_box_word::reference != message.kind) [[likely]] {
                const frag_header header{.sequence = from.next_sequence++,
                                         .payload_bytes = message.bytes,
                                         .kind = static_cast<frag_kind>(message.kind),
                                         .tag = message.tag,
                                         .reserved = {}};
                handle(from, header, payload);
            } else if (!take_reference(from, message, payload, handle)) {
                found = fast_box_reader::look::garbage;
                break;
            }
            ++handled;
        }
        if (handled > 0) {
            from.inbox.give_back();
        }
        if (fast_box_reader::look::garbage == found) {
            from.close_for_nonsense();
        }
        return handled;
    }

    // A fragment that a fast box names. False: it makes no sense.
    template <typename Handler>
    bool take_reference(peer &from, const fast_box_message &message, const unsigned char *reference,
                        Handler &handle)
    {
        fast_box_reference where;
        if (sizeof(where) != message.bytes) {
            return false;
        }
        std::memcpy(&where, reference, sizeof(where));
        // The payload comes from the other processor's cache while the message is being matched. A
        // wrong place does no harm.
        for (std::size_t line = 0; line < std::min(where.payload_bytes, payload_fetched_ahead);
             line += cache_line_bytes) {
            __builtin_prefetch(from.shared().at(where.granule) + line);
        }
        return take_fragment(from, where.granule, handle);
    }

    // The peer behind one of our peer slots, mapped on its first message; null: there is nobody,
    // which has been said. False: it cannot be mapped now, or there is something put aside that
    // comes first.
    bool new_sender(std::uint32_t slot, peer **from)
    {
        return !put_aside_.contains(slot) && map_sender(slot, from);
    }
    bool map_sender(std::uint32_t slot, peer **from);
    // False: that sender has more on the way than any has fragments.
    bool put_aside(const fifo_message &message);
    // The messages of the next sender that have been put aside, and which can be mapped now.
    bool next_put_aside(peer **from, std::deque<std::uint32_t> *granules);
    void open_fast_box(peer &of);

    optional_mutex mutex_; // of peers_ and live_
    segment own_;
    fifo_reader inbox_;
    std::vector<std::unique_ptr<peer>> peers_; // by number
    std::vector<peer *> live_;                 // of these, that have not been forgotten
    std::vector<peer *> senders_; // by our peer slot; those that cannot be mapped are closed
    // Of those that have one: first the rank behind this one, and so on around. Where all have sent
    // to all, each then begins with another one's message, and no two read out of the same device.
    std::vector<peer *> fast_boxes_;
    std::vector<std::uint32_t> free_fast_boxes_; // granules of those that ended peers had
    const std::uint32_t max_fast_boxes_;
    // By peer slot: the granules of messages whose senders could not be mapped, oldest first.
    std::map<std::uint32_t, std::deque<std::uint32_t>> put_aside_;
    std::uint32_t last_tried_ = 0; // of these slots
    bool told_that_it_mends_ = false;
};

} // namespace gpusm

#endif
