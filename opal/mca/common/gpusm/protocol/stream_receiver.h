// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// protocol/stream_receiver.h: the receiver's end of streams (protocol/stream.h), and the rings,
// which are its own.
#ifndef GPUSM_PROTOCOL_STREAM_RECEIVER_H
#define GPUSM_PROTOCOL_STREAM_RECEIVER_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/queue.h"
#include "opal/mca/common/gpusm/protocol/stream.h"
#include "opal/mca/common/gpusm/shm/node.h"
#include "opal/mca/common/gpusm/shm/stream_ring.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace gpusm {

// All streams to this process. Any thread; progress() one at a time.
class stream_receiver {
  public:
    stream_receiver(node &local, stream_services &services) : local_(local), services_(services) {}

    // Begins to fetch a message of 1 byte or more. `ok`: it will come out of progress(). `busy`:
    // not now, as all rings are lent, or too much is wanted of the sender already. `no_memory`:
    // there is no ring of that pool.
    status fetch(peer &from, stream_fetch *message);

    // The process of that peer, which is closed, has ended: its rings are for others. False: not
    // yet, as something is under way; again after progress().
    bool forget(const peer &ended)
    {
        const std::lock_guard guard(mutex_);
        for (inlet &each : inlets_) {
            if (each.from != &ended) {
                continue;
            }
            if (each.listed) {
                return false;
            }
            each.in.clear();
            each.from = nullptr;
        }
        return true;
    }

    // That are under way, and rings with which there is still something to do. A snapshot.
    std::size_t messages() const { return active_.load(std::memory_order_relaxed); }
    // Is there nothing to do for progress()? A snapshot.
    bool idle() const { return 0 == messages(); }
    // Copies pieces, a bounded number. Returns the messages that have ended.
    stream_fetch *progress();

  private:
    // A range that we want, and which the peer has not answered to its end, or which is being
    // copied.
    struct awaited {
        stream_fetch *message; // null: nobody waits for it
        std::uint64_t len_bytes;
        std::uint64_t end; // of what is still wanted of it
        std::uint32_t want;
        std::uint64_t received = 0; // has been copied, or is being copied
        std::uint32_t copies = 0;   // that run
        std::uint32_t backs = 0;    // of these, of parts that this process gets by itself
        bool answered = false;
        status outcome = status::ok;
    };
    // Pieces that cannot be released before those in front of them.
    struct taken {
        stream_copy copy;
        awaited *of; // null: nothing is being copied
        std::uint32_t pieces;
    };
    // A part that this process gets by itself.
    struct back_part {
        stream_copy copy;
        awaited *of;
    };
    // A ring of ours.
    struct inlet {
        const stream_pool *pool = nullptr;
        stream_reader in{};
        std::uint32_t granule = 0;
        std::uint64_t slots = 0;
        stream_memory memory{};
        peer *from = nullptr; // to whom it is lent
        std::deque<awaited> fetches{};
        std::size_t reading = 0; // of these, how many have been answered
        std::deque<taken> copies{};
        std::deque<back_part> backs{};
        std::uint32_t ahead = 0;     // pieces of `copies`
        std::uint32_t next_want = 0; // number of the next message
        // The epoch: the peer was not waited for when we last looked.
        std::chrono::steady_clock::time_point quiet_since{};
        std::uint32_t empty_polls = 0; // in a row
        bool came = false;             // something, in this call of progress()
        bool listed = false;           // in receiving_
    };
    using ended_list = queue<stream_fetch>;

    status ring_for(peer &from, const stream_pool &pool, inlet **out);
    status make_ring(const stream_pool &pool, inlet **out);
    bool receive_some(inlet *from, std::uint64_t *copied_bytes, ended_list *ended);
    bool copy_run(inlet *from, awaited *range, const stream_piece_facts &first);
    bool end_copies(inlet *of, ended_list *ended);
    bool begin_back(inlet *of, awaited *range);
    void begin_backs(inlet *of);
    bool end_backs(inlet *of, ended_list *ended);
    static void spoil(inlet *of, awaited *range, status outcome);
    static void settle(inlet *of, awaited *range, ended_list *ended);
    static void pop_answered(inlet *of);
    void abandon(inlet *of, status outcome, ended_list *ended);
    void wait_for(inlet *quiet, ended_list *ended);

    node &local_;
    stream_services &services_;
    optional_mutex mutex_;
    std::deque<inlet> inlets_;     // all ever made
    std::uint32_t spare_ring_ = 0; // granule of one on a device, carved; 0: there is none
    std::vector<inlet *> receiving_;
    std::vector<back_part *> to_begin_; // in this call of progress()
    std::atomic<std::size_t> active_{0};
};

} // namespace gpusm

#endif
