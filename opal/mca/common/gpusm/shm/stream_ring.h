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
#ifndef GPUSM_SHM_STREAM_RING_H
#define GPUSM_SHM_STREAM_RING_H

#include "opal/mca/common/gpusm/shm/wire.h"

#include <algorithm>
#include <cstdint>

namespace gpusm {

// What a piece says of itself.
struct stream_piece_facts {
    std::uint64_t offset; // of the first byte in the range
    std::uint32_t bytes;
    std::uint32_t want;
    stream_answer answer;
    std::uint32_t slot = 0; // where its bytes are; in the reader's copy

    // Can it be the next one of the range `of`, of `len_bytes`, of which `received` are here?
    // `with_target`: the writer may have written to one.
    bool makes_sense(std::uint32_t of, std::uint64_t received, std::uint64_t len_bytes,
                     std::uint32_t slot_bytes, bool with_target) const
    {
        if (want != of || answer > stream_answer::unreachable) {
            return false;
        }
        if (stream_answer::bytes == answer) {
            return offset == received && bytes > 0 && bytes <= slot_bytes &&
                   bytes <= len_bytes - received;
        }
        return stream_answer::written != answer ||
               (with_target && offset > received && offset <= len_bytes);
    }
};

class stream_writer {
  public:
    stream_writer() = default;
    // `next`: the sequence number of the first piece, in a ring that is empty and has `pieces`.
    stream_writer(stream_ring *ring, std::uint32_t pieces, std::uint64_t next)
        : ring_(ring), pieces_(pieces), claimed_(next), published_(next), released_(next)
    {
    }

    bool open() const { return ring_ != nullptr; }
    std::uint32_t pieces() const { return pieces_; }

    // How many pieces there is room for, in slots one behind the other from slot() on. There may be
    // room for more when it is enough for `wanted`.
    std::uint32_t room(std::uint32_t wanted = 1)
    {
        if (claimed_ - released_ + wanted > pieces_) {
            // Acquire pairs with stream_reader::release: the piece has been read. The value is the
            // peer's word: one that cannot be is ignored.
            const std::uint64_t released = ring_->released.load(std::memory_order_acquire);
            if (released - released_ <= claimed_ - released_) {
                released_ = released;
            }
        }
        const std::uint64_t free = pieces_ - (claimed_ - released_);
        return static_cast<std::uint32_t>(std::min<std::uint64_t>(free, pieces_ - slot()));
    }
    std::uint32_t slot() const { return static_cast<std::uint32_t>(claimed_ % pieces_); }
    // Takes so many of these slots, which are to be published in the same order.
    void claim(std::uint32_t pieces) { claimed_ += pieces; }
    // The oldest slot that has been claimed and not published.
    void publish(const stream_piece_facts &facts)
    {
        stream_piece &piece = ring_->pieces[published_ % pieces_];
        piece.offset = facts.offset;
        piece.bytes = facts.bytes;
        piece.want = facts.want;
        piece.answer = facts.answer;
        // Release: pairs with stream_reader::look.
        piece.sequence.store(++published_, std::memory_order_release);
    }
    // How much of that range the reader wants. A snapshot.
    std::uint64_t wanted_bytes(std::uint32_t want) const
    {
        return ring_->wanted_bytes[want % stream_wants].load(std::memory_order_relaxed);
    }
    // Of that range the bytes from `begin` to `end` are about to be copied. Returns up to where:
    // less than `end`, or `begin`, if the reader does not want that much any more.
    std::uint64_t begin(std::uint32_t want, std::uint64_t begin, std::uint64_t end)
    {
        // Each side stores its word before it looks at the other one's, both in one total order:
        // so at least one of the two sees what the other one has taken.
        std::atomic<std::uint64_t> &begun = ring_->begun_bytes[want % stream_wants];
        begun.store(end, std::memory_order_seq_cst);
        const std::uint64_t wanted =
            ring_->wanted_bytes[want % stream_wants].load(std::memory_order_seq_cst);
        if (wanted < end) {
            end = std::max(begin, wanted);
            begun.store(end, std::memory_order_release);
        }
        return end;
    }

  private:
    stream_ring *ring_ = nullptr;
    std::uint32_t pieces_ = 0;
    std::uint64_t claimed_ = 0;
    std::uint64_t published_ = 0;
    std::uint64_t released_ = 0; // as last seen: never ahead of the truth
};

class stream_reader {
  public:
    stream_reader() = default;
    stream_reader(stream_ring *ring, std::uint32_t pieces) : ring_(ring), pieces_(pieces) {}

    std::uint32_t pieces() const { return pieces_; }

    // The piece after `ahead` others, if it is there. All that it says, but the slot, is the
    // writer's word.
    bool look(std::uint32_t ahead, stream_piece_facts *out) const
    {
        const std::uint64_t number = next_ + ahead;
        const stream_piece &piece = ring_->pieces[number % pieces_];
        if (piece.sequence.load(std::memory_order_acquire) != number + 1) {
            return false;
        }
        *out = {piece.offset, piece.bytes, piece.want, piece.answer,
                static_cast<std::uint32_t>(number % pieces_)};
        return true;
    }
    // The writer may use so many slots again.
    void release(std::uint32_t pieces)
    {
        next_ += pieces;
        ring_->released.store(next_, std::memory_order_release);
    }
    // So much of a range is wanted, of which the writer knows nothing yet.
    void want(std::uint32_t number, std::uint64_t bytes)
    {
        ring_->begun_bytes[number % stream_wants].store(0, std::memory_order_relaxed);
        ring_->wanted_bytes[number % stream_wants].store(bytes, std::memory_order_relaxed);
    }
    // No more than that is wanted any more; see stream_writer::begin.
    void want_less(std::uint32_t number, std::uint64_t bytes)
    {
        ring_->wanted_bytes[number % stream_wants].store(bytes, std::memory_order_seq_cst);
    }
    // What the writer has begun to copy of a range, from its beginning; its word. Beyond that, and
    // beyond what want_less() has said before, it will not copy.
    std::uint64_t begun_bytes(std::uint32_t number) const
    {
        return ring_->begun_bytes[number % stream_wants].load(std::memory_order_seq_cst);
    }
    // Takes away what a writer has published that has ended: the next one begins with next().
    void clear()
    {
        for (stream_piece &each : ring_->pieces) {
            each.sequence.store(0, std::memory_order_relaxed);
        }
    }
    // Of the next piece to be released.
    std::uint64_t next() const { return next_; }
    // The ring is empty, and lent to nobody: it begins with its first slot again, which is in the
    // caches and whose pages are in the TLB.
    void rewind() { next_ = (next_ + pieces_ - 1) / pieces_ * pieces_; }

  private:
    stream_ring *ring_ = nullptr;
    std::uint32_t pieces_ = 0;
    std::uint64_t next_ = 0;
};

} // namespace gpusm

#endif
