// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// window_copies.h: copies between memory of this process and memory that other processes have given
// to a window, which this process makes alone: puts and gets, where one side at least is on a
// device. And what of such memory this process has mapped.
#ifndef GPUSM_WINDOW_COPIES_H
#define GPUSM_WINDOW_COPIES_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_engine.h"
#include "opal/mca/common/gpusm/gpu/layout.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/ipc/descriptor_wait.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gpusm {

// What a process tells the others of memory that it gives to a window. Read as a peer's word.
struct window_memory {
    std::uint64_t base = 0; // in its owner's process
    std::uint64_t len_bytes = 0;
    remote_handle handle{};      // kind `none`: no other process can map it
    std::uint32_t on_device = 0; // not 0: it is device memory, of whatever kind
    std::uint32_t unused = 0;
};

// Of copies under way. Any thread may read it.
struct window_pending {
    std::atomic<std::uint32_t> copies{0};
    std::atomic<bool> has_failed{false};
};

// Memory of one process, as this one reaches it. The caller holds its GPU lock.
class window_mapping {
  public:
    // Where it is for work on a device.
    struct place {
        std::uint64_t base = 0;
        bool kernel_touches = false; // a kernel there may
        bool is_there = false;       // on that device
    };

    // `owner`: null for this process's own.
    window_mapping(gpu_side &side, peer *owner, const window_memory &told)
        : side_(side), owner_(owner), told_(told)
    {
    }
    // Nothing uses it any more.
    ~window_mapping();
    window_mapping(const window_mapping &) = delete;
    window_mapping &operator=(const window_mapping &) = delete;

    const window_memory &told() const { return told_; }
    gpu_side &side() const { return side_; }
    bool is_own() const { return nullptr == owner_; }
    // `busy`: again after progress; else it cannot be had, now or ever.
    status find(device &on, place *out);
    // A device for work on it, where nothing else says on which.
    status preferred(device **out);

  private:
    struct mapped_on {
        device *on;
        mapping *mapped;
    };
    gpu_side &side_;
    peer *const owner_;
    const window_memory told_;
    std::vector<mapped_on> all_;
    descriptor_wait descriptors_;
};

// Some elements in memory.
struct window_elements {
    std::uint64_t address = 0; // of the first element; without a plan, of the first byte
    std::uint64_t count = 0;
    std::uint64_t len_bytes = 0; // packed
    shared_plan plan;            // null: they have no gaps
};

// A copy, from or to elements in the process's own memory.
struct window_copy {
    bool is_put = false;
    window_elements mine;
    window_elements theirs; // at addresses of their owner
    // Where they are; null: at their address, in host memory of this process or that it shares, and
    // without gaps.
    window_mapping *in = nullptr;
};

// Those of this process. An engine of its own, so that messages and windows do not gather together.
class window_copies {
  public:
    // Of the limits: as copy_engine has them.
    window_copies(gpu_side &side, const copy_limits &limits);
    ~window_copies();
    window_copies(const window_copies &) = delete;
    window_copies &operator=(const window_copies &) = delete;

    // --- without the GPU lock

    // Starts it; each of *of, which may be null, counts it until it has ended. `busy`: nothing has
    // happened yet, and it is to be called again after progress. Anything else: nothing has
    // happened, and it is to be done in another way.
    status start(const window_copy &what, const std::array<window_pending *, 2> &of);
    // Hands back what has ended. True: something has.
    bool progress();
    // Copies under way write some of these bytes in a window.
    bool writes_to(const void *begin, std::uint64_t len_bytes);

    // --- under the GPU lock

    // Makes what copies on that device need, while no kernel runs there.
    void prepare(device &on) { engine_.prepare(on); }

  private:
    // Addresses that copies under way write in windows. MPI leaves it open in which order puts of
    // an epoch arrive, but programs take it for theirs; so one that writes where another one does
    // waits for that.
    struct written {
        std::uint64_t begin = 0;
        std::uint64_t end = 0; // 0: none

        bool operator==(const written &) const = default;
    };
    struct job { // a job whose request comes first, so that each is the other
        copy_request copy;
        std::array<window_pending *, 2> of{};
        std::array<view *, 2> views{};
        written writes;
    };
    struct side_of_copy {
        std::uint64_t address = 0;
        view *opened = nullptr;
        bool kernel_touches = false;
        bool on_device = false;
        bool is_there = false;
    };
    bool any_written() const { return !written_.empty() || unlisted_ > 0; }
    bool is_being_written(const written &by);
    void note_written(const written &by);
    void forget_written(const written &by);

    status find_mine(const window_elements &mine, side_of_copy *out, device **on);
    status find_theirs(const window_copy &what, device &on, side_of_copy *out);
    void end(job *over, status outcome);

    gpu_side &side_;
    copy_engine engine_;
    std::deque<job> jobs_;
    std::vector<job *> free_;
    std::atomic<std::uint32_t> under_way_{0};
    static constexpr std::size_t most_written = 256;
    std::vector<written> written_;
    std::size_t unlisted_ = 0; // that are more than those; then all are waited for
    written all_written_;      // from the lowest to the highest since there was none
};

} // namespace gpusm

#endif
