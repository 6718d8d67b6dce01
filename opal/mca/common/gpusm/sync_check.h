// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// sync_check.h: finds buffers that a program gives to MPI while its kernels or copies still write
// them (--mca btl_gpusm_check_sync 1). MPI reads and writes a buffer from the call on, and knows
// nothing of the program's streams. So a buffer is hashed at once, and again when the device has
// come to rest: if it is another one then, the program has not waited for its own work.
//
// What a call hides by waiting for the device the next one cannot find. So calls that only start an
// operation do not wait: the second look is due when the program waits for one.
//
// What is not found: work that was done before the first look, or writes what was there already;
// work that reads the buffer, or is submitted during the operation.
#ifndef GPUSM_SYNC_CHECK_H
#define GPUSM_SYNC_CHECK_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/rest_waiter.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gpusm {

// As the program has given it.
struct buffer_use {
    const void *buffer;
    std::size_t len_bytes; // of data
    struct envelope {
        int tag;
        int peer;
        const void *comm;
    };
    std::optional<envelope> message = std::nullopt;
};

class sync_check {
  public:
    using part_visitor = std::function<void(const void *at, std::size_t len_bytes)>;
    // Calls it for each part of the data, in any order.
    using part_list = std::function<void(const part_visitor &)>;

    sync_check(const driver_api &driver, std::uint32_t rank);
    sync_check(const sync_check &) = delete;
    sync_check &operator=(const sync_check &) = delete;

    // A buffer that has been looked at once.
    struct look {
        buffer_use use;
        bool on_device;
        device *in;
        std::vector<std::pair<const unsigned char *, std::size_t>> parts;
        std::size_t hash;
        std::vector<void *> frames; // return addresses, of the innermost function first
        // Of a second look that is due later.
        const void *request;            // null: of none
        std::function<bool()> is_valid; // does the buffer still have its first content, else
    };

    // Any thread, each, that holds no lock which another one may need for the device to come to
    // rest. Nothing, where the driver does not know the memory, or it cannot be read.
    std::optional<look> first_look(const buffer_use &use, const part_list &parts);
    std::optional<look> first_look(const buffer_use &use)
    {
        return first_look(use,
                          [&use](const part_visitor &each) { each(use.buffer, use.len_bytes); });
    }
    // At this one and all that are due. Waits until the device has come to rest, some seconds at
    // most, as a kernel may wait for what MPI is to do. What it finds is logged as an error, once
    // for each place in the program that calls MPI.
    void second_look(std::optional<look> &&at);
    // When the program waits next, or of nothing never. What was due for the same `request` before,
    // if it is not null, is not any more: that has been freed. `is_valid` is asked after that look;
    // null: it is.
    void second_look_later(std::optional<look> &&at, const void *request = nullptr,
                           std::function<bool()> is_valid = nullptr);
    // The program is about to wait for what it has started.
    void look_at_due()
    {
        if (0 != due_number_.load(std::memory_order_relaxed)) [[unlikely]] {
            second_look(std::nullopt);
        }
    }

    // Messages over `comm` are not the program's own, from then on or no longer.
    void exclude(const void *comm);
    void include(const void *comm);

    std::uint64_t looked_at() const { return looked_at_.load(std::memory_order_relaxed); }
    std::uint64_t found() const { return found_.load(std::memory_order_relaxed); }

  private:
    bool is_there(const look &at) const;
    bool read(const look &at, std::size_t *hash);
    bool add(const look &at, const unsigned char *from, std::size_t len_bytes);
    bool flush(const look &at, std::size_t *hash);
    status wait_for_rest(const std::vector<look> &of);
    void report(const look &late);

    const driver_api &driver_;
    const std::uint32_t rank_;
    std::mutex lock_; // of all below but the numbers
    device_table devices_;
    rest_waiter rest_;
    std::vector<unsigned char> staging_;
    std::size_t staged_bytes_ = 0;
    std::vector<look> due_;
    std::set<const void *> excluded_;
    std::set<std::vector<void *>> told_; // return addresses of the calls
    bool told_of_unrest_ = false;
    std::atomic<std::size_t> due_number_{0};
    std::atomic<std::uint64_t> looked_at_{0};
    std::atomic<std::uint64_t> found_{0};
};

} // namespace gpusm

#endif
