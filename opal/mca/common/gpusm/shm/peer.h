// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/peer.h: one other process: what is on the way to it and what has come from it.
//
// Sending: a fragment is posted into the peer's FIFO, or into the fast box that the peer has made
// for us, and stays on the list `in_flight_` until the peer says, by its counter `consumed`, that
// it is done with it; then reap() hands it back. When there is no room the fragment waits on the
// same list, behind the posted ones, and flush() posts it later; so nothing overtakes and the
// caller never waits. A small message can do without a fragment: send_inline() puts it into the
// fast box. The peer keeps the order between fast box and FIFO by the sequence numbers.
#ifndef GPUSM_SHM_PEER_H
#define GPUSM_SHM_PEER_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/fast_box.h"
#include "opal/mca/common/gpusm/shm/segment.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace gpusm {

// What a sender keeps of a fragment; lives inside the caller's descriptor. The caller owns it
// except between a post() that took it and the reap() that hands it back.
struct outgoing {
    frag_header *header = nullptr; // in this process's own segment
    std::uint32_t granule = 0;     // the same place, as the FIFO names it
    bool stays = false;            // not for reclaim(): somebody waits to hear of its end
    std::uint64_t sequence = 0;    // once posted; the header could be written by others
    outgoing *next = nullptr;
};

class peer {
  public:
    // Nothing is mapped yet; `self` is this process's segment.
    peer(const segment_identity &self, const segment_identity &identity, std::string directory);

    // Sends a fragment whose header and payload are complete; fills in its sequence number.
    // `ok`: posted. `busy`: kept, and posted by a later flush(), as the peer's FIFO is full, or as
    // it cannot be connected to now, for want of memory, descriptors or a slot there, which is
    // logged once. `peer_gone` and `bad_peer`, each logged once: the fragment still is the
    // caller's, and nothing will ever be sent to it.
    status post(outgoing *fragment);

    // Sends a message of `bytes` without a fragment: fill(unsigned char *) writes the payload.
    // False: nothing has happened, and it has to go in a fragment.
    template <typename Fill>
    bool send_inline(frag_kind kind, std::uint8_t tag, std::size_t bytes, Fill &&fill)
    {
        const std::lock_guard guard(mutex_);
        if (bytes >= too_long_inline_) {
            return false;
        }
        const fast_box_place place = outbox_.place(bytes);
        if (nullptr == place.payload) {
            return false;
        }
        fill(place.payload);
        outbox_.publish(place,
                        {static_cast<std::uint32_t>(next_to_post_),
                         static_cast<std::uint16_t>(bytes), static_cast<std::uint8_t>(kind), tag});
        ++next_to_post_;
        return true;
    }
    // Posts what had to wait. True: something was posted.
    bool flush();

    // The next fragment that the peer is done with, oldest first, or null. From a closed peer
    // every fragment comes back.
    outgoing *reap() { return take_back(1, true); }
    // All that the peer is done with, linked by `next`, up to one that stays for reap().
    outgoing *reclaim() { return take_back(SIZE_MAX, false); }

    // Ends all traffic with the peer; posted and waiting fragments become ready to reap.
    void close();
    // Asks whether its process is still there, which takes two system calls, and closes it if not,
    // which is said once. False: it is closed.
    bool lives();
    // Closes one that has sent what makes no sense, which is said once.
    void close_for_nonsense();

    // Its process has ended, or its use of MPI has. Asks the system, as lives(); closes nothing.
    bool has_ended() const;
    // Of one that has ended: in order, as it has said.
    bool has_ended_in_order() const { return use_of_mpi::ended == segment_.owner_says(); }
    // It has ended, or is about to and reads nothing any more. Asks the system, as lives().
    bool reads_no_more() const
    {
        return has_ended() || (attached() && use_of_mpi::goes_on != segment_.owner_says());
    }
    // What of the messages to it would be lost if this process's segment went now. Of a closed peer
    // nothing.
    enum class at_stake {
        nothing,
        unposted, // some wait to be posted
        unmapped, // all: it has not mapped that segment, which takes the segment's file
    };
    at_stake needs_segment_for();
    // Its segment was gone before this process could map it, and nothing has been sent to it, nor
    // has it sent anything: it has ended without this process, which is nobody's failure.
    bool has_left_unseen() const { return is_gone_ && !addressed_ && !has_sent; }
    // The same of one whose messages have been dropped for it.
    bool has_lost_messages() const { return is_gone_ && has_sent; }
    // Unmaps the segment of a closed peer, whatever is in flight; nobody may be using shared().
    // False: somebody keeps it mapped.
    bool unmap();
    // For whoever reads its segment between calls: it is not unmapped until let_go(). False: it is
    // closed.
    bool keep_mapped()
    {
        const std::lock_guard guard(mutex_);
        kept_ += closed_ ? 0 : 1;
        return !closed_;
    }
    void let_go()
    {
        const std::lock_guard guard(mutex_);
        --kept_;
    }
    bool is_kept_mapped()
    {
        const std::lock_guard guard(mutex_);
        return 0 != kept_;
    }

