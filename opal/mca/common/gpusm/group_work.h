// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// group_work.h: of one process's part of a collective call, what has to do with device memory: what
// it offers the others of its own, what it maps of theirs, and the launch.
#ifndef GPUSM_GROUP_WORK_H
#define GPUSM_GROUP_WORK_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/slot_launches.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/ipc/descriptor_wait.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <vector>

namespace gpusm {

enum class memory_told : std::uint32_t {
    host = 1,    // or device memory that nobody else can map
    device = 2,  // that the handles name
    nothing = 3, // it has no part in the call
};

// The caller holds the GPU lock, but for copy_to_scratch(), carry_out() and release().
class group_work {
  public:
    // Memory of another member.
    struct their_memory {
        mapping *mapped = nullptr; // null: not needed, or not yet
        std::uint64_t here = 0;    // its address in this process
        std::uint64_t there = 0;   // the same place, as its owner has it
        bool is_ready = false;     // to be read and written, by a kernel that waits for events
    };

    // `side`: may be null where `on_device()` stays null.
    explicit group_work(gpu_side *side) : side_(side) {}
    group_work(const group_work &) = delete;
    group_work &operator=(const group_work &) = delete;

    gpu_side *side() const { return side_; }
    // Where this process's buffers are; null: they are not on one device.
    device *on() const { return on_; }

    // The bytes [offset, offset + bytes) from the buffer on are on the device that the others are
    // on, in one allocation, and a kernel there may touch them. What memory the buffer is has been
    // asked before, in this call.
    status find_device(const void *buffer, std::int64_t offset, std::uint64_t bytes);
    // Copies them into scratch memory on that device, where others can read them while the
    // buffer is written. `busy`: not yet, again with the same ones; `ok`: the copy of the first
    // byte is at *out, until release(). Else it cannot be.
    status copy_to_scratch(const void *buffer, std::int64_t offset, std::uint64_t bytes,
                           std::uint64_t *out);
    // So that others can map these bytes of it, to read or only to write them. Ends with
    // release(). Anything but `ok`: they cannot.
    status offer(const void *buffer, std::uint64_t bytes, export_use use, remote_handle *handle);
    // Where [address, address + bytes) of another process is in this one: as far behind `here` as
    // it is behind `there`. Does nothing if the memory is mapped already. `busy`: not yet; else it
    // cannot be had.
    status map(peer &from, const remote_handle &handle, std::uint64_t address, std::uint64_t bytes,
               their_memory *out);
    // Can that kernel be launched?
    status ready(slot_launches &by) const;

    // Launches with start(launches of its device, events to wait for, completion), which is called
    // until it has, and asks for the end from then on. `busy`: not over yet.
    template <typename Launches, typename Start>
    status carry_out(launches_by_device<Launches> &table, Start start)
    {
        const std::lock_guard guard(side_->lock);
        return go_on(table.of(*on_), start, &part_);
    }

    // Gives back what has been offered, and these mappings. Nothing runs.
    void release(std::initializer_list<std::vector<their_memory> *> theirs);

  private:
    struct launch {
        completion end;
        bool is_launched = false;
        unsigned refusals = 0; // in a row
    };

    template <typename Launches, typename Start> status go_on(Launches &by, Start start, launch *of)
    {
        if (of->is_launched) {
            return by.ask(&of->end);
        }
        const std::size_t of_others = events_.size();
        if (CUevent before = side_->event_before_copies(*on_); before != nullptr) {
            events_.push_back(before);
        }
        const driver_scope scope(side_->driver, on_->context);
        const status s = scope.entered() ? start(by, events_, &of->end) : status::driver_failed;
        events_.resize(of_others);
        of->is_launched = status::ok == s;
        // Nothing has been started then, but the others may have: so it is tried again.
        const bool again = status::busy != s && ++of->refusals < failures_in_a_row;
        return of->is_launched || again ? status::busy : s;
    }

    gpu_side *const side_;
    device *on_ = nullptr;
    std::vector<exported *> offered_;
    descriptor_wait descriptors_;
    std::vector<CUevent> events_; // of the others, for the kernel to wait for
    launch part_;
    packed_block scratch_; // `on` is null: there is no copy
    launch copying_;
};

inline std::uint64_t address_of(const void *buffer)
{
    return reinterpret_cast<std::uint64_t>(buffer);
}

} // namespace gpusm

#endif
