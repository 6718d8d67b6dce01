// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// event.h: events. Their state is a slot that another process may map: when it was last
// recorded and how far the work has come.
#ifndef GPUSM_SOFTCUDA_EVENT_H
#define GPUSM_SOFTCUDA_EVENT_H

#include "stream.h"

#include <atomic>

namespace softcuda {

// Writers: whoever records (recorded) and the worker that runs the record (done).
struct event_slot {
    std::atomic<std::uint64_t> recorded; // number of the newest record
    std::atomic<std::uint64_t> done;     // newest record that is complete
    std::atomic<std::uint32_t> recorder; // process of the newest record
    std::uint32_t reserved;
};
static_assert(sizeof(event_slot) == 24 && std::atomic<std::uint64_t>::is_always_lock_free);

// Slots of interprocess events, a file's worth at a time; a slot is used once, so an importer
// never sees another event in it.
struct event_page {
    static constexpr std::uint32_t slots = 512;
    event_slot *at = nullptr;
    int fd = -1;
    std::uint64_t inode = 0;
    std::uint32_t next = 0;
    ~event_page();
};

struct event_state {
    std::shared_ptr<event_page> page; // null: `own` is the slot
    std::uint32_t index = 0;
    event_slot own{};
    std::atomic<std::int64_t> done_at_ns{0};
    event_slot &slot() { return page != nullptr ? page->at[index] : own; }
    bool reached(std::uint64_t number); // also when the recording process is dead
};

struct event {
    context *ctx = nullptr;
    unsigned flags = 0;
    bool imported = false;
    std::shared_ptr<event_state> state;
};

} // namespace softcuda

#endif
