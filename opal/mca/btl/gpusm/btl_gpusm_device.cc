// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_device.cc: how ob1 fetches device memory that a peer has registered, or any memory into
// device memory. What can be mapped is, once, and the copy given to the engine; what cannot be
// mapped is streamed.
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_delegate.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <tuple>
#include <utility>

namespace gpusm {

namespace {

void set_counter(counter which, unsigned long long value)
{
    mca_btl_gpusm_component.counters[static_cast<unsigned>(which)].store(value,
                                                                         std::memory_order_relaxed);
}

} // namespace

void tell_counters(const gpu_side &side)
{
    static constexpr counter counters[] = {counter::single_submissions, counter::batch_submissions,
                                           counter::kernel_submissions,
                                           counter::strided_submissions};
    const copy_engine::tally &made = side.copies.submissions();
    static_assert(std::size(counters) <= std::tuple_size_v<copy_engine::tally>);
    for (std::size_t way = 0; way < std::size(counters); ++way) {
        set_counter(counters[way], made[way]);
    }
    const cache_statistics mapped = side.imports.statistics();
    set_counter(counter::mapped_allocations, mapped.entries);
    set_counter(counter::mapped_allocation_bytes, mapped.bytes);
    set_counter(counter::exported_allocations, side.exports.live());
    set_counter(counter::copies_for_others, side.for_others.made());
    set_counter(counter::mapping_hits, side.imports.asked().hits);
    set_counter(counter::mapping_misses, side.imports.asked().misses);
}

void tell_checks(transport &of)
{
    if (const sync_check *checks = of.process.sync_checks(); checks != nullptr) {
        set_counter(counter::checked_buffers, checks->looked_at());
        set_counter(counter::late_writes, checks->found());
    }
}

namespace {

// In which context the memory is used, and how far a kernel may write.
status find_device(gpu_side &side, registration *made, std::uint64_t address, bool asked = false)
{
    std::uint64_t plain_bytes = 0;
    const status s = side.devices.for_address(address, &made->device, &plain_bytes, asked);
    made->plain_until = 0 == plain_bytes ? 0 : address + plain_bytes;
    return s;
}

// Do Open MPI's questions about buffers go to the table of devices? A receive's buffer is what it
// was then, because the program may not free it until the receive is complete.
bool has_asked()
{
    return mca_btl_gpusm_component.check.stands() &&
           mca_btl_gpusm_component.checks_quickly.load(std::memory_order_relaxed) && !has_threads();
}

// Receiver's side. The length is that of the message: pml/ob1 of Open MPI 5.0 does not look at the
// buffer's. Where it leaves the allocation the receive is too short, and ob1 has to take fragments,
// which end with the buffer.
status find_target(gpu_side &side, registration *made, std::uint64_t address, std::size_t size)
{
    const status s = find_device(side, made, address, has_asked());
    return status::ok == s && made->device != nullptr && address + size > made->plain_until &&
                   !side.devices.can_hold(address, size)
               ? status::bad_argument
               : s;
}

// The copy of this process alone is over.
void bounce_over(bounce *job)
{
    finish(enclosing<transfer>(job, offsetof(transfer, job)), job->copy.outcome);
}

memory_kind kind_of(const registration *local)
{
    return nullptr == local || nullptr == local->device ? memory_kind::host : memory_kind::mappable;
}

// Receiver's side, of a message out of or into device memory.
bool is_so(fact asked, transfer *get)
{
    const mca_btl_base_endpoint_t *from = get->endpoint;
    switch (asked) {
    case fact::readable:
        return 0 == (get->remote.flags & no_single_copy);
    case fact::sender_writes:
        return from->its_pushes.may_try() && reads_our_memory(get->endpoint);
    case fact::single_copies:
        return smsc_reads_plainly();
    case fact::rings:
        return true; // until there is none
    case fact::event:
        return no_event_slot != get->remote.event_slot;
    case fact::delegates:
        return may_delegate(get);
    case fact::pushes:
        return mca_btl_gpusm_component.use_direct_host;
    case fact::page_locked_source:
        return 0 != (get->remote.flags & page_locked);
    case fact::page_locked_target:
        return get->gpu().is_page_locked(get->job.copy.destination, get->job.copy.len_bytes);
    case fact::device_rings:
        return get->endpoint->transport->stage->has_device_rings(get);
    case fact::bounce_copies:
        return get->gpu().bounces.available();
    default: // the sender knows it
        return false;
    }
}

// Copies what is mapped, or is this process's own.
void start_copy(transfer *get)
{
    if (mode::shared == get->goes && !get->endpoint->transport->stage->share(get)) {
        get->known.set(fact::rings, false);
        choose_mode(get);
    }
    switch (get->goes) {
    case mode::shared:
        break;
    case mode::bounced:
        bounce_get(get);
        break;
    default: // mapped, self
        get->gpu().copies.submit(*get->into, &get->job.copy);
        break;
    }
}

// The driver has refused to copy, as it does into host memory that is page-locked in part only.
// False: there is no other way.
bool copy_otherwise(transfer *get)
{
    const mode refused = get->goes;
    get->known = get->known.unasked();
    get->known.set(fact::page_locked_target, false);
    get->known.set(fact::delegates, false);
    choose_mode(get);
    if (refused == get->goes) {
        return false;
    }
    start_copy(get);
    return true;
}

} // namespace

void bounce_get(transfer *get)
{
    bounce &job = get->job;
    if (is_for_host(get)) {
        job.way = bounce_way::out;
        job.copy.kernel_reaches = get->kernel_reads; // the other side is registered memory
    } else {
        job.way = bounce_way::pull;
        job.copy.source = get->remote_address;
        job.peer = get->endpoint->peer;
    }
    job.on = get->into;
    job.message_bytes = job.copy.len_bytes;
    job.over = bounce_over;
    get->gpu().bounces.start(&job);
}

status offer_device(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                    std::uint64_t address, std::size_t size)
{
    const bool asked = has_asked() && std::exchange(endpoint->transport->declined, 0) == address;
    const status s = side.exports.export_range(
        address, size, asked ? side.devices.facts_of(address, true).buffer_id : 0, export_use::read,
        &made->exported, &made->handle.remote, endpoint->link->maps);
    if (status::unsupported != s) {
        return s;
    }
    facts known{memory_kind::unmappable, memory_kind::unknown, size};
    known.set(fact::peer_fetches, true); // else nobody would be here
    if (mode::offered != choose(known) || status::ok != find_device(side, made, address) ||
        nullptr == made->device) {
        return status::unsupported;
    }
    made->name(share_kind::staged, address, size);
    return status::ok;
}

status register_device(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                       void *base, std::size_t size, bool for_peers)
{
    const auto address = reinterpret_cast<std::uint64_t>(base);
    const std::lock_guard guard(side.lock);
    if (is_view_address(address)) {
        return register_view(side, endpoint, made, address, size, for_peers);
    }
    return for_peers ? offer_device(side, endpoint, made, address, size)
                     : find_target(side, made, address, size);
}

void deregister_device(gpu_side &side, registration *given)
{
    const std::lock_guard guard(side.lock);
    ++given->turn;
    if (given->exported != nullptr) {
        side.exports.release(given->exported);
    }
    if (given->view != nullptr) {
        deregister_view(side, given);
    }
}

void choose_mode(transfer *get)
{
    get->goes = choose(&get->known, [get](fact asked) { return is_so(asked, get); });
}

void choose_mode_anew(transfer *get)
{
    get->known = get->known.unasked();
    get->known.target = kind_of(registration_around(get->given.local_handle));
    choose_mode(get);
}

status start_get(transfer *get)
{
    choose_mode(get);
    if (mode::delegated == get->goes) {
        if (status::ok == delegate(get)) {
            return status::ok;
        }
        get->known.set(fact::delegates, false);
        choose_mode(get);
    }
    if (is_self(get->endpoint)) {
        start_copy(get);
        return status::ok;
    }
    switch (get->goes) {
    case mode::pushed:
    case mode::pulled:
    case mode::device_ring:
    case mode::staged_ring:
        return get->endpoint->transport->stage->fetch(get);
    default: // mapped, bounced, shared
        break;
    }
    gpu_side &side = get->gpu();
    status s = side.import(*get->endpoint->peer, get->remote, *get->into, &get->mapping);
    if (status::not_ready == s) {
        return wait_for_descriptors(get);
    }
    if (status::unsupported == s) {
        cannot_map(get->endpoint, get->remote, *get->into);
    } else if (status::ok == s && 0 != (get->remote.flags & asks_for_answer)) {
        can_map_after_all(get->endpoint, get->remote);
    }
    if (status::ok == s) {
        s = side.event_of(*get->endpoint->peer, get->remote, *get->into, &get->job.copy.wait_for);
        if (status::ok != s) {
            release_memory(get);
        }
    }
    if (status::ok == s) {
        get->job.copy.source =
            get->mapping->local_base + (get->remote_address - get->mapping->remote_base);
        get->kernel_reads = gpu_side::kernel_reads(*get->mapping, *get->into);
        get->job.copy.within_device =
            get->mapping->device_uuid == get->into->uuid && !is_for_host(get);
        if (get->from_blocks && status::ok != map_blocks(get)) {
            release_memory(get);
            return status::no_memory;
        }
        get->job.copy.kernel_reaches = get->job.copy.kernel_reaches && get->kernel_reads;
        start_copy(get);
    }
    return s;
}

int progress_gets(transport &of, bool busy)
{
    gpu_side *side = of.process.gpu_if_made();
    if (nullptr == side) {
        return 0;
    }
    constexpr std::uint32_t calls_between_sweeps = 128;
    transfers &gets = *of.gets;
    transfer *finished = nullptr;
    side->copies.expect_more(false);
    {
        // Another thread may be inside a driver call that takes milliseconds. Host messages are
        // not to wait for it, and this will be called again.
        const std::unique_lock guard(side->lock, std::try_to_lock);
        if (!guard.owns_lock()) {
            return 0; // copies that wait go out with the next call, or the next copy
        }
        if (0 == ++gets.progress_calls % calls_between_sweeps) {
            side->sweep();
            tell_checks(of);
            tell_counters(*side);
        }
        side->fds.progress();
        copy_request *copied = nullptr;
        if (!side->copies.idle()) {
            copied = side->copies.collect(busy);
            if (copied != nullptr) {
                tell_counters(*side);
            }
        }
        while (copied != nullptr) {
            copy_request *each = std::exchange(copied, copied->next);
            switch (static_cast<copy_part>(each->part_of)) {
            case copy_part::get: {
                auto *get = enclosing<transfer>(each, offsetof(transfer, job.copy));
                if (status::ok != each->outcome && !source_has_ended(get) && copy_otherwise(get)) {
                    break;
                }
                finish(get, each->outcome);
                break;
            }
            case copy_part::stage:
                of.stage->copied(each);
                break;
            case copy_part::bounce:
                side->bounces.copied(each);
                break;
            }
        }
        // What a window of messages starts goes out together, with the next call: every
        // submission takes the processor, which is what such messages wait for, microseconds.
        side->copies.expect_more(of.stage->has_several());
        of.stage->progress();
        side->bounces.progress();
        if (!side->for_others.idle() || !side->delegated.idle()) {
            progress_delegated(*side);
        }
        side->copies.expect_more(false);
        finished = gets.ended.take_all();
    }
    int completed = 0;
    while (finished != nullptr) {
        transfer *get = std::exchange(finished, finished->next);
        complete(get, get->job.copy.outcome);
        ++completed;
    }
    return completed;
}

int copy_for_self(const registration &from, const registration &into, std::uint64_t source,
                  const get_arguments &given, mca_btl_base_endpoint_t *endpoint, std::size_t size)
{
    gpu_side *side = endpoint->transport->process.gpu();
    size = size_in_view(into.view, reinterpret_cast<std::uint64_t>(given.local_address), size);
    if (0 == size && into.view != nullptr) {
        return OPAL_ERROR;
    }
    const facts known{kind_of(&from), kind_of(&into), size, true};
    transfer *get = nullptr == side ? nullptr : new_transfer(endpoint, given, known);
    if (nullptr == get) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    get->job.copy.source = source;
    get->into = into.device != nullptr ? into.device : from.device;
    get->kernel_reads = source + size <= from.plain_until;
    get->job.copy.within_device = into.device == from.device;
    get->job.copy.kernel_reaches = get->job.copy.within_device && get->kernel_reads &&
                                   get->job.copy.destination + size <= into.plain_until;
    const std::lock_guard guard(side->lock);
    if (from.device != nullptr) {
        get->job.copy.wait_for = side->event_before_copies(*from.device);
    }
    (void)start_get(get);
    return OPAL_SUCCESS;
}

int get_device(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
               uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
               mca_btl_base_registration_handle_t *remote_handle, size_t size, int, int,
               mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata)
{
    const gpusm::remote_handle &remote = remote_handle->remote;
    const registration *local = registration_around(local_handle);
    gpu_side *side = endpoint->transport->process.gpu();
    // The handle is the peer's word.
    if (nullptr == side || !covers(remote, remote_address, size)) {
        return OPAL_ERROR;
    }
    view *into_view = nullptr == local ? nullptr : local->view;
    // The length is that of the message, which may be too long.
    size = size_in_view(into_view, reinterpret_cast<std::uint64_t>(local_address), size);
    if (0 == size && into_view != nullptr) {
        return OPAL_ERROR;
    }
    const facts known{memory_named(remote.kind), kind_of(local), size};
    transfer *get = new_transfer(
        endpoint, {btl, local_address, local_handle, cbfunc, cbcontext, cbdata}, known);
    if (nullptr == get) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    get->remote_address = remote_address;
    get->remote = remote;
    get->into_view = into_view;
    // A kernel that writes behind an allocation takes the whole context down; the driver's copies
    // only fail. And it must be able to read the other side.
    get->job.copy.kernel_reaches =
        local != nullptr && get->job.copy.destination + size <= local->plain_until;
    get->into = nullptr == local ? nullptr : local->device;
    const std::lock_guard guard(side->lock);
    // What is streamed to host memory needs no context here.
    status s = nullptr == get->into && memory_kind::mappable == known.source
                   ? side->devices.for_host(&get->into)
                   : status::ok;
    if (status::ok == s && share_kind::strided == remote.kind && !find_blocks(get)) {
        s = status::bad_argument;
    }
    if (status::ok == s) {
        s = start_get(get);
    }
    if (status::ok == s || status::busy == s) {
        return OPAL_SUCCESS;
    }
    fell_back(endpoint, std::string("a get cannot go ") + to_string(get->goes), s, size);
    release_memory(get);
    endpoint->transport->gets->all.give(get);
    return OPAL_ERROR;
}

} // namespace gpusm
