// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_window.h: a window, as one of its processes sees it: the memory of all of them, the
// operations on it, and their synchronisation. All functions that MPI calls answer as Open MPI's
// do.
#ifndef GPUSM_OSC_WINDOW_H
#define GPUSM_OSC_WINDOW_H

#include "ompi/mca/coll/gpusm/coll_gpusm_accelerator.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_elements.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_owner.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_requests.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_shared.h"
#include "ompi/mca/osc/gpusm/osc_gpusm_versions.h"

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/local_process.h"
#include "opal/mca/common/gpusm/window_copies.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace gpusm {

// Memory of one process that can be read and written.
struct window_region {
    window_memory told;
    unsigned char *here = nullptr; // its address, where the processor may use it; else null
    std::unique_ptr<window_mapping> mapped; // where it is device memory; null without a driver

    // Takes the GPU lock.
    ~window_region();
};
using shared_region = std::shared_ptr<window_region>; // an operation keeps what it is on

// What is known of one process of the window.
struct window_rank {
    peer *process = nullptr; // null: this one
    bool is_kept = false;    // its segment stays mapped
    std::ptrdiff_t unit = 1; // of displacements, in bytes
    // Null: its host memory cannot be copied from here.
    mca_smsc_endpoint_t *single_copies = nullptr;
    std::unique_ptr<window_region> memory; // null: of dynamic windows, or there is none
    // Of dynamic windows, by index of attached_memory; `versions` say of when. And what lies in
    // several of them.
    std::vector<shared_region> attached;
    std::vector<std::uint32_t> versions;
    std::uint32_t seen_changes = 0;
    std::vector<shared_region> joined;
    std::vector<shared_region> retired; // copies under way may be on them
    window_pending pending;
    enum class lock : std::uint8_t { none, shared, exclusive, not_checked };
    lock locked = lock::none;
    bool is_in_start = false; // of an access epoch that MPI_Win_start has begun
    std::uint32_t seen_posts = 0;
    std::uint32_t seen_completes = 0;
};

class window final : private owner_memory {
  public:
    // As osc_select has them. Collective; all succeed or fail. Takes the caller's reference to the
    // process, in any case.
    static int make(ompi_communicator_t *comm, void **base, std::size_t size, unit_type unit,
                    int flavor, opal_info_t *info, local_process &process, window **out);
    // Collective, too, and only if may_be_freed().
    int free();
    // But of fences.
    bool is_in_epoch() const { return is_locked() || is_started_ || is_posted_; }
    // Once a process has ended, who is in an epoch may not be able to end it.
    bool may_be_freed() const { return !is_in_epoch() || anyone_is_gone(); }

    // --- what most operations on host memory are: the processor's work at once
    // (osc_gpusm_at_once.h). False: it is not that, or somebody else accumulates there, and nothing
    // has happened.
    bool copies_at_once(bool is_put, const elements &origin, int target, std::ptrdiff_t at,
                        const elements &theirs);
    bool accumulates_at_once(const elements &origin, int target, std::ptrdiff_t at,
                             const elements &theirs, ompi_op_t *op, int *rc);
    bool fetches_at_once(const void *origin, void *result, ompi_datatype_t *type, int target,
                         std::ptrdiff_t at, ompi_op_t *op, int *rc);
    bool swaps_at_once(const void *origin, const void *compare, void *result, ompi_datatype_t *type,
                       int target, std::ptrdiff_t at);

    // --- operations. `request`: null, or where the request is to be.
    // A put, or a get.
    int start(bool is_put, const elements &origin, int target, std::ptrdiff_t at,
              const elements &theirs, ompi_request_t **request, ompi_win_t *win);
    // `result`: null for an accumulate; else what was there goes to it.
    int accumulate(const elements &origin, const elements *result, int target, std::ptrdiff_t at,
                   const elements &theirs, ompi_op_t *op, ompi_request_t **request);
    int compare_and_swap(const void *origin, const void *compare, void *result,
                         ompi_datatype_t *type, int target, std::ptrdiff_t at);

    // --- synchronisation
    int fence(int assertion);
    int start_access(ompi_group_t *group);
    int complete();
    int post(ompi_group_t *group);
    int wait();
    int test(int *flag);
    int lock(int type, int target, int assertion);
    int unlock(int target);
    int lock_all(int assertion);
    int unlock_all();
    int flush(int target);
    int flush_all();