    bool closed() const { return closed_.load(std::memory_order_relaxed); }
    // No fragment is on the way. A snapshot: another thread may post or reap meanwhile.
    bool idle();

    // Maps the peer's segment if that has not happened yet. `system_failed` may pass; any other
    // failure closes the peer, of which `peer_gone` is the answer to one whose segment is gone.
    status attach();
    // True while shared() may be used, by any thread: until unmap().
    bool attached() const { return attached_.load(std::memory_order_acquire); }
    const peer_segment &shared() const { return segment_; }
    const segment_identity &identity() const { return identity_; }
    const std::string &directory() const { return directory_; } // where its segment is

    // How often the peer has said that it cannot read this process's memory, since it could. A
    // snapshot.
    std::uint32_t single_copy_refusals()
    {
        const std::lock_guard guard(mutex_); // it may be unmapped
        return connected_.load(std::memory_order_acquire)
                   ? segment_.view().peers[slot_].single_copy_refusals.load(
                         std::memory_order_relaxed)
                   : 0;
    }

    // Free for the layer above: its endpoint, or null.
    std::atomic<void *> user{nullptr};
    std::uint32_t number = 0;          // among the peers of this process, from 0 on; the node's
    std::atomic<bool> has_sent{false}; // a message of it has come; the node's
    // What comes from the peer; kept by node::poll.
    fast_box_reader inbox;                // in our segment, once it is open
    std::uint64_t next_sequence = 0;      // of the message that is due
    std::uint32_t inbound_slot = no_slot; // in our segment, once a message has come, though it may
                                          // have been dropped
    std::uint32_t inbox_granule = 0;      // there, while the inbox is open
    static constexpr std::uint32_t no_slot = UINT32_MAX;

  private:
    status attach_locked();
    status connect();
    [[gnu::always_inline]] status post_now(const outgoing &fragment);
    void look_for_fast_box();
    void decide_on_inline();
    outgoing *take_back(std::size_t most, bool with_those_that_stay);

    optional_mutex mutex_;
    const segment_identity self_;
    const segment_identity identity_;
    const std::string directory_;
    peer_segment segment_;
    std::atomic<bool> attached_{false};
    std::atomic<bool> connected_{false}; // slot_ is ours
    std::atomic<bool> closed_{false};
    std::atomic<bool> is_gone_{false};                      // there was no segment to map
    std::atomic<bool> addressed_{false};                    // somebody has sent to it, or tried to
    std::uint32_t kept_ = 0;                                // mapped, by so many
    bool told_ = false;                                     // why it could not be connected to
    std::chrono::steady_clock::time_point connect_again_{}; // not before
    std::uint32_t slot_ = 0;                                // ours, in the peer's segment
    outgoing *in_flight_ = nullptr;   // oldest first; posted ones before unposted ones
    outgoing *last_ = nullptr;        // the newest of them
    outgoing *unposted_ = nullptr;    // the oldest that is not in the peer's FIFO yet
    std::uint32_t full_in_a_row_ = 0; // flushes that found no room since the last success
    // What an inline send needs lies together. Messages that are shorter than this may go so:
    // 0 while there is no fast box, while others have to go before, and once closed.
    std::size_t too_long_inline_ = 0;
    std::uint64_t next_to_post_ = 0; // sequence number of the next message
    fast_box_writer outbox_;         // in the peer's segment, once it has made one for us
};

} // namespace gpusm

#endif
