// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/shm/peer.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <cinttypes>
#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// A FIFO that stays full this many flushes may belong to a dead process. Asking costs two
// system calls, so not every time.
constexpr std::uint32_t flushes_between_life_checks = 1U << 14;
// A try to reach a peer takes some system calls, and every flush would make one.
constexpr std::chrono::milliseconds pause_after_refusal{1};

} // namespace

peer::peer(const segment_identity &self, const segment_identity &identity, std::string directory)
    : self_(self), identity_(identity), directory_(std::move(directory))
{
}

status peer::attach()
{
    const std::lock_guard guard(mutex_);
    return attach_locked();
}

status peer::attach_locked()
{
    if (segment_.valid()) {
        return status::ok;
    }
    if (closed_) {
        return status::peer_gone;
    }
    const status s = peer_segment::attach(directory_.c_str(), identity_, &segment_);
    attached_.store(status::ok == s, std::memory_order_release);
    is_gone_ = status::not_found == s;
    closed_ = status::bad_peer == s || is_gone_;
    return status::not_found == s ? status::peer_gone : s;
}

// `busy`: it cannot be reached now.
status peer::connect()
{
    if (closed_) {
        return status::peer_gone;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < connect_again_) {
        return status::busy;
    }
    status s = attach_locked();
    if (status::ok == s) {
        s = segment_.claim_peer_slot(self_, &slot_);
        connected_.store(status::ok == s, std::memory_order_release);
    }
    if (status::ok == s || status::bad_peer == s) { // attach() has said what is wrong with it
        return s;
    }
    const bool waits = status::peer_gone != s;
    if (!std::exchange(told_, true) || !waits) {
        log_line(log_level::error,
                 "cannot connect to process %" PRIu32 " of job %08" PRIx32 ": %s%s", identity_.vpid,
                 identity_.jobid, to_string(s), waits ? "; messages to it wait" : "");
    }
    connect_again_ = now + pause_after_refusal;
    return waits ? status::busy : s;
}

inline status peer::post_now(const outgoing &fragment)
{
    if (outbox_.open()) {
        const fast_box_reference where{fragment.granule, fragment.header->payload_bytes};
        if (const fast_box_place place = outbox_.place(sizeof(where)); place.payload != nullptr) {
            std::memcpy(place.payload, &where, sizeof(where));
            outbox_.publish(place, {static_cast<std::uint32_t>(fragment.sequence), sizeof(where),
                                    fast_box_word::reference, 0});
            return status::ok;
        }
    }
    return fifo_post(segment_.view().fifo, {slot_, fragment.granule});
}

// The peer makes a fast box for those that send to it often, and says so in our slot there, whose
// line it writes to: so not every time.
void peer::look_for_fast_box()
{
    constexpr std::uint64_t posts_between_looks = 16;
    if (0 == next_to_post_ % posts_between_looks) {
        if (fast_box *box = segment_.fast_box_at(slot_); box != nullptr) {
            outbox_ = fast_box_writer(box, &segment_.view().peers[slot_].fast_box_taken);
            decide_on_inline();
        }
    }
}

// To be called whenever one of these has changed.
void peer::decide_on_inline()
{
    const bool may = outbox_.open() && nullptr == unposted_ && !closed_;
    too_long_inline_ = may ? fast_box_most_bytes + 1 : 0;
}

status peer::post(outgoing *fragment)
{
    const std::lock_guard guard(mutex_);
    if (!connected_.load(std::memory_order_relaxed) || closed()) [[unlikely]] {
        addressed_ = true;
        if (const status s = connect(); status::ok != s && status::busy != s) {
            return s;
        }
    }
    const bool connected = connected_.load(std::memory_order_relaxed);
    if (!outbox_.open() && connected) {
        look_for_fast_box();
    }
    fragment->sequence = next_to_post_;
    fragment->header->sequence = next_to_post_;
    fragment->next = nullptr;
    const status s = connected && nullptr == unposted_ ? post_now(*fragment) : status::busy;
    ++next_to_post_;
    (nullptr == in_flight_ ? in_flight_ : last_->next) = fragment;
    last_ = fragment;
    if (status::busy == s && nullptr == unposted_) {
        unposted_ = fragment;
        decide_on_inline();
    }
    return s;
}

