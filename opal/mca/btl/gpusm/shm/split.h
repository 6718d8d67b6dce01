// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/split.h: who copies which part of a range that two processes copy together. One takes chunks
// from the front, the other from the back, until they meet: so each does as much as it comes to,
// and one that does not come at all leaves everything to the other. A chunk that has been taken
// belongs to its taker for good.
//
// The word lies in the reader's segment, and the reader has the front. The other one's writes are a
// peer's: the reader checks what it finds against what it knows.
#ifndef GPUSM_SHM_SPLIT_H
#define GPUSM_SHM_SPLIT_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Of device memory for host memory.
inline constexpr std::uint64_t push_chunk_bytes = 32 * 1024;

// Shorter ones between host and device memory are copied by one side alone: of so few chunks what
// the other one would take does not pay for the message that it costs.
inline constexpr std::uint64_t split_least_bytes = 128 * 1024;

// Of host memory for host memory, in whole pages. Every chunk costs a system call, so there are
// few; long messages have more, for the sake of a process that is slower, or comes later.
constexpr std::uint64_t cooperative_chunk_bytes(std::uint64_t len_bytes)
{
    constexpr std::uint64_t kibi = 1024;
    constexpr std::uint64_t page = 4 * kibi;
    return (std::clamp(len_bytes / 8, 64 * kibi, 256 * kibi) + page - 1) / page * page;
}

// What the process that does not own the word says when it will not look at the word again.
enum class split_answer : std::uint32_t {
    none = 0,
    written = 1, // all that it has taken is where it belongs; it may be nothing
    failed = 2,  // what it has taken is to be copied by the other one
};

// Chunks [0, front) belong to the one, [back, all) to the other. Alone in its cache line.
struct alignas(64) split_word {
    std::atomic<std::uint64_t> word; // back (32 bits) | front (32 bits)
    // Writer: the process that does not own it, once.
    std::atomic<split_answer> answer;
};
static_assert(std::atomic<split_answer>::is_always_lock_free);

struct split_state {
    std::uint32_t front = 0;
    std::uint32_t back = 0;
};

constexpr std::uint64_t split_pack(split_state state)
{
    return std::uint64_t{state.back} << 32 | state.front;
}
constexpr split_state split_unpack(std::uint64_t word)
{
    return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
}

// How many chunks a range has; the last one may be short.
constexpr std::uint64_t split_chunks(std::uint64_t len_bytes, std::uint64_t chunk_bytes)
{
    return (len_bytes + chunk_bytes - 1) / chunk_bytes;
}
// The bytes of a chunk of a range of that length.
constexpr std::uint64_t split_bytes(std::uint64_t chunk, std::uint64_t len_bytes,
                                    std::uint64_t chunk_bytes)
{
    return std::min(chunk_bytes, len_bytes - chunk * chunk_bytes);
}

// How many chunks the next piece may have of one that has taken `taken` of `all`, where each piece
// is brought by a device and then copied by a processor: the first ones are short, so that the
// processor's part begins early. Not below an eighth: what the calls of the driver for more pieces
// take is more than what that saves of a long range.
constexpr std::uint32_t split_longest_piece(std::uint64_t all, std::uint32_t taken)
{
    return std::max({std::uint32_t{1}, taken, static_cast<std::uint32_t>(all / 8)});
}

inline void split_begin(split_word *split, std::uint32_t chunks)
{
    split->word.store(split_pack({0, chunks}), std::memory_order_relaxed);
    split->answer.store(split_answer::none, std::memory_order_relaxed);
}
inline split_state split_look(const split_word &split)
{
    return split_unpack(split.word.load(std::memory_order_acquire));
}

enum class split_end { front, back };

// Takes up to `most` chunks at that end, which lie together, and *first is the lowest of them. No
// more than half of what is left, so that none of the two ends much later than the other. Returns
// how many; 0: there is nothing left.
inline std::uint32_t split_take_some(split_word *split, split_end at, std::uint32_t most,
                                     std::uint32_t *first)
{
    std::uint64_t seen = split->word.load(std::memory_order_relaxed);
    for (;;) {
        split_state next = split_unpack(seen);
        if (next.front >= next.back) {
            return 0;
        }
        const std::uint32_t taken =
            std::min(most, std::max<std::uint32_t>(1, (next.back - next.front) / 2));
        const std::uint32_t lowest = split_end::front == at ? next.front : next.back - taken;
        (split_end::front == at ? next.front += taken : next.back -= taken);
        if (split->word.compare_exchange_weak(seen, split_pack(next), std::memory_order_acq_rel)) {
            *first = lowest;
            return taken;
        }
    }
}

// Takes the next chunk at that end. False: there is nothing left.
inline bool split_take(split_word *split, split_end at, std::uint32_t *chunk)
{
    return 1 == split_take_some(split, at, 1, chunk);
}

} // namespace gpusm

#endif
