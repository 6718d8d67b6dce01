// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_device.h"

#include "ompi/mca/coll/gpusm/coll_gpusm.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_buffer_check.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_elements.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_peers.h"

#include "opal/mca/common/gpusm/group_exchange.h"
#include "opal/mca/common/gpusm/group_reduction.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace gpusm {

status called_off(ompi_communicator_t *comm)
{
#if OPAL_ENABLE_FT_MPI
    if (ompi_comm_coll_revoked(comm)) [[unlikely]] {
        return ompi_comm_is_revoked(comm) ? status::cancelled : status::peer_gone;
    }
#endif
    (void)comm;
    return status::ok;
}

std::uint64_t bytes_of(const reduction_call &call)
{
    return call.elements * element_bytes(call.type);
}

std::uint64_t bytes_of(const exchange_call &call)
{
    std::uint64_t received = 0;
    for (const exchange_block &each : call.receives) {
        received += each.bytes;
    }
    return received;
}

void count_reduction(std::uint64_t bytes)
{
    collective_counters &counted = mca_coll_gpusm_component.counted;
    counted.device_reductions.fetch_add(1, std::memory_order_relaxed);
    counted.device_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

void count_exchange(std::uint64_t bytes)
{
    collective_counters &counted = mca_coll_gpusm_component.counted;
    counted.device_exchanges.fetch_add(1, std::memory_order_relaxed);
    counted.exchanged_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

int answer_of(status outcome)
{
    switch (outcome) {
    case status::ok:
        return MPI_SUCCESS;
    case status::cancelled:
        return MPI_ERR_REVOKED;
    case status::peer_gone:
        return MPI_ERR_PROC_FAILED;
    case status::no_memory:
        return OMPI_ERR_OUT_OF_RESOURCE;
    default:
        return OMPI_ERROR;
    }
}

namespace {

std::optional<sync_check::look> look_at_blocks(sync_check &checks, const void *buffer,
                                               const exchange_blocks &blocks)
{
    std::uint64_t all_bytes = 0;
    for (const exchange_block &each : blocks) {
        all_bytes += each.bytes;
    }
    return checks.first_look({buffer, all_bytes}, [&](const sync_check::part_visitor &visit) {
        for (const exchange_block &each : blocks) {
            visit(static_cast<const unsigned char *>(buffer) + each.offset, each.bytes);
        }
    });
}

// In place, blocks to send lie in the receive buffer.
bool overlap(const exchange_call &call)
{
    const auto first_of = [](const void *buffer, const exchange_block &span) {
        return reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(span.offset);
    };
    const exchange_block sent = span_of(call.sends);
    const exchange_block received = span_of(call.receives);
    const std::uintptr_t send = first_of(call.send, sent);
    const std::uintptr_t receive = first_of(call.receive, received);
    return send < receive + received.bytes && receive < send + sent.bytes;
}

// What goes on after the call may write the receive buffer at any time, from which it may also
// read.
void check_both(sync_check &checks, std::optional<sync_check::look> &&send,
                std::optional<sync_check::look> &&receive, bool is_started, bool in_place)
{
    if (!is_started) {
        checks.second_look_later(std::move(send));
        checks.second_look(std::move(receive));
    } else if (in_place) {
        checks.second_look(std::move(send));
    } else {
        checks.second_look_later(std::move(send));
    }
}

} // namespace

void check_buffers(const reduction_call &call, const ompi_datatype_t *type,
                   ompi_communicator_t *comm, bool is_started)
{
    message_checks *of = mca_coll_gpusm_component.checks;
    if (nullptr == of || OMPI_COMM_IS_INTER(comm)) [[likely]] {
        return;
    }
    const auto ranks = static_cast<std::size_t>(ompi_comm_size(comm));
    // Of more ranks the call does not have the parts.
    const bool is_known = !call.in_place && (!call.has_parts || ranks <= call.parts.size());
    const std::uint64_t received =
        is_known ? received_elements(call, static_cast<std::size_t>(ompi_comm_rank(comm)), ranks)
                 : 0;
    const auto look_at = [&](const void *buffer, std::uint64_t elements) {
        return nullptr == type
                   ? of->checks().first_look({buffer, elements * element_bytes(call.type)})
                   : first_look(of->checks(), buffer, elements, type);
    };
    check_both(of->checks(), look_at(call.input, call.elements), look_at(call.receive, received),
               is_started, call.in_place);
}

void check_buffers(const exchange_call &call, bool is_started)
{
    message_checks *of = mca_coll_gpusm_component.checks;
    if (of != nullptr && call.can_be) [[unlikely]] {
        check_both(of->checks(), look_at_blocks(of->checks(), call.send, call.sends),
                   look_at_blocks(of->checks(), call.receive, call.receives), is_started,
                   overlap(call));
    }
}

device_calls::device_calls() : process_(local_process::acquire_if_made())
{
}

// Nothing is under way, but the list may have it still: it keeps those that another thread was in
// when it looked.
device_calls::~device_calls()
{
    if (mca_coll_gpusm_component.started != nullptr) {
        mca_coll_gpusm_component.started->remove(this);
    }
    group_.reset();
    if (process_ != nullptr) {
        process_->release();
    }
}

bool device_calls::look_for_group(ompi_communicator_t *comm)
{
    has_looked_ = true;
    const int size = ompi_comm_size(comm);
    if (process_ != nullptr && process_->meets() && !OMPI_COMM_IS_INTER(comm) && size > 1 &&
        size <= reduce_most_ranks) {
        group_ = make_group(comm, 0);
    }
    return group_ != nullptr;
}

std::unique_ptr<process_group> device_calls::make_group(ompi_communicator_t *comm,
                                                        std::uint32_t call)
{
    std::vector<peer *> members;
    for (int i = 0; i < ompi_comm_size(comm); ++i) {
        members.push_back(i == ompi_comm_rank(comm) ? nullptr : find_peer(*process_, comm, i));
    }
    const ompi_comm_extended_cid_t id = comm->c_contextid;
    auto made = process_group::make(process_->boards(), {id.cid_base, id.cid_sub.u64, call},
                                    members, static_cast<std::size_t>(ompi_comm_rank(comm)));
    if (made != nullptr && group_ != nullptr) {
        made->shares_a_device = group_->shares_a_device;
    }
    return made;
}

// Fills in what of *of is not, if ranks meet for such calls.
bool device_calls::can_take(reduction_call *of, const ompi_datatype_t *type, const ompi_op_t *op,
                            ompi_communicator_t *comm)
{
    if (op != last_.op || type != last_.type) {
        const std::optional<reduce_op> operation = operation_of(op);
        const std::optional<reduce_type> element = element_of(type);
        if (!operation || !element) {
            return false;
        }
        last_ = {op, type, *operation, *element};
    }
    of->op = last_.operation;
    of->type = last_.element;
    return can_reduce(*of, static_cast<std::size_t>(ompi_comm_size(comm))) && has_group(comm);
}

void device_calls::decide_started()
{
    while (!started_.empty() && !started_.back().is_decided) {
        (void)advance_started();
        opal_progress();
    }
}

// The outcome; *rc as MPI's function is to answer.
status device_calls::carry_out(group_call *call, ompi_communicator_t *comm, int *rc)
{
    constexpr int steps_between_progress = 64; // Open MPI's progress takes longer than a step
    status s = status::busy;
    for (int steps = 1; status::busy == (s = call->step()); ++steps) {
        if (0 == steps % steps_between_progress) {
            (void)advance_started(); // nobody else can, under the lock
            opal_progress();
            if (const status why = called_off(comm); status::ok != why) {
                call->cancel(why);
            }
        }
    }
    *rc = answer_of(s);
    if (status::unsupported == s || status::ok == s) {
        schedule_.met(call->anyone_on_device());
    }
    return s;
}

bool device_calls::reduce_now(reduction_call what, const ompi_datatype_t *type, const ompi_op_t *op,
                              ompi_communicator_t *comm, int *rc)
{
    if (!can_take(&what, type, op, comm)) {
        schedule_.met(false); // as on all ranks
        return false;
    }
    group_reduction call(*process_, *group_, what, is_device_memory);
    const status s = carry_out(&call, comm, rc);
    if (status::ok == s) {
        count_reduction(bytes_of(what));
    }
    return status::unsupported != s;
}

bool device_calls::exchange_now(const exchange_call &what, ompi_communicator_t *comm, int *rc)
{
    check_buffers(what, false);
    group_exchange call(*process_, *group_, what, is_device_memory);
    const status s = carry_out(&call, comm, rc);
    if (status::ok == s) {
        count_exchange(bytes_of(what));
    }
    return status::unsupported != s;
}

void meet_others(bool meets)
{
    if (local_process *process = local_process::acquire_if_made(); process != nullptr) {
        process->decide_to_meet(meets);
        process->release();
    }
}

} // namespace gpusm
