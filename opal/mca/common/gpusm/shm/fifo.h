// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/fifo.h: the receiver's queue: many senders, one reader, bounded, in shared memory.
//
//   fifo_post     any process, any thread
//   fifo_reader   the owner of the segment, one thread at a time
//
// Algorithm: a ring of words with a lap number in each word, after the array queue of Tsigas
// and Zhang ("A simple, fast and scalable non-blocking concurrent FIFO queue", SPAA 2001). A
// ticket t stands for slot t mod n in lap t / n. A sender swaps the whole message into the
// slot that is empty in its lap; the tail counter is only a hint of where that is, and
// whoever finds it lagging moves it. So there is no moment in which a slot is claimed but not
// published: a sender that is killed anywhere in here blocks nobody.
//
// Order: messages of one sender arrive in the order of its posts, because the tail is past a
// message's ticket before its post returns.
//
// Nonsense: any process may write to tail and slots, and a broken one may have stored anything. No
// post goes on for longer than the ring is, and the reader finds out and puts it right (mend()).
//
// Lap overflow: the lap has 24 bits. A sender would have to sleep between reading the tail
// and its compare-and-swap for exactly 2^24 laps (at 4096 slots 7 * 10^10 messages, two hours
// at 10 million a second) to mistake an old lap for its own.
#ifndef GPUSM_SHM_FIFO_H
#define GPUSM_SHM_FIFO_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <bit>
#include <cstdint>

namespace gpusm {

// What one FIFO word says, unpacked.
struct fifo_message {
    std::uint32_t sender;  // peer slot in the receiver's segment
    std::uint32_t granule; // where the fragment starts in the sender's segment, never 0
};

namespace fifo_word {

inline constexpr unsigned granule_bits = 24;
inline constexpr unsigned sender_bits = 16;
inline constexpr unsigned lap_bits = 24;
inline constexpr std::uint64_t granule_mask = (1ULL << granule_bits) - 1;
inline constexpr std::uint64_t sender_mask = (1ULL << sender_bits) - 1;
inline constexpr std::uint64_t lap_mask = (1ULL << lap_bits) - 1;
static_assert(granule_bits + sender_bits + lap_bits == 64);

constexpr std::uint64_t empty(std::uint64_t lap)
{
    return (lap & lap_mask) << (granule_bits + sender_bits);
}
constexpr std::uint64_t full(std::uint64_t lap, fifo_message message)
{
    return empty(lap) | (message.sender & sender_mask) << granule_bits |
           (message.granule & granule_mask);
}
constexpr bool is_empty(std::uint64_t word)
{
    return 0 == (word & granule_mask);
}
constexpr std::uint64_t lap_of(std::uint64_t word)
{
    return word >> (granule_bits + sender_bits);
}
// A ticket of that lap has been used: its message is there, or has been there.
constexpr bool is_used_up(std::uint64_t word, std::uint64_t lap)
{
    return is_empty(word) ? lap_of(word) == ((lap + 1) & lap_mask) : lap_of(word) == lap;
}
constexpr fifo_message message_of(std::uint64_t word)
{
    return {static_cast<std::uint32_t>((word >> granule_bits) & sender_mask),
            static_cast<std::uint32_t>(word & granule_mask)};
}

} // namespace fifo_word

// The ring as a sender or the reader sees it. `slots` is a power of two. The pointers are into
// a mapped segment that outlives the view.
struct fifo_view {
    std::atomic<std::uint64_t> *tail = nullptr;
    fifo_slot *slot = nullptr;
    std::uint32_t slots = 0;

