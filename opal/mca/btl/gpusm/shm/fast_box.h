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
// writer, which knows where it put payload, puts a 0 there first. Where a message would lie across
// the end of the ring, a word says to go on at the start.
//
// The reader tells now and then how many units it is done with (peer_slot::fast_box_taken); the
// writer looks there only when what it knows leaves no room. So a small message costs one
// cache line that moves from one processor to the other, or half a one, and no locked instruction.
#ifndef GPUSM_SHM_FAST_BOX_H
#define GPUSM_SHM_FAST_BOX_H

#include "opal/mca/btl/gpusm/shm/wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

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
// The next message is at the start of the ring.
inline constexpr std::uint8_t skip = 0xff;

// Is there a message behind the word?
constexpr bool says_bytes(std::uint8_t kind)
{
    return nothing != kind && skip != kind;
}

constexpr std::uint64_t pack(fast_box_message message)
{
    return std::uint64_t{message.sequence} << 32 | std::uint64_t{message.tag} << 24 |
           std::uint64_t{message.kind} << 16 | message.bytes;
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

// The longest payload that a ring of that many units takes: five sixteenths of it, so that three
// fit. For longer ones a fragment is the better place, as the next one may use the same lines
// again.
constexpr std::size_t fast_box_most_bytes(std::uint32_t units)
{
    return std::size_t{units} * 5 / 16 * sizeof(fast_box_unit) - sizeof(fast_box_unit::word);
}

// Where the next message is to be put, as fast_box_writer::place() has found it.
struct fast_box_place {
    unsigned char *payload; // to be written by the sender; null: there is no room
    fast_box_unit *unit;    // the first one
    std::uint32_t index;    // of that unit
    std::uint32_t units;
};

// What is done for every message is short and without a loop: the rest is in make_room(), which is
// called a few times in each lap.
class fast_box_writer {
  public:
    fast_box_writer() = default;
    // `units` is a power of two, at least 8; `taken` is where the reader says how far it is.
    fast_box_writer(fast_box_unit *ring, std::uint32_t units,
                    const std::atomic<std::uint32_t> *taken)
        : ring_(ring), units_(units), taken_(taken), payload_in_(units)
    {
    }

    bool open() const { return ring_ != nullptr; }
    std::size_t most_bytes() const { return fast_box_most_bytes(units_); }

    // Where the payload of the next message may be written, which has so many bytes. Nothing can be
    // seen by the reader until publish(). Only when open, and for most_bytes() at most.
    fast_box_place place(std::size_t bytes)
    {
        const std::uint32_t units = fast_box_units_for(bytes);
        if (units > at_hand_until_ - written_ && !make_room(units)) [[unlikely]] {
            return {};
        }
        return next_place(units);
    }
    // Sends what was written to `place`, which is of the last place(), for message.bytes.
    void publish(const fast_box_place &place, fast_box_message message)
    {
        if (place.units > 1) {
            std::memset(&payload_in_[place.index + 1], 1, place.units - 1);
        }
        // Release: pairs with the reader's acquire; the payload is complete.
        place.unit->word.store(fast_box_word::pack(message), std::memory_order_release);
        if (skip_at_ != 0) [[unlikely]] {
            ring_[skip_at_].word.store(
                fast_box_word::pack({message.sequence, 0, fast_box_word::skip, 0}),
                std::memory_order_release);
            skip_at_ = 0;
        }
        written_ += place.units;
    }

  private:
    fast_box_place next_place(std::uint32_t units)
    {
        const std::uint32_t index = written_ & (units_ - 1);
        // Before the payload: stores leave in order, and would wait for this unit half-way. The
        // message's own first unit was cleared as the one behind the message before it.
        clear((index + units) & (units_ - 1));
        fast_box_unit *first = ring_ + index;
        // Not first->payload, as payload does not end where the unit does.
        return {reinterpret_cast<unsigned char *>(first) + offsetof(fast_box_unit, payload), first,
                index, units};
    }

    // Makes sure that the unit begins with a word, be it an old one.
    void clear(std::uint32_t unit)
    {
        if (payload_in_[unit] != 0) {
            payload_in_[unit] = 0;
            ring_[unit].word.store(0, std::memory_order_relaxed);
        }
    }

    // Finds out how far the writer can go on now; to the start of the ring, if a message of so many
    // units would lie across its end. False: there is no room for it.
    [[gnu::noinline]] bool make_room(std::uint32_t units)
    {
        const std::uint32_t index = written_ & (units_ - 1);
        const std::uint32_t skipped = index + units > units_ ? units_ - index : 0;
        // One more, for the word behind the message.
        const std::uint32_t wanted = skipped + units + 1;
        if (wanted > room()) {
            // Acquire pairs with fast_box_reader::give_back: the units have been read. The value is
            // the peer's word: one that cannot be is ignored.
            const std::uint32_t taken = taken_->load(std::memory_order_acquire);
            if (taken - taken_seen_ <= written_ - taken_seen_) {
                taken_seen_ = taken;
            }
            if (wanted > room()) {
                return false;
            }
        }
        if (skipped > 0) {
            skip_at_ = index;    // its word follows the message, which must not be missing then
            written_ += skipped; // the first unit of the ring never begins with payload
        }
        at_hand_until_ = written_ + std::min(room() - 1, units_ - (written_ & (units_ - 1)));
        return true;
    }

    std::uint32_t room() const { return units_ - (written_ - taken_seen_); }

    fast_box_unit *ring_ = nullptr;
    std::uint32_t units_ = 0;
    // Units, from the start of all; these wrap.
    std::uint32_t written_ = 0;       // with those that were skipped
    std::uint32_t at_hand_until_ = 0; // messages that end before or here need no make_room()
    std::uint32_t taken_seen_ = 0;    // never ahead of the truth
    std::uint32_t skip_at_ = 0; // the unit where a word will say to go on at the start; 0: none
    const std::atomic<std::uint32_t> *taken_ = nullptr;
    std::vector<unsigned char> payload_in_; // per unit: 1 if it begins with payload
};

class fast_box_reader {
  public:
    fast_box_reader() = default;
    fast_box_reader(const fast_box_unit *ring, std::uint32_t units,
                    std::atomic<std::uint32_t> *taken)
        : next_(ring), left_(units), ring_(ring), units_(units),
          most_bytes_(fast_box_most_bytes(units)), taken_(taken)
    {
    }

    bool open() const { return ring_ != nullptr; }

    // True: the message with that sequence number may be the next one here.
    bool has(std::uint64_t sequence) const
    {
        return static_cast<std::uint32_t>(sequence) ==
               fast_box_word::unpack(next_->word.load(std::memory_order_relaxed)).sequence;
    }

    enum class look { nothing, message, garbage };

    // `message`: the one with that sequence number, whose payload stays until give_back(); the next
    // take() is about the one behind it. One that cannot be is `garbage`, and stays where it is.
    // One that is not due yet, because a fragment before it has not been taken from the FIFO, is
    // `nothing`.
    look take(std::uint64_t sequence, fast_box_message *message, const unsigned char **payload)
    {
        const auto due = static_cast<std::uint32_t>(sequence);
        *message = fast_box_word::unpack(next_->word.load(std::memory_order_acquire));
        if (message->sequence != due) {
            return look::nothing;
        }
        if (!fast_box_word::says_bytes(message->kind)) [[unlikely]] {
            if (fast_box_word::nothing == message->kind) {
                return look::nothing;
            }
            move_on(left_);
            *message = fast_box_word::unpack(next_->word.load(std::memory_order_acquire));
            if (message->sequence != due || !fast_box_word::says_bytes(message->kind)) {
                return look::garbage;
            }
        }
        const std::uint32_t units = fast_box_units_for(message->bytes);
        if (message->bytes > most_bytes_ || units > left_) [[unlikely]] {
            return look::garbage;
        }
        *payload = next_->payload;
        move_on(units);
        return look::message;
    }

    // Lets the writer use the units of the messages that have been taken.
    void give_back() { taken_->store(read_, std::memory_order_release); }

  private:
    void move_on(std::uint32_t units)
    {
        read_ += units;
        left_ -= units;
        next_ += units;
        if (0 == left_) [[unlikely]] {
            left_ = units_;
            next_ = ring_;
        }
    }

    const fast_box_unit *next_ = nullptr; // where the next word is
    std::uint32_t left_ = 0;              // units from there to the end of the ring
    std::uint32_t read_ = 0;              // units, from the start of all; wraps
    const fast_box_unit *ring_ = nullptr;
    std::uint32_t units_ = 0;
    std::size_t most_bytes_ = 0;
    std::atomic<std::uint32_t> *taken_ = nullptr;
};

} // namespace gpusm

#endif
