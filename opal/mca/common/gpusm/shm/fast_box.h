// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/fast_box.h: a ring for the small messages of one sender to one receiver, with
// the message inside. It lies in the receiver's segment.
//
//   fast_box_writer   the sender, one thread at a time
//   fast_box_reader   the owner of the segment, one thread at a time
//
// A message takes as many units (half cache lines) as it needs, one after the other: a word and its
// payload. The word is written last, so a sender that is killed leaves a complete message or none.
// It holds the message's sequence number, and the reader knows which one is due: a word of the lap
// before is nothing to it. Payload of the lap before must not be where a word is looked for, so the
// writer, which knows where it put payload, puts a 0 there first. A message that begins before the
// end of the ring may lie across it, in units that are there for that only; the next one begins at
// the start.
//
// The reader tells now and then how many units it is done with (peer_slot::fast_box_taken); the
// writer looks there only when what it knows leaves no room. So a small message costs one
// cache line that moves from one processor to the other, or half a one, and no locked instruction.
#ifndef GPUSM_SHM_FAST_BOX_H
#define GPUSM_SHM_FAST_BOX_H

#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpusm {

// What the word in front of a message says, unpacked.
struct fast_box_message {
    std::uint32_t sequence; // the low half of the message's sequence number
    std::uint16_t bytes;    // of payload
    std::uint8_t kind;      // a frag_kind, or one of those below
    std::uint8_t tag;
};

// A fragment in the sender's segment, for a message that is too long to lie in the ring.
struct fast_box_reference {
    std::uint32_t granule;
    std::uint32_t payload_bytes; // only a hint, the fragment itself says it again
};
static_assert(sizeof(fast_box_reference) == 8);

namespace fast_box_word {

inline constexpr std::uint8_t nothing = 0;
// Payload is a fast_box_reference.
inline constexpr std::uint8_t reference = 0xfe;

constexpr std::uint64_t pack(fast_box_message message)
{
    return std::uint64_t{message.sequence} << 32 | std::uint64_t{message.tag} << 24 |
           std::uint64_t{message.kind} << 16 | message.bytes;
}
// Stands in front of one that its writer, of that peer slot, has not begun to use, so that nothing
// else is taken for it. Reads as no message.
constexpr std::uint64_t unused(std::uint32_t slot)
{
    return pack({0, static_cast<std::uint16_t>(slot), nothing, 0x5a});
}
constexpr fast_box_message unpack(std::uint64_t word)
{
    return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint16_t>(word),
            static_cast<std::uint8_t>(word >> 16), static_cast<std::uint8_t>(word >> 24)};
}

} // namespace fast_box_word

constexpr std::uint32_t fast_box_units_for(std::size_t payload_bytes)
{
    return static_cast<std::uint32_t>(
        (sizeof(fast_box_unit::word) + payload_bytes + sizeof(fast_box_unit) - 1) /
        sizeof(fast_box_unit));
}

// The longest payload that a fast box takes. For longer ones a fragment is the better place, as the
// next one may use the same lines again.
inline constexpr std::size_t fast_box_most_bytes =
    fast_box_most_units * sizeof(fast_box_unit) - sizeof(fast_box_unit::word);

// Where the next message is to be put, as fast_box_writer::place() has found it.
struct fast_box_place {
    unsigned char *payload; // to be written by the sender; null: there is no room
    std::uint32_t units;
};

// The unit behind a message of so many units, where the next one begins.
constexpr std::uint32_t fast_box_behind(std::uint32_t index, std::uint32_t units)
{
    return index + units < fast_box_units ? index + units : 0;
}

class fast_box_writer {
  public:
    fast_box_writer() = default;
    // `taken` is where the reader says how far it is.
    fast_box_writer(fast_box *box, const std::atomic<std::uint32_t> *taken)
        : ring_(box->unit), taken_(taken)
    {
    }

    bool open() const { return ring_ != nullptr; }

