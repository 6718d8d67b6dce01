// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// protocol/stream_sender.h: the sender's end of streams (protocol/stream.h).
//
// Slots are claimed in the order of the ranges, and published in the same order: those of a copy by
// the services when that is over. So what is copied here waits for such copies in front of it, and
// where a range ends before its end a slot without bytes does.
#ifndef GPUSM_PROTOCOL_STREAM_SENDER_H
#define GPUSM_PROTOCOL_STREAM_SENDER_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/protocol/stream.h"
#include "opal/mca/common/gpusm/shm/stream_ring.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace gpusm {

// All streams from this process. Any thread; progress() one at a time.
class stream_sender {
  public:
    explicit stream_sender(stream_services &services) : services_(services) {}

    // A message of that peer's stream_services::send. False: it makes no sense.
    bool take(peer &from, const stream_message &message, const stream_memory *memory);
    // Nothing of a source with that owner is to be read any more.
    void forget(const void *owner);

    // The same of all that a closed peer wants, whose segment is about to be unmapped. False: not
    // yet, as something is under way; again after progress().
    bool forget_peer(const peer &ended);

    // That are under way, and rings with which there is still something to do. A snapshot.
    std::size_t messages() const { return active_.load(std::memory_order_relaxed); }
    // Is there nothing to do for progress()? A snapshot.
    bool idle() const { return 0 == messages(); }
    // Copies pieces, a bounded number.
    void progress();

  private:
    // A range that the peer wants of us.
    struct wanted {
        stream_source source;
        std::uint64_t len_bytes;
        std::uint32_t want;
        std::uint64_t begun = 0;   // bytes that have been copied, or are being copied
        std::uint32_t batches = 0; // copies that run
        bool bad = false;
    };
    // Claimed slots, and the copy by the services that they stand for.
    struct batch {
        stream_copy copy;
        wanted *of;
        std::uint64_t offset;
        std::uint32_t pieces;
    };
    // A ring that a peer has lent to us.
    struct outlet {
        peer *to = nullptr;
        stream_writer out{};
        std::uint32_t slot_bytes = 0;
        std::uint32_t most_pieces = 0; // of a message, in one copy of a device
        std::deque<wanted> wants{};
        std::size_t begun = 0; // of these, how many need no further copy to be started
        std::deque<batch> batches{};
        bool listed = false; // in sending_
    };

    bool send_some(outlet *to, std::uint64_t *copied_bytes);
    void copy_piece(outlet *to, wanted *range, std::uint64_t end);
    std::uint64_t begin_batch(outlet *to, wanted *range, std::uint64_t end);
    bool end_batches(outlet *of);
    void end_range(outlet *of);
    void drop(outlet *of);

    stream_services &services_;
    optional_mutex mutex_;
    std::map<std::pair<const peer *, std::uint32_t>, outlet> outlets_; // by granule of the ring
    std::vector<outlet *> sending_;
    std::atomic<std::size_t> active_{0};
};

} // namespace gpusm

#endif