    // --- memory
    int attach(void *base, std::size_t size);
    int detach(const void *base);
    int query(int target, std::size_t *size, unit_type *unit, void *base);

    // Progress of what others want of this process's memory. Any thread.
    bool serve() { return owner_.serve(); }

  private:
    window(local_process &process, int flavor);
    ~window();

    // osc_gpusm_make.cc
    int set_up(ompi_communicator_t *comm, void **base, std::size_t size, unit_type unit,
               opal_info_t *info);
    int map_file(std::size_t bytes);
    int share_memory(std::size_t own_bytes, std::vector<std::size_t> *sizes, bool each_at_page,
                     unsigned char **data);
    void reach_peers();
    int map_memory();
    bool reaches(const window_rank &of) const;
    int agree(int mine); // the worst of all

    // osc_gpusm_memory.cc
    window_memory tell(void *base, std::size_t size);
    attached_memory *attached_by(int rank) const
    {
        return attached_ + static_cast<std::size_t>(rank) * most_attached;
    }
    void look_at_attached(window_rank &of, int target);
    shared_region find_attached(int target, std::uint64_t first, std::uint64_t bytes);
    std::unique_ptr<window_region> region_of(const window_rank &of, const window_memory &told);

    // osc_gpusm_copies.cc
    struct place {
        window_region *in = nullptr;
        std::uint64_t address = 0;    // of the elements, in the owner's process
        elements here;                // where the processor can use it
        shared_region held = nullptr; // `in`, of dynamic windows
    };
    // Where they are; refused if that is not all in the window.
    int find(int target, std::ptrdiff_t at, const elements &theirs, place *out)
    {
        const window_rank &of = ranks_[static_cast<std::size_t>(target)];
        window_region *in = of.memory.get();
        if (nullptr == in) {
            return find_in_dynamic(target, at, theirs, out);
        }
        const byte_span span = theirs.span();
        const auto bytes = static_cast<std::uint64_t>(span.end - span.lowest);
        std::ptrdiff_t offset = 0;
        if (__builtin_mul_overflow(at, of.unit, &offset)) {
            return MPI_ERR_RMA_RANGE;
        }
        out->in = in;
        out->address = in->told.base + static_cast<std::uint64_t>(offset);
        out->here = theirs;
        out->here.at = nullptr == in->here ? nullptr : in->here + offset;
        return covers(in->told, out->address + static_cast<std::uint64_t>(span.lowest), bytes)
                   ? static_cast<int>(OMPI_SUCCESS)
                   : MPI_ERR_RMA_RANGE;
    }
    int find_in_dynamic(int target, std::ptrdiff_t at, const elements &theirs, place *out);
    // MPI asks for no more than that: what is left of the receiving side stays as it is.
    static bool fits(bool is_put, const elements &mine, const elements &theirs)
    {
        return is_put ? mine.bytes() <= theirs.bytes() : theirs.bytes() <= mine.bytes();
    }
    // Copies, or starts to; counts in the target's pending copies, and in these.
    int move(bool is_put, const elements &mine, int target, const place &to, const elements &theirs,
             window_pending *request)
    {
        if (to.here.at != nullptr && !is_device(mine.at + mine.span().lowest)) {
            if (is_put && has_copies_to(target)) {
                wait_for_puts(to);
            }
            is_put ? copy_elements(to.here, mine) : copy_elements(mine, to.here);
            return OMPI_SUCCESS;
        }
        return move_otherwise(is_put, mine, target, to, theirs, request);
    }
    bool has_copies_to(int target) const
    {
        return 0 != ranks_[static_cast<std::size_t>(target)].pending.copies.load(
                        std::memory_order_relaxed);
    }
    // Puts under way to that place in host memory have ended.
    void wait_for_puts(const place &to);
    int move_otherwise(bool is_put, const elements &mine, int target, const place &to,
                       const elements &theirs, window_pending *request);
    int move_now(bool is_put, const elements &mine, int target, const place &to,
                 const elements &theirs);
    bool move_on_device(bool is_put, const elements &mine, int target, const place &to,
                        const elements &theirs, window_pending *request, int *rc);
    int move_packed(bool is_put, const elements &packed, int target, const place &to,
                    const elements &theirs);
    int move_blocks(bool is_put, const elements &packed, int target, const place &to,
                    const elements &theirs);
    window_elements described(const elements &of, std::uint64_t address);
    bool is_device(const void *at) const
    {
        return has_devices_ && process_.is_device_memory(at, is_device_memory);
    }
    int copy_own(const elements &to, const elements &from);
    int move_and_wait(bool is_put, const elements &mine, int target, const place &to,
                      const elements &theirs);

