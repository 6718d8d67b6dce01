// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_started.cc: calls by kernels that have been started: non-blocking and persistent ones.
#include "ompi/mca/coll/gpusm/coll_gpusm.h"

#include "opal/mca/common/gpusm/group_exchange.h"
#include "opal/mca/common/gpusm/group_reduction.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

extern "C" int coll_gpusm_progress_started() noexcept
{
    return mca_coll_gpusm_component.started->progress();
}

} // namespace

// --- non-blocking ones

bool device_calls::may_start()
{
    const std::lock_guard guard(lock_);
    next_is_due_ = started_.empty() && schedule_.is_due();
    return !started_.empty() || next_is_due_;
}

bool device_calls::can_start(reduction_call *of, const ompi_datatype_t *type, const ompi_op_t *op,
                             ompi_communicator_t *comm)
{
    return can_take(of, type, op, comm) && may_start();
}

bool device_calls::can_start(ompi_communicator_t *comm)
{
    return has_group(comm) && may_start();
}

// Without its request, communicator and schedule.
device_calls::started_call device_calls::make_started(local_process &process, process_group &group,
                                                      const any_call &of)
{
    started_call made{};
    if (const auto *reduction = std::get_if<reduction_call>(&of); reduction != nullptr) {
        made.call = std::make_unique<group_reduction>(process, group, *reduction, is_device_memory);
        made.count = count_reduction;
        made.bytes = bytes_of(*reduction);
    } else {
        const auto &exchange = std::get<exchange_call>(of);
        made.call = std::make_unique<group_exchange>(process, group, exchange, is_device_memory);
        made.count = count_exchange;
        made.bytes = bytes_of(exchange);
    }
    return made;
}

void device_calls::start(const any_call &of, staged_request *request, ompi_communicator_t *comm)
{
    if (const auto *exchange = std::get_if<exchange_call>(&of); exchange != nullptr) {
        check_buffers(*exchange, true);
    }
    started_call made = make_started(*process_, *group_, of);
    made.schedule = &schedule_;
    made.is_due = next_is_due_;
    add(&started_, std::move(made), request, comm);
}

void device_calls::add(std::list<started_call> *to, started_call &&call, staged_request *request,
                       ompi_communicator_t *comm)
{
    using clock = std::chrono::steady_clock;
    // osu_iallreduce on two H200 hides 35 % of the program's calculation at 256 KiB and 83 % at
    // 64 MiB, and without that wait nothing.
    constexpr std::uint64_t long_bytes = 256 << 10;
    constexpr std::chrono::microseconds patience{10};
    call.request = request;
    call.comm = comm;
    OBJ_RETAIN(comm);
    {
        const std::lock_guard guard(lock_);
        const bool is_long = call.bytes >= long_bytes;
        to->push_back(std::move(call));
        (void)advance_started();
        // Its kernel may run while the program calculates, if the others come soon.
        const auto end = clock::now() + patience;
        while (is_long && !to->empty() && !to->back().is_decided && clock::now() < end) {
            (void)advance_started();
        }
    }
    mca_coll_gpusm_component.started->add(this);
}

int device_calls::progress(std::vector<ompi_communicator_t *> *done)
{
    const std::unique_lock guard(lock_, std::try_to_lock);
    if (!guard.owns_lock()) {
        return 0; // a blocking call looks
    }
    const int ended = advance_started();
    done->insert(done->end(), done_.begin(), done_.end());
    done_.clear();
    return ended;
}

// Ranks meet for one after the other, in the order of the calls, and when it is decided where one
// is carried out the next one is looked at. So the calls of the next component are in order, too.
int device_calls::advance_started()
{
    int ended = 0;
    for (auto each = started_.begin(); each != started_.end();) {
        const bool is_over = advance(&*each);
        if (!is_over && !each->is_decided) {
            break;
        }
        if (is_over) {
            done_.push_back(each->comm);
            each = started_.erase(each);
            ++ended;
        } else {
            ++each;
        }
    }
    for (auto each = persistent_.begin(); each != persistent_.end();) {
        if (advance(&*each)) {
            done_.push_back(each->comm);
            each = persistent_.erase(each);
            ++ended;
        } else {
            ++each;
        }
    }
    return ended;
}

