// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/stream_ring.h: a ring of pieces, through which one process at a time streams messages to the
// owner of the segment: the writer copies into the next piece while the reader copies out of the
// one before.
//
//   stream_writer   the sender, one thread at a time
//   stream_reader   the owner of the segment, one thread at a time
//
// A piece is published by its sequence number, which the writer stores last; the reader counts what
// it has released. Both only ever count up, so a ring can be lent to another writer when all that
// was written has been released. A writer that is killed leaves a piece that never appears.
//
// The ring is longer than a processor's second-level cache: lines that the reader's cache still
// holds have to be taken from it one by one when they are written again, which between processors
// without a common cache costs more than memory does. But fresh memory costs more than a piece is
// worth. So a ring begins short, and becomes longer by a slot now and then, as long as it is used.
#ifndef GPUSM_SHM_STREAM_RING_H
#define GPUSM_SHM_STREAM_RING_H

#include "opal/mca/btl/gpusm/shm/wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// What a piece says of itself, in the reader's copy.
struct stream_piece_facts {
    std::uint64_t offset; // of the first byte in the message
    std::uint32_t bytes;  // 0: the writer has stopped there, and no more of this message comes
    std::uint32_t want;
    const unsigned char *data;
};

class stream_writer {
  public:
    stream_writer() = default;
    // `next`: the sequence number of the first piece, in a ring that is empty. It goes on about
    // where the last writer ended, as the first slots are the ones that the reader's cache holds.
    stream_writer(stream_ring *ring, std::uint64_t next)
        : ring_(ring), next_(next), released_(next), slots_(slots_of(*ring)),
          slot_(static_cast<std::uint32_t>(next % slots_))
    {
    }

    bool open() const { return ring_ != nullptr; }

    // Is there room for a piece?
    bool has_room()
    {
        if (next_ - released_ < slots_) {
            return true;
        }
        // Acquire pairs with stream_reader::release: the piece has been read. The value is the
        // peer's word: one that cannot be is ignored.
        const std::uint64_t released = ring_->released.load(std::memory_order_acquire);
        if (released - released_ <= next_ - released_) {
            released_ = released;
        }
        return next_ - released_ < slots_;
    }
    // Where the next piece is to be written; there must be room.
    unsigned char *data() const { return ring_->data[slot_]; }
    void publish(std::uint64_t offset, std::uint32_t bytes, std::uint32_t want)
    {
        stream_piece &piece = ring_->pieces[next_ % stream_pieces];
        piece.offset = offset;
        piece.bytes = bytes;
        piece.want = want;
        piece.slot = slot_;
        // Release: pairs with stream_reader::look.
        piece.sequence.store(++next_, std::memory_order_release);
        if (++slot_ == slots_) {
            slots_ = std::max(slots_, slots_of(*ring_));
            slot_ = slot_ == slots_ ? 0 : slot_;
        }
    }
    // The reader has taken messages before that number in another way. A snapshot.
    bool is_stopped(std::uint32_t want) const
    {
        return static_cast<std::int32_t>(ring_->stop_before.load(std::memory_order_relaxed) -
                                         want) > 0;
    }

  private:
    // Acquire pairs with stream_engine::lengthen: they have memory behind them.
    static std::uint32_t slots_of(const stream_ring &ring)
    {
        return std::clamp(ring.slots.load(std::memory_order_acquire), 1U, stream_pieces);
    }

    stream_ring *ring_ = nullptr;
    std::uint64_t next_ = 0;
    std::uint64_t released_ = 0; // as last seen: never ahead of the truth
    std::uint32_t slots_ = 0;    // in use
    std::uint32_t slot_ = 0;     // of the next piece
};

class stream_reader {
  public:
    stream_reader() = default;
    explicit stream_reader(stream_ring *ring) : ring_(ring) {}

    bool open() const { return ring_ != nullptr; }

    // The next piece, if it is there. All that it says is the writer's word.
    bool look(stream_piece_facts *out) const
    {
        const stream_piece &piece = ring_->pieces[next_ % stream_pieces];
        if (piece.sequence.load(std::memory_order_acquire) != next_ + 1) {
            return false;
        }
        *out = {piece.offset, piece.bytes, piece.want, ring_->data[piece.slot % stream_pieces]};
        return true;
    }
    // The writer may use that piece again.
    void release() { ring_->released.store(++next_, std::memory_order_release); }
    // Messages before that number are not wanted any more.
    void stop_before(std::uint32_t want)
    {
        ring_->stop_before.store(want, std::memory_order_relaxed);
    }
    // The sequence number of the piece that is due.
    std::uint64_t next() const { return next_; }

  private:
    stream_ring *ring_ = nullptr;
    std::uint64_t next_ = 0;
};

} // namespace gpusm

#endif