bool peer::flush()
{
    bool posted = false;
    std::unique_lock guard(mutex_);
    const bool connected = connected_.load(std::memory_order_relaxed) ||
                           (unposted_ != nullptr && status::ok == connect());
    while (connected && !closed_ && unposted_ != nullptr && status::ok == post_now(*unposted_)) {
        unposted_ = unposted_->next;
        posted = true;
    }
    const bool waits = unposted_ != nullptr && !posted;
    full_in_a_row_ = waits ? full_in_a_row_ + 1 : 0;
    const bool ask = waits && 0 == full_in_a_row_ % flushes_between_life_checks;
    decide_on_inline();
    guard.unlock();
    if (ask) {
        (void)lives();
    }
    return posted;
}

outgoing *peer::take_back(std::size_t most, bool with_those_that_stay)
{
    const std::lock_guard guard(mutex_);
    if (nullptr == in_flight_) {
        return nullptr;
    }
    // Acquire pairs with node::poll: the peer has read the fragments to their end. The counter is
    // the peer's word: it can give back early what is ours, never more than what was posted; one
    // that cannot be counts for nothing.
    std::uint64_t done =
        connected_ ? segment_.view().peers[slot_].consumed.load(std::memory_order_acquire) : 0;
    done = done <= next_to_post_ ? done : 0;
    outgoing *const oldest = in_flight_;
    outgoing *newest = nullptr;
    for (; most > 0 && in_flight_ != nullptr; --most) {
        const bool over = closed_ || (in_flight_ != unposted_ && done > in_flight_->sequence);
        if (!over || (in_flight_->stays && !with_those_that_stay)) {
            break;
        }
        newest = in_flight_;
        in_flight_ = newest->next;
        unposted_ = newest == unposted_ ? in_flight_ : unposted_;
    }
    if (nullptr == newest) {
        return nullptr;
    }
    newest->next = nullptr;
    return oldest;
}

bool peer::idle()
{
    const std::lock_guard guard(mutex_);
    return nullptr == in_flight_;
}

void peer::close()
{
    const std::lock_guard guard(mutex_);
    closed_ = true;
    decide_on_inline();
}

bool peer::has_ended() const
{
    return is_gone_ || (attached() && !segment_.owner_alive());
}

peer::at_stake peer::needs_segment_for()
{
    const std::lock_guard guard(mutex_);
    if (closed_ || 0 == next_to_post_) {
        return at_stake::nothing;
    }
    // It counts fragments that it has read, and the first message lies in one.
    if (!connected_ || 0 == segment_.view().peers[slot_].consumed.load(std::memory_order_relaxed)) {
        return at_stake::unmapped;
    }
    return nullptr == unposted_ ? at_stake::nothing : at_stake::unposted;
}

bool peer::unmap()
{
    const std::lock_guard guard(mutex_);
    if (0 != kept_) {
        return false;
    }
    connected_.store(false, std::memory_order_release);
    attached_.store(false, std::memory_order_release);
    outbox_ = {};
    decide_on_inline();
    segment_ = {};
    return true;
}

bool peer::lives()
{
    if (!closed() && has_ended()) {
        log_line(log_level::error,
                 "process %" PRIu32 " of job %08" PRIx32 " has ended with messages on the way",
                 identity_.vpid, identity_.jobid);
        close();
    }
    return !closed();
}

void peer::close_for_nonsense()
{
    if (!closed()) {
        log_line(log_level::error,
                 "process %" PRIu32 " of job %08" PRIx32
                 " sent a message that makes no sense; nothing more is sent to it or taken from it",
                 identity_.vpid, identity_.jobid);
        close();
    }
}

} // namespace gpusm