bool device_calls::advance(started_call *of)
{
    if (!of->is_due && !of->schedule->is_due()) {
        start_inner(of->request);
        return true;
    }
    of->is_due = true;
    group_call &call = *of->call;
    const status s = call.step();
    if (!of->is_decided && (call.is_agreed_on() || status::busy != s)) {
        of->is_decided = true;
        of->schedule->met(call.anyone_on_device());
    }
    if (status::busy == s) {
        if (const status why = called_off(of->comm); status::ok != why) {
            call.cancel(why);
        }
        return false;
    }
    if (status::unsupported == s) {
        start_inner(of->request);
        return true;
    }
    if (status::ok == s) {
        of->count(of->bytes);
    }
    end_request(of->request, answer_of(s));
    return true;
}

// --- persistent ones

persistent_call::persistent_call(device_calls &calls_of_comm, ompi_communicator_t *of,
                                 any_call call)
    : calls(calls_of_comm), comm(of), what(std::move(call))
{
    OBJ_RETAIN(comm);
}

persistent_call::~persistent_call()
{
    group.reset(); // before what it is in can go
    OBJ_RELEASE(comm);
}

std::unique_ptr<persistent_call> device_calls::make_persistent(any_call of,
                                                               ompi_communicator_t *comm)
{
    auto made = std::make_unique<persistent_call>(*this, comm, std::move(of));
    made->group = make_group(comm, ++persistent_calls_);
    return made->group != nullptr ? std::move(made) : nullptr;
}

std::unique_ptr<persistent_call> device_calls::make_persistent(reduction_call of,
                                                               const ompi_datatype_t *type,
                                                               const ompi_op_t *op,
                                                               ompi_communicator_t *comm)
{
    return can_take(&of, type, op, comm) ? make_persistent(any_call(of), comm) : nullptr;
}

void start_persistent(persistent_call *of, staged_request *request)
{
    of->calls.start(of, request);
}

void device_calls::start(persistent_call *of, staged_request *request)
{
    if (!of->schedule.is_due()) {
        start_inner(request);
        return;
    }
    if (const auto *reduction = std::get_if<reduction_call>(&of->what); reduction != nullptr) {
        check_buffers(*reduction, nullptr, of->comm, true);
    } else {
        check_buffers(std::get<exchange_call>(of->what), true);
    }
    started_call made = make_started(*process_, *of->group, of->what);
    made.schedule = &of->schedule;
    made.is_due = true;
    add(&persistent_, std::move(made), request, of->comm);
}

started_list::~started_list()
{
    if (is_registered_) {
        (void)opal_progress_unregister(coll_gpusm_progress_started);
    }
}

void started_list::add(device_calls *calls)
{
    const std::lock_guard guard(mutex_);
    if (!std::exchange(is_registered_, true)) {
        (void)opal_progress_register(coll_gpusm_progress_started);
    }
    if (active_.end() == std::find(active_.begin(), active_.end(), calls)) {
        active_.push_back(calls);
    }
    count_.store(active_.size(), std::memory_order_relaxed);
}

void started_list::remove(device_calls *calls)
{
    const std::lock_guard guard(mutex_);
    std::erase(active_, calls);
    count_.store(active_.size(), std::memory_order_relaxed);
}

int started_list::progress()
{
    if (0 == count_.load(std::memory_order_relaxed)) {
        return 0;
    }
    int ended = 0;
    std::vector<ompi_communicator_t *> done;
    {
        const std::unique_lock guard(mutex_, std::try_to_lock);
        if (!guard.owns_lock()) {
            return 0; // another thread looks
        }
        for (device_calls *each : active_) {
            ended += each->progress(&done);
        }
        std::erase_if(active_, [](device_calls *each) { return each->is_idle(); });
        count_.store(active_.size(), std::memory_order_relaxed);
    }
    for (ompi_communicator_t *each : done) {
        OBJ_RELEASE(each); // which may end it, and its device_calls
    }
    return ended;
}

} // namespace gpusm