    // Where the payload of the next message may be written, which has so many bytes. Nothing can be
    // seen by the reader until publish(). Only when open, and for fast_box_most_bytes at most.
    fast_box_place place(std::size_t bytes)
    {
        const std::uint32_t units = fast_box_units_for(bytes);
        if (!has_room(units) && !has_room_by_now(units)) [[unlikely]] {
            return {};
        }
        // Before the payload: stores leave in order, and would wait for this unit half-way. The
        // message's own first unit was cleared as the one behind the message before it.
        clear(fast_box_behind(index_, units));
        // Not the unit's payload, as the message's does not end where the unit does.
        auto *first = reinterpret_cast<unsigned char *>(ring_ + index_);
        return {first + offsetof(fast_box_unit, payload), units};
    }
    // Sends what was written to `place`, which is of the last place(), for message.bytes.
    void publish(const fast_box_place &place, fast_box_message message)
    {
        if (place.units > 1) {
            std::memset(&payload_in_[index_ + 1], 1, place.units - 1);
        }
        // Release: pairs with the reader's acquire; the payload is complete.
        ring_[index_].word.store(fast_box_word::pack(message), std::memory_order_release);
        index_ = fast_box_behind(index_, place.units);
        written_ += place.units;
    }

  private:
    // Makes sure that the unit begins with a word, be it an old one.
    void clear(std::uint32_t unit)
    {
        if (payload_in_[unit] != 0) {
            payload_in_[unit] = 0;
            ring_[unit].word.store(0, std::memory_order_relaxed);
        }
    }

    // With one more unit, for the word behind the message.
    bool has_room(std::uint32_t units) const
    {
        return units < fast_box_units - (written_ - taken_seen_);
    }
    // The same after a look at what the reader says.
    [[gnu::noinline]] bool has_room_by_now(std::uint32_t units)
    {
        // Acquire pairs with fast_box_reader::give_back: the units have been read. The value is
        // the peer's word: one that cannot be is ignored.
        const std::uint32_t taken = taken_->load(std::memory_order_acquire);
        if (taken - taken_seen_ <= written_ - taken_seen_) {
            taken_seen_ = taken;
        }
        return has_room(units);
    }

    fast_box_unit *ring_ = nullptr;
    std::uint32_t index_ = 0; // where the next message begins
    // Units, from the start of all; these wrap.
    std::uint32_t written_ = 0;
    std::uint32_t taken_seen_ = 0; // never ahead of the truth
    const std::atomic<std::uint32_t> *taken_ = nullptr;
    // By unit; 1: it begins with payload.
    unsigned char payload_in_[sizeof(fast_box) / sizeof(fast_box_unit)] = {};
};

class fast_box_reader {
  public:
    fast_box_reader() = default;
    fast_box_reader(const fast_box *box, std::atomic<std::uint32_t> *taken)
        : ring_(box->unit), taken_(taken)
    {
    }

    bool open() const { return ring_ != nullptr; }

    // True: the message with that sequence number may be the next one here.
    bool has(std::uint64_t sequence) const
    {
        return static_cast<std::uint32_t>(sequence) ==
               fast_box_word::unpack(ring_[index_].word.load(std::memory_order_relaxed)).sequence;
    }

    enum class look { nothing, message, garbage };

    // `message`: the one with that sequence number, whose payload stays until give_back(); the next
    // take() is about the one behind it. One that cannot be is `garbage`, and stays where it is.
    // One that is not due yet, because a fragment before it has not been taken from the FIFO, is
    // `nothing`.
    look take(std::uint64_t sequence, fast_box_message *message, const unsigned char **payload)
    {
        *message = fast_box_word::unpack(ring_[index_].word.load(std::memory_order_acquire));
        if (message->sequence != static_cast<std::uint32_t>(sequence) ||
            fast_box_word::nothing == message->kind) {
            return look::nothing;
        }
        if (message->bytes > fast_box_most_bytes) [[unlikely]] {
            return look::garbage;
        }
        *payload = ring_[index_].payload;
        const std::uint32_t units = fast_box_units_for(message->bytes);
        index_ = fast_box_behind(index_, units);
        read_ += units;
        return look::message;
    }

    // Lets the writer use the units of the messages that have been taken.
    void give_back() { taken_->store(read_, std::memory_order_release); }

  private:
    const fast_box_unit *ring_ = nullptr;
    std::uint32_t index_ = 0; // where the next word is
    std::uint32_t read_ = 0;  // units, from the start of all; wraps
    std::atomic<std::uint32_t> *taken_ = nullptr;
};

} // namespace gpusm

#endif
