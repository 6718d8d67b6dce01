// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/shm/node.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <cinttypes>
#include <mutex>
#include <new>
#include <utility>

namespace gpusm {

node::node(segment &&own, std::uint32_t fast_box_max)
    : own_(std::move(own)), inbox_(own_.view().fifo), max_fast_boxes_(fast_box_max)
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
    peers_.push_back(std::make_unique<peer>(own_.identity(), identity, directory));
    peer *made = peers_.back().get();
    made->number = static_cast<std::uint32_t>(peers_.size() - 1);
    live_.push_back(made);
    return made;
}

peer *node::peer_at(std::size_t number)
{
    const std::lock_guard guard(mutex_);
    return number < peers_.size() ? peers_[number].get() : nullptr;
}

peer *node::live_peer_at(std::size_t index)
{
    const std::lock_guard guard(mutex_);
    return index < live_.size() ? live_[index] : nullptr;
}

bool node::map_sender(std::uint32_t slot, peer **from)
{
    const segment_view &view = own_.view();
    // In this order: a slot that nobody has taken may have no memory behind it.
    if (slot < view.peer_slots && !own_.commit_peer(slot)) {
        return false;
    }
    if (slot >= view.peer_slots || 1 != view.peers[slot].ready.load(std::memory_order_acquire)) {
        log_line(log_level::error,
                 "a message from peer slot %" PRIu32 ", which nobody has taken, was dropped", slot);
        return true;
    }
    const segment_identity identity = view.peers[slot].identity;
    // A peer of whom the layer above has not spoken yet keeps its file where we keep ours.
    peer *made = add_peer(identity, own_.directory());
    made->has_sent = true;
    const status s = made->attach();
    const bool waits = status::system_failed == s;
    if (!waits) { // the slot of one that cannot be mapped is for others, too, once it has ended
        made->inbound_slot = slot;
    }
    if (status::ok != s && status::bad_peer != s && !(waits && put_aside_.contains(slot))) {
        log_line(log_level::error, // of a bad one attach() has said what is wrong
                 "messages from process %" PRIu32 " of job %08" PRIx32
                 " %s: its segment cannot be mapped: %s",
                 identity.vpid, identity.jobid, waits ? "wait" : "are dropped", to_string(s));
    }
    if (!waits) {
        senders_.resize(std::max<std::size_t>(senders_.size(), slot + 1));
        senders_[slot] = *from = made;
    }
    return !waits;
}

bool node::put_aside(const fifo_message &message)
{
    constexpr std::size_t most_fragments = 1U << 17; // of one sender; see btl_gpusm_free_list_max
    std::deque<std::uint32_t> &granules = put_aside_[message.sender];
    if (granules.size() >= most_fragments) {
        return false;
    }
    granules.push_back(message.granule);
    return true;
}

bool node::next_put_aside(peer **from, std::deque<std::uint32_t> *granules)
{
    auto next = put_aside_.upper_bound(last_tried_);
    next = put_aside_.end() == next ? put_aside_.begin() : next;
    last_tried_ = next->first;
    if (!map_sender(last_tried_, from)) {
        return false;
    }
    *granules = std::move(next->second);
    put_aside_.erase(next);
    return true;
}

void node::mend_inbox()
{
    if (inbox_.mend() && !std::exchange(told_that_it_mends_, true)) {
        log_line(log_level::error,
                 "a process has overwritten the FIFO of this one in %s; messages "
                 "may be lost",
                 own_.path().c_str());
    }
}

bool node::has_read_all_of(const peer &ended, std::uint64_t end_of_inbox) const
{
    const auto is_its = [&](const auto &put_aside) {
        const std::uint32_t slot = put_aside.first;
        return peer::no_slot == ended.inbound_slot &&
               (!own_.commit_peer(slot) || own_.view().peers[slot].identity == ended.identity());
    };
    return inbox_.has_taken_to(end_of_inbox) &&
           std::none_of(put_aside_.begin(), put_aside_.end(), is_its) &&
           (ended.closed() || !ended.inbox.open() || !ended.inbox.has(ended.next_sequence));
}

void node::forget(peer &ended)
{
    {
        const std::lock_guard guard(mutex_);
        std::erase(live_, &ended);
    }
    if (peer::no_slot == ended.inbound_slot) {
        return;
    }
    if (ended.inbox.open()) {
        std::erase(fast_boxes_, &ended);
        free_fast_boxes_.push_back(ended.inbox_granule);
        ended.inbox = {};
    }
    peer_slot &slot = own_.view().peers[ended.inbound_slot];
    slot.consumed.store(0, std::memory_order_relaxed);
    slot.single_copy_refusals.store(0, std::memory_order_relaxed);
    slot.fast_box.store(0, std::memory_order_relaxed);
    slot.fast_box_taken.store(0, std::memory_order_relaxed);
    slot.ready.store(0, std::memory_order_release); // pairs with peer_segment::claim_peer_slot
    // So that newcomers take it before they take memory for further ones.
    std::atomic<std::uint32_t> &next = own_.view().header->peers_claimed;
    next.store(std::min(next.load(std::memory_order_relaxed), ended.inbound_slot),
               std::memory_order_relaxed);
    senders_[ended.inbound_slot] = nullptr;
    ended.inbound_slot = peer::no_slot;
}

void node::open_fast_box(peer &of)
{
    std::uint32_t granule = 0;
    if (fast_boxes_.size() >= max_fast_boxes_) {
        return; // it goes on with fragments
    }
    if (!free_fast_boxes_.empty()) {
        granule = free_fast_boxes_.back();
        free_fast_boxes_.pop_back();
        new (own_.at(granule)) fast_box{};
    } else if (status::ok != own_.carve(sizeof(fast_box), &granule)) {
        return;
    }
    peer_slot &slot = own_.view().peers[of.inbound_slot];
    auto *box = reinterpret_cast<fast_box *>(own_.at(granule));
    of.inbox_granule = granule;
    box->unit[0].word.store(fast_box_word::unused(of.inbound_slot), std::memory_order_relaxed);
    of.inbox = fast_box_reader(box, &slot.fast_box_taken);
    const auto behind_us = [own = own_.identity().vpid](const peer *each) {
        return each->identity().vpid - own; // modulo 2^32
    };
    fast_boxes_.insert(std::ranges::upper_bound(fast_boxes_, behind_us(&of), {}, behind_us), &of);
    // Release: pairs with peer_segment::fast_box_at.
    slot.fast_box.store(granule, std::memory_order_release);
}

} // namespace gpusm