    // osc_gpusm_accumulate.cc
    bool takes_accumulates(int target)
    {
        std::uint32_t nobody = 0;
        return shared_[target].accumulates.compare_exchange_strong(
            nobody, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_acquire,
            std::memory_order_relaxed);
    }
    void unlock_accumulates(int target)
    {
        shared_[target].accumulates.store(0, std::memory_order_release);
    }
    // `fetched`: null, or what is there.
    int combine(const elements &origin, int target, const place &to, const elements &theirs,
                const elements *fetched, ompi_op_t *op);
    status combine_on_device(const elements &origin, const place &to, const elements &theirs,
                             const basic_elements &basic, ompi_op_t *op);
    int combine_on_processor(const elements &origin, int target, const place &to,
                             const elements &theirs, const elements *fetched,
                             const basic_elements &basic, ompi_op_t *op);

    // osc_gpusm_sync.cc
    bool may_access(int target) const
    {
        const window_rank &of = ranks_[static_cast<std::size_t>(target)];
        return fence_is_open_ || all_are_locked_ || of.is_in_start ||
               window_rank::lock::none != of.locked;
    }
    bool is_locked() const; // any process's memory
    int meet();
    int complete_to(int target);
    int complete_to_all();
    bool have_all_completed() const;
    void end_exposure();
    int take_lock(int type, int target, int assertion);
    int give_lock(int target);
    // Makes progress until done() is true, or a process of the window has ended.
    template <typename Done> int wait_until(Done done)
    {
        constexpr std::uint32_t rounds_between_looks = 8192; // a look at all takes system calls
        for (std::uint32_t rounds = 1; !done(); ++rounds) {
            opal_progress();
            if (0 == rounds % rounds_between_looks && anyone_is_gone()) {
                return done() ? static_cast<int>(OMPI_SUCCESS) : MPI_ERR_PROC_FAILED;
            }
        }
        return OMPI_SUCCESS;
    }
    int wait_for(window_pending &of);
    bool anyone_is_gone() const;
    bool is_rank(int target) const { return 0 <= target && target < size_; }
    int translate(ompi_group_t *group, std::vector<int> *ranks) const;

    // As owner_memory has it.
    bool has(std::uint64_t address, std::uint64_t bytes) override;

    local_process &process_;
    const int flavor_;
    ompi_communicator_t *comm_ = nullptr; // owned
    int rank_ = 0;
    int size_ = 0;
    std::vector<window_rank> ranks_;

    // Shared memory: the state, and behind it what was allocated.
    opal_shmem_ds_t segment_{};
    unsigned char *mapped_ = nullptr;
    bool is_private_ = false; // there is one process only
    shared_rank *shared_ = nullptr;
    shared_pair *pairs_ = nullptr;        // of target t and origin o: t * size_ + o
    attached_memory *attached_ = nullptr; // most_attached of each process; of dynamic windows

    struct export_of {
        const void *base;
        exported *kept;
    };
    std::vector<export_of> exports_; // of this process's memory, in use by the window
    bool has_devices_ = false;       // the accelerator knows device memory

    optional_mutex tables_lock_; // of plans_, what is known to be attached, and attaching
    plan_cache plans_;
    owner_service owner_;
    // Of a predefined type that has been found right for MPI_Compare_and_swap.
    std::atomic<ompi_datatype_t *> swapped_type_{nullptr};
    bool serves_ = false; // others may ask for this process's memory
    bool fence_is_open_ = false;
    bool all_are_locked_ = false;
    std::uint64_t meetings_ = 0;
    // A meeting, a post or a complete, as its process has ended: what a survivor has counted for
    // that epoch would count for a later one, so there is none.
    bool somebody_has_missed_ = false;
    bool is_posted_ = false;
    std::uint32_t tests_ = 0; // of MPI_Win_test
    bool is_started_ = false;
    std::vector<int> posted_to_;
    std::vector<int> started_to_;
};

} // namespace gpusm

#endif
