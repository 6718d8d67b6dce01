// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm.h"

#include <algorithm>

namespace gpusm {

bool window::anyone_is_gone() const
{
    return std::any_of(ranks_.begin(), ranks_.end(), [](const window_rank &each) {
        return each.process != nullptr && each.process->has_ended();
    });
}

// All copies that `of` counts have ended. They do, whoever has ended meanwhile, and until then it
// is in use.
int window::wait_for(window_pending &of)
{
    // A look at the copies takes less time than Open MPI's progress.
    constexpr unsigned looks = 16;
    window_copies *copies = mca_osc_gpusm_component.open->copies.load(std::memory_order_acquire);
    for (unsigned i = 1; 0 != of.copies.load(std::memory_order_acquire); ++i) {
        (void)copies->progress();
        if (0 == i % looks) {
            opal_progress();
        }
    }
    return of.has_failed.load(std::memory_order_relaxed) &&
                   of.has_failed.exchange(false, std::memory_order_relaxed)
               ? MPI_ERR_OTHER
               : static_cast<int>(OMPI_SUCCESS);
}

int window::translate(ompi_group_t *group, std::vector<int> *ranks) const
{
    const int count = ompi_group_size(group);
    std::vector<int> given(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        given[static_cast<std::size_t>(i)] = i;
    }
    ranks->resize(given.size());
    const int rc = 0 == count ? static_cast<int>(OMPI_SUCCESS)
                              : ompi_group_translate_ranks(group, count, given.data(),
                                                           comm_->c_local_group, ranks->data());
    const bool are_all_here =
        std::all_of(ranks->begin(), ranks->end(), [this](int each) { return is_rank(each); });
    return OMPI_SUCCESS != rc || are_all_here ? rc : MPI_ERR_GROUP;
}

// --- completion ----------------------------------------------------------------------------------

int window::complete_to(int target)
{
    const int rc = wait_for(ranks_[static_cast<std::size_t>(target)].pending);
    std::atomic_thread_fence(std::memory_order_seq_cst); // what processors have written
    return rc;
}

int window::complete_to_all()
{
    int rc = OMPI_SUCCESS;
    for (int i = 0; i < size_; ++i) {
        const int its = complete_to(i);
        rc = OMPI_SUCCESS == rc ? its : rc;
    }
    return rc;
}

// Waits until all processes have come here as often as this one. Not by a collective call, in which
// only those that wait for a process that has ended itself would hear of that.
int window::meet()
{
    std::atomic<std::uint64_t> &arrivals = shared_[0].arrivals;
    if (somebody_has_missed_) {
        return MPI_ERR_PROC_FAILED; // an arrival would count for whoever is gone
    }
    ++meetings_;
    arrivals.fetch_add(1, std::memory_order_seq_cst);
    const std::uint64_t all = meetings_ * static_cast<std::uint64_t>(size_);
    const int rc = wait_until([&] { return arrivals.load(std::memory_order_acquire) >= all; });
    std::atomic_thread_fence(std::memory_order_seq_cst);
    somebody_has_missed_ = OMPI_SUCCESS != rc;
    return rc;
}

bool window::is_locked() const
{
    return all_are_locked_ ||
           std::any_of(ranks_.begin(), ranks_.end(), [](const window_rank &each) {
               return window_rank::lock::none != each.locked;
           });
}

// Open MPI 5.0 does not look at the rank of a flush.
int window::flush(int target)
{
    if (!is_rank(target)) {
        return MPI_PROC_NULL == target ? static_cast<int>(OMPI_SUCCESS) : MPI_ERR_RANK;
    }
    return all_are_locked_ ||
                   window_rank::lock::none != ranks_[static_cast<std::size_t>(target)].locked
               ? complete_to(target)
               : MPI_ERR_RMA_SYNC;
}

int window::flush_all()
{
    return is_locked() ? complete_to_all() : MPI_ERR_RMA_SYNC;
}

// --- fence ---------------------------------------------------------------------------------------

int window::fence(int assertion)
{
    if (is_in_epoch()) {
        return MPI_ERR_RMA_SYNC;
    }
    const int rc = complete_to_all();
    fence_is_open_ = 0 == (assertion & MPI_MODE_NOSUCCEED);
    // Also of a fence that nothing precedes: others may access this process's memory once they have
    // returned, and not before.
    const int all = meet();
    return OMPI_SUCCESS == rc ? all : rc;
}

// --- post, start, complete, wait -----------------------------------------------------------------

int window::start_access(ompi_group_t *group)
{
    if (is_started_ || is_locked()) {
        return MPI_ERR_RMA_SYNC;
    }
    if (somebody_has_missed_) {
        return MPI_ERR_PROC_FAILED;
    }
    int rc = translate(group, &started_to_);
    for (std::size_t i = 0; OMPI_SUCCESS == rc && i < started_to_.size(); ++i) {
        const int target = started_to_[i];
        const window_rank &of = ranks_[static_cast<std::size_t>(target)];
        const std::atomic<std::uint32_t> &posted = pairs_[target * size_ + rank_].posted;
        rc = wait_until([&] { return of.seen_posts != posted.load(std::memory_order_acquire); });
    }
    if (OMPI_SUCCESS != rc) {
        started_to_.clear();
        somebody_has_missed_ = somebody_has_missed_ || MPI_ERR_PROC_FAILED == rc;
        return rc;
    }
    for (int target : started_to_) {
        ++ranks_[static_cast<std::size_t>(target)].seen_posts;
        ranks_[static_cast<std::size_t>(target)].is_in_start = true;
    }
    fence_is_open_ = false;
    is_started_ = true;
    return OMPI_SUCCESS;
}

int window::complete()
{
    if (!is_started_) {
        return MPI_ERR_RMA_SYNC;
    }
    int rc = OMPI_SUCCESS;
    for (int target : started_to_) {
        const int its = complete_to(target);
        rc = OMPI_SUCCESS == rc ? its : rc;
        ranks_[static_cast<std::size_t>(target)].is_in_start = false;
        pairs_[target * size_ + rank_].completed.fetch_add(1, std::memory_order_release);
    }
    started_to_.clear();
    is_started_ = false;
    return rc;
}

int window::post(ompi_group_t *group)
{
    if (is_posted_) {
        return MPI_ERR_RMA_SYNC;
    }
    if (somebody_has_missed_) {
        return MPI_ERR_PROC_FAILED;
    }
    const int rc = translate(group, &posted_to_);
    if (OMPI_SUCCESS != rc) {
        posted_to_.clear();
        return rc;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (int origin : posted_to_) {
        pairs_[rank_ * size_ + origin].posted.fetch_add(1, std::memory_order_release);
    }
    is_posted_ = true;
    return OMPI_SUCCESS;
}

bool window::have_all_completed() const
{
    return std::all_of(posted_to_.begin(), posted_to_.end(), [this](int origin) {
        return ranks_[static_cast<std::size_t>(origin)].seen_completes !=
               pairs_[rank_ * size_ + origin].completed.load(std::memory_order_acquire);
    });
}

// Notes who has completed.
void window::end_exposure()
{
    for (int origin : posted_to_) {
        std::uint32_t &seen = ranks_[static_cast<std::size_t>(origin)].seen_completes;
        if (seen != pairs_[rank_ * size_ + origin].completed.load(std::memory_order_acquire)) {
            ++seen;
        }
    }
    posted_to_.clear();
    is_posted_ = false;
}

int window::wait()
{
    if (!is_posted_) {
        return MPI_ERR_RMA_SYNC;
    }
    const int rc = wait_until([this] { return have_all_completed(); });
    somebody_has_missed_ = somebody_has_missed_ || OMPI_SUCCESS != rc;
    end_exposure();
    return rc;
}

int window::test(int *flag)
{
    if (!is_posted_) {
        return MPI_ERR_RMA_SYNC;
    }
    // Fewer than rounds of progress, as a program does something else between two tests.
    constexpr std::uint32_t tests_between_looks = 256;
    const bool is_lost = 0 == ++tests_ % tests_between_looks && anyone_is_gone();
    const bool all = have_all_completed(); // perhaps just before the other's end
    *flag = all ? 1 : 0;
    somebody_has_missed_ = somebody_has_missed_ || (!all && is_lost);
    if (all || is_lost) {
        end_exposure();
    }
    return all || !is_lost ? static_cast<int>(OMPI_SUCCESS) : MPI_ERR_PROC_FAILED;
}

// --- locks ---------------------------------------------------------------------------------------

int window::take_lock(int type, int target, int assertion)
{
    window_rank &of = ranks_[static_cast<std::size_t>(target)];
    if (0 != (assertion & MPI_MODE_NOCHECK)) {
        of.locked = window_rank::lock::not_checked;
        return OMPI_SUCCESS;
    }
    shared_lock &its = shared_[target].lock;
    const bool is_shared = MPI_LOCK_SHARED == type;
    const std::uint32_t turn = its.take_place();
    const int rc = wait_until(
        [&] { return is_shared ? its.is_turn_of_reader(turn) : its.is_turn_of_writer(turn); });
    if (OMPI_SUCCESS == rc) {
        of.locked = is_shared ? window_rank::lock::shared : window_rank::lock::exclusive;
    }
    return rc;
}

int window::give_lock(int target)
{
    window_rank &of = ranks_[static_cast<std::size_t>(target)];
    const int rc = complete_to(target);
    const window_rank::lock was = of.locked;
    of.locked = window_rank::lock::none;
    if (window_rank::lock::shared == was) {
        shared_[target].lock.leave_as_reader();
    } else if (window_rank::lock::exclusive == was) {
        shared_[target].lock.leave_as_writer();
    }
    return rc;
}

int window::lock(int type, int target, int assertion)
{
    if (all_are_locked_ || is_started_ ||
        window_rank::lock::none != ranks_[static_cast<std::size_t>(target)].locked) {
        return MPI_ERR_RMA_SYNC;
    }
    fence_is_open_ = false;
    return take_lock(type, target, assertion);
}

int window::unlock(int target)
{
    if (all_are_locked_ ||
        window_rank::lock::none == ranks_[static_cast<std::size_t>(target)].locked) {
        return MPI_ERR_RMA_SYNC;
    }
    return give_lock(target);
}

int window::lock_all(int assertion)
{
    if (is_locked() || is_started_) {
        return MPI_ERR_RMA_SYNC;
    }
    fence_is_open_ = false;
    int rc = OMPI_SUCCESS;
    int locked = 0;
    for (; OMPI_SUCCESS == rc && locked < size_; ++locked) {
        rc = take_lock(MPI_LOCK_SHARED, locked, assertion);
    }
    all_are_locked_ = OMPI_SUCCESS == rc;
    for (int i = 0; !all_are_locked_ && i < locked; ++i) { // those that it has
        (void)give_lock(i);
    }
    return rc;
}

int window::unlock_all()
{
    if (!all_are_locked_) {
        return MPI_ERR_RMA_SYNC;
    }
    int rc = OMPI_SUCCESS;
    for (int i = 0; i < size_; ++i) {
        const int its = give_lock(i);
        rc = OMPI_SUCCESS == rc ? its : rc;
    }
    all_are_locked_ = false;
    return rc;
}

} // namespace gpusm
