// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// protocol/stream.h: messages streamed through a ring that the receiver lends to the sender
// (shm/stream_ring.h): one end copies into the ring while the other one copies out of it.
//
//   stream_receiver                            stream_sender
//   fetch: lends a ring, wants a range    ──▶  take: queues it
//   progress: copies pieces out           ◀──  progress: copies pieces in
//
// Either end is a processor, which copies piece by piece, or a device, which copies many pieces
// that lie together by one asynchronous copy. The pieces lie in the receiver's segment, or in
// memory of its device that the sender maps. Or the receiver names a target, which the sender
// writes to without a ring between, and then the ring only tells how far it is. Which it is the
// services say, who also perform what is not a copy of this process's own memory.
//
// The receiver says what it wants and in which order, so nothing waits behind a message that is not
// expected yet. It may get parts of a message by itself, from the end, by copies of the sender's
// memory, while the sender copies from the front, or once the sender has been silent for a while:
// so both processors are busy, and a sender that is not inside MPI is not waited for. The two tell
// each other by two words in the ring, where each stores its own before it looks at the other's:
// how much of the range is still wanted, and how much the sender has begun.
#ifndef GPUSM_PROTOCOL_STREAM_H
#define GPUSM_PROTOCOL_STREAM_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

// Rings of one kind. Who streams here at the same time beyond `most_rings` has to wait, and so
// where there is no memory for so many.
struct stream_pool {
    std::uint32_t slot_bytes; // a multiple of a cache line
    std::uint32_t pieces;     // of a ring, most_stream_pieces at most
    std::uint32_t most_rings;
    void *device = nullptr; // whose memory the pieces lie in; null: in our segment
    bool rewinds = true;    // an idle ring begins with its first slot again
};

// How long the parts of a range are of which two processes copy some: half of what is left, so that
// both end together.
struct stream_parts {
    std::uint64_t least_bytes; // as each part has its price; in whole pages
    std::uint64_t most_bytes;  // 0: one process copies all of it
    std::uint32_t at_once;     // of a message alone: what has been begun cannot be the other side's

    std::uint64_t next(std::uint64_t left_bytes) const
    {
        const std::uint64_t half = left_bytes / 2 / page_bytes * page_bytes;
        return std::min(left_bytes, std::clamp(half, least_bytes, most_bytes));
    }
};

// A message on its way to this process. The caller owns it, and fills in what has no value here;
// from fetch() to its end it may not move.
struct stream_fetch {
    remote_handle source;
    std::uint64_t address;     // in the sender's memory
    std::uint64_t destination; // in ours
    std::uint64_t len_bytes;
    stream_pool *pool;
    bool to_device = false;        // the services copy what comes
    stream_parts back_parts{};     // that this process gets by itself, from the end,
    std::uint32_t empty_polls = 0; // after so many polls in a row that found nothing
    bool back_by_device = false;   // copy_back() only starts them, so many may be begun together
    bool may_end_early = true;     // when all of it is here, but the sender, whose processor copies
                                   // it, has not answered; else it may still be read by a device
    stream_memory target{};        // which the sender may write to; kind none: nowhere
    std::uint64_t received = 0;    // from the front
    std::uint64_t written = 0;     // bytes that the sender has written to the target
    bool sender_cannot = false;    // write to the target, now or ever
    status outcome = status::ok;   // not_found: the sender cannot map the memory of the ring
    stream_fetch *next = nullptr;  // in the list that progress() gives

    // Empty polls before this process gets a part by itself when `bytes` of the message are here:
    // the first piece takes a request and its answer, each further one a copy only.
    std::uint32_t polls_before_back(std::uint64_t bytes) const
    {
        return bytes > 0 ? empty_polls / 8 : empty_polls;
    }
};

// A target in host memory of this process.
inline stream_memory host_target(std::uint64_t address, std::uint64_t len_bytes)
{
    return {{no_export_slot, no_event_slot, share_kind::host, 0, 0, address, len_bytes}, address};
}

// What a sender's range is copied from, and where to.
struct stream_source {
    const unsigned char *memory = nullptr; // null: there is none (any more)
    std::uint64_t slots = 0;               // an address of this process
    std::uint64_t target = 0;              // not 0: where the range goes instead, see parts
    stream_parts parts{};                  // of what goes to the target; 0: all of it at once
    bool by_services = false;              // they copy it, by a device or into the target
    bool unreachable = false;              // without memory: as the ring or the target cannot be
                                           // reached
    const void *owner = nullptr;           // what stream_sender::forget names
    void *user = nullptr;                  // the services' own
};

// A copy of the services'. It is kept until they have changed `state`.
struct stream_copy {
    enum class is : std::uint8_t { running, done, failed };
    std::uint64_t destination = 0;
    std::uint64_t source = 0;
    std::uint64_t len_bytes = 0;
    is state = is::running;
};

// What streams need of the layers around them; called under the lock of that end of the streams,
// but for copy_back().
class stream_services {
  public:
    // Sends a message, and `memory` behind it if that is not null, to that peer's
    // stream_sender::take. Anything but `ok` and `busy`: it has not gone.
    virtual status send(peer &to, const stream_message &message, const stream_memory *memory) = 0;
    // Finds the memory of ours that a peer's message names, if it names any. `slots` is what a ring
    // in the segment has. Until stream_sender::forget the memory may be read.
    virtual void open(peer &to, const stream_message &message, const stream_memory *memory,
                      stream_source *out) = 0;
    // Neither the memory nor the ring is used for that range any more.
    virtual void close(const stream_source &) {}
    // Starts, or makes, a copy of a sender's range.
    virtual void copy_in(const stream_source &, stream_copy *copy) { fail(copy); }
    // Starts, or makes, a copy of what the receiver gets by itself: from the sender's memory,
    // named by the sender's addresses.
    virtual void copy_back(const stream_fetch &, stream_copy *copy) { fail(copy); }

    // A ring has been made in the segment.
    virtual void made_ring(const unsigned char *, std::size_t) {}
    // Memory of pool.device for a ring, for good. Where it is to be named to a sender in *out.
    virtual status make_slots(const stream_pool &, std::size_t, std::uint64_t *, stream_memory *)
    {
        return status::unsupported;
    }
    // How that memory is named now.
    virtual void name_slots(const stream_pool &, std::uint64_t, stream_memory *) {}
    // Starts a copy of pieces to a device.
    virtual void copy_out(const stream_fetch &, stream_copy *copy) { fail(copy); }

  protected:
    ~stream_services() = default;

  private:
    static void fail(stream_copy *copy) { copy->state = stream_copy::is::failed; }
};

// stream_message::sequence of one that wants something through a ring that is not empty.
inline constexpr std::uint64_t stream_continues = UINT64_MAX;
// By this processor, with each ring, in one call of progress().
inline constexpr std::uint64_t stream_bytes_at_once = 128 * 1024;

// How many messages wait in these rings' queues, where each ring counts as one at least.
template <typename Ring, typename Queue>
std::size_t under_way(const std::vector<Ring *> &rings, Queue Ring::*queue)
{
    std::size_t messages = 0;
    for (const Ring *each : rings) {
        messages += std::max<std::size_t>(1, (each->*queue).size());
    }
    return messages;
}

// Takes the rings of which done(Ring *) is true off a list.
template <typename Ring, typename Done> void unlist(std::vector<Ring *> *all, Done done)
{
    for (std::size_t i = 0; i < all->size();) {
        Ring *each = (*all)[i];
        if (done(each)) {
            each->listed = false;
            (*all)[i] = all->back();
            all->pop_back();
        } else {
            ++i;
        }
    }
}

} // namespace gpusm

#endif