    std::uint64_t lap_of_ticket(std::uint64_t ticket) const
    {
        return (ticket >> std::countr_zero(slots)) & fifo_word::lap_mask;
    }
};

// Appends a message. Lock-free; `busy` when the ring is full, and nothing is changed then.
inline status fifo_post(const fifo_view &fifo, fifo_message message)
{
    for (;;) {
        std::uint64_t ticket = fifo.tail->load(std::memory_order_acquire);
        const std::uint64_t lap = fifo.lap_of_ticket(ticket);
        std::atomic<std::uint64_t> &word = fifo.slot[ticket & (fifo.slots - 1)].word;
        std::uint64_t seen = fifo_word::empty(lap);

        // Release: pairs with the reader's acquire in peek(); the fragment is complete.
        if (word.compare_exchange_strong(seen, fifo_word::full(lap, message),
                                         std::memory_order_release, std::memory_order_relaxed)) {
            // Failure means that somebody helped: the tail is past our ticket either way.
            (void)fifo.tail->compare_exchange_strong(ticket, ticket + 1, std::memory_order_release,
                                                     std::memory_order_relaxed);
            return status::ok;
        }
        if (!fifo_word::is_used_up(seen, lap)) {
            // The message of the lap before is still there: full, if the ticket is still the one.
            // So is a ring in which something else is there, until the reader has mended it.
            if (fifo.tail->load(std::memory_order_relaxed) == ticket) {
                return status::busy;
            }
            continue;
        }
        // The ticket's message is in the slot, or has been read already, and the sender has not
        // moved the tail, or never will because it was killed. Do it for it.
        (void)fifo.tail->compare_exchange_strong(ticket, ticket + 1, std::memory_order_release,
                                                 std::memory_order_relaxed);
    }
}

// The owner's end. The head lives in private memory: nobody else needs it, a sender sees from
// the slot itself whether there is room.
class fifo_reader {
  public:
    fifo_reader() = default;
    explicit fifo_reader(fifo_view fifo) : fifo_(fifo) {}

    // True: `message` is the oldest one. False: nothing there.
    bool peek(fifo_message *message) const
    {
        const std::uint64_t seen =
            fifo_.slot[head_ & (fifo_.slots - 1)].word.load(std::memory_order_acquire);
        *message = fifo_word::message_of(seen);
        return !fifo_word::is_empty(seen);
    }
    // Frees the slot of the message that peek() has shown.
    void pop()
    {
        // The slot's next ticket is one lap on. Relaxed is enough: the slot carries no other
        // data, and a sender's next word is ordered by its own release.
        fifo_.slot[head_ & (fifo_.slots - 1)].word.store(
            fifo_word::empty(fifo_.lap_of_ticket(head_ + fifo_.slots)), std::memory_order_relaxed);
        ++head_;
    }
    // Behind the last message that may be there now, counted from the first of all.
    std::uint64_t end() const
    {
        // Who has put a message into its slot may have been killed before it moved the tail.
        return fifo_.tail->load(std::memory_order_acquire) + 1;
    }
    // All that were there when end() was that have been taken.
    bool has_taken_to(std::uint64_t end) const
    {
        fifo_message next;
        return head_ >= end || !peek(&next);
    }
    // To be called now and then. If a broken process has stored something over the tail or the slot
    // that is due, which would keep messages away, goes one step towards order. True: it has. What
    // has been posted behind is kept; messages that were overwritten are lost.
    bool mend()
    {
        // Slots are filled in order, and the tail is moved after them. So, with nothing in the
        // slot, a tail that was loaded before is where the head is, or one behind. Acquire: the
        // slot is seen as whoever moved the tail has seen it.
        std::uint64_t tail = fifo_.tail->load(std::memory_order_acquire);
        std::atomic<std::uint64_t> &word = fifo_.slot[head_ & (fifo_.slots - 1)].word;
        std::uint64_t seen = word.load(std::memory_order_relaxed);
        const std::uint64_t right = fifo_word::empty(fifo_.lap_of_ticket(head_));
        if (!fifo_word::is_empty(seen) || (right == seen && tail == head_)) {
            return false;
        }
        const bool in_order = right == seen && head_ - tail <= 1;
        // Before a tail that is ahead nobody posts any more, but behind it there may be messages.
        const bool ahead = tail - head_ - 1 < fifo_.slots;
        const std::uint64_t next = fifo_word::empty(fifo_.lap_of_ticket(head_ + fifo_.slots));
        if (word.compare_exchange_strong(seen, ahead ? next : right, std::memory_order_relaxed,
                                         std::memory_order_relaxed)) {
            head_ += ahead ? 1 : 0;
            if (!ahead) {
                (void)fifo_.tail->compare_exchange_strong(tail, head_, std::memory_order_release,
                                                          std::memory_order_relaxed);
            }
        }
        return !in_order;
    }

  private:
    fifo_view fifo_;
    std::uint64_t head_ = 0;
};

} // namespace gpusm

#endif
