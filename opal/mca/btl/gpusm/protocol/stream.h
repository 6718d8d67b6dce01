// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// protocol/stream.h: messages between host memories, streamed through a ring in shared memory
// (shm/stream_ring.h): sender and receiver copy at the same time, a piece each.
//
//   receiver                                   sender
//   fetch: borrows a ring, wants a range  ──▶  take: queues it
//   progress: copies pieces out           ◀──  progress: copies pieces in
//
// The receiver says what it wants and in which order, so nothing waits behind a message that is not
// expected yet. A sender that is not inside MPI does not answer. It is waited for as long as the
// rest would take by a single copy; then the receiver reads the rest so, and further messages too
// until the sender has answered. A process has a few rings, lent to the peers that it wants
// something of.
#ifndef GPUSM_PROTOCOL_STREAM_H
#define GPUSM_PROTOCOL_STREAM_H

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/shm/node.h"
#include "opal/mca/btl/gpusm/shm/stream_ring.h"
#include "opal/mca/btl/gpusm/shm/wire.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gpusm {

// A message on its way to this process. The caller owns it, and fills in what has no value here;
// from fetch() to its end it may not move.
struct stream_fetch {
    remote_handle source;
    std::uint64_t address;      // in the sender's memory
    unsigned char *destination; // in ours
    std::uint64_t len_bytes;
    std::uint64_t received = 0; // from the front; what is there when it begins counts
    bool read_singly = false;   // its rest by a single copy, as the sender did not answer
    status outcome = status::ok;
    stream_fetch *next = nullptr; // in the list that progress() gives
};

// What streams need of the layers around them; called under the lock of the streams, but for
// read_rest().
class stream_services {
  public:
    // Sends a message to that peer's stream_engine::take. Anything but `ok` and `busy`: it has not
    // gone.
    virtual status send(peer &to, const stream_message &message) = 0;
    // Where a range of our memory is that a peer's handle names, or null if it names none. Until
    // stream_engine::forget the memory may be read.
    virtual const unsigned char *source_of(const stream_message &message) = 0;
    // Reads what `fetch` has not received yet by a single copy. Anything but `ok`: it cannot.
    virtual status read_rest(peer &from, const stream_fetch &fetch) = 0;

  protected:
    ~stream_services() = default;
};

// All streams of this process, to it and from it. Any thread; progress() one at a time.
class stream_engine {
  public:
    stream_engine(node &local, stream_services &services, bool threads);

    // Begins to fetch a message, of which the first `received` bytes are there but not all. `ok`:
    // it will come out of progress(). `busy`: not now, as there is no ring, or as the sender does
    // not answer.
    status fetch(peer &from, stream_fetch *message);

    // A message of that peer's stream_services::send. False: it makes no sense.
    bool take(peer &from, const stream_message &message);
    // Nothing of that memory is to be read any more.
    void forget(const unsigned char *memory, std::uint64_t len_bytes);

    // Is there anything to do for progress()? A snapshot.
    bool idle() const { return 0 == active_.load(std::memory_order_relaxed); }
    // Copies pieces, a bounded number. Returns the messages that have ended, oldest first.
    stream_fetch *progress();

  private:
    // A range that the peer wants of us.
    struct wanted {
        const unsigned char *source; // null: nothing more is to be sent
        std::uint64_t len_bytes;
        std::uint64_t sent;
        std::uint32_t want;
    };
    // One that we want, and which the peer has not answered to its end.
    struct awaited {
        stream_fetch *message; // null: it has been read by a single copy
        std::uint64_t begin;   // of the range in the message
        std::uint64_t len_bytes;
        std::uint64_t received;
    };
    // The two directions of traffic with one peer.
    struct channel {
        explicit channel(peer &with) : other(with) {}
        peer &other;
        // To us.
        stream_reader in;
        std::size_t ring = no_ring; // that we have lent
        std::deque<awaited> fetches;
        std::uint32_t first_want = 0;     // number of the first of those
        std::uint64_t quiet_since_ns = 0; // 0: the peer was not waited for when we last looked
        // From us.
        stream_writer out;
        std::deque<wanted> wants;
        bool listed = false; // in busy_
    };
    struct lent_ring {
        stream_reader reader;
        stream_ring *ring;
        std::uint32_t granule;
        bool lent;
    };
    // Messages that have ended.
    struct ended_list {
        stream_fetch *first = nullptr;
        stream_fetch **end = &first;
        void add(stream_fetch *message, status outcome);
    };
    struct unanswered {
        peer *from;
        stream_fetch *message;
    };
    static constexpr std::size_t no_ring = SIZE_MAX;

    channel &channel_of(peer &with);
    void list(channel *busy);
    bool borrow_ring(channel *to);
    void lengthen(const lent_ring &longer);
    bool copy_in(channel *to);
    bool copy_out(channel *from, ended_list *ended);
    void wait_for(channel *quiet, ended_list *ended);
    void fail_all(channel *of, status outcome, ended_list *ended);

    node &local_;
    stream_services &services_;
    optional_mutex mutex_;
    std::vector<std::unique_ptr<channel>> channels_;
    std::vector<channel *> busy_;
    std::vector<lent_ring> rings_;
    std::vector<unanswered> to_read_; // by single copies, in this call of progress()
    std::atomic<std::size_t> active_{0};
};

} // namespace gpusm

#endif
