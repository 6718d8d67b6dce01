// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_shared.h: what the processes of a window share in memory: locks, the counters of
// post-start-complete-wait, and what each has attached to a dynamic window. All of it is zero when
// the window is made.
#ifndef GPUSM_OSC_SHARED_H
#define GPUSM_OSC_SHARED_H

#include "opal/mca/common/gpusm/window_copies.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Readers and writers in the order in which they have come. A writer waits for all before it, a
// reader for the writers before it.
class shared_lock {
  public:
    // The place in the order.
    std::uint32_t take_place() { return next_.fetch_add(1, std::memory_order_relaxed); }
    // Whether it is the turn of that place. A reader lets the one behind it try, too.
    bool is_turn_of_reader(std::uint32_t place)
    {
        if (place != reader_.load(std::memory_order_acquire)) {
            return false;
        }
        reader_.store(place + 1, std::memory_order_release);
        return true;
    }
    bool is_turn_of_writer(std::uint32_t place) const
    {
        return place == writer_.load(std::memory_order_acquire);
    }
    void leave_as_reader() { writer_.fetch_add(1, std::memory_order_release); }
    void leave_as_writer()
    {
        reader_.fetch_add(1, std::memory_order_release);
        writer_.fetch_add(1, std::memory_order_release);
    }

  private:
    std::atomic<std::uint32_t> next_;
    std::atomic<std::uint32_t> reader_; // whose turn it is, of both
    std::atomic<std::uint32_t> writer_; // how many have left
};

// Memory that a process has attached.
struct attached_memory {
    std::atomic<std::uint32_t> version; // odd: there is memory; changes with what is there
    std::uint32_t unused;
    window_memory memory;
};

// One of each process, written by all.
struct alignas(64) shared_rank {
    shared_lock lock;
    // Who accumulates there: its rank and 1; 0: nobody.
    alignas(64) std::atomic<std::uint32_t> accumulates;
    // Of dynamic windows: how many of its attached_memory have ever been used.
    std::atomic<std::uint32_t> attached;
    std::atomic<std::uint32_t> changes; // of what is attached
    // Of the first process: how often any has come to where it waits for all.
    alignas(64) std::atomic<std::uint64_t> arrivals;
};

// That each process can attach at the same time.
inline constexpr std::uint32_t most_attached = 4096;

// Of each pair: how often the target has posted to the origin, and the origin has completed.
struct shared_pair {
    std::atomic<std::uint32_t> posted;
    std::atomic<std::uint32_t> completed;
};

// Where all that is, from the beginning of the shared memory.
struct shared_layout {
    std::size_t pairs;
    std::size_t attached;
    std::size_t bytes; // of all

    shared_layout(std::size_t ranks, bool is_dynamic)
        : pairs(ranks * sizeof(shared_rank)),
          attached((pairs + ranks * ranks * sizeof(shared_pair) + 63) / 64 * 64),
          bytes(attached + (is_dynamic ? ranks * most_attached * sizeof(attached_memory) : 0))
    {
    }
};

} // namespace gpusm

#endif
