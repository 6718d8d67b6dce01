// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <mutex>

namespace gpusm {

namespace {

// Memory that the sender may write to by itself: the buffer, or, as its copy engine knows nothing
// of our views, packed memory, from where a kernel unpacks it. It stays exported until the get is
// over. False: it cannot be.
bool name_target(transfer *get)
{
    const std::uint64_t len_bytes = get->job.copy.len_bytes;
    if (get->into_view != nullptr) {
        get->packed = get->gpu().views.take_packed(*get->into, len_bytes);
        if (nullptr == get->packed.on) {
            return false;
        }
        get->stream.destination = get->packed.address;
    }
    stream_memory *out = &get->stream.target;
    if (status::ok != get->gpu().exports.export_range(get->stream.destination, len_bytes, 0,
                                                      export_use::written, &get->target,
                                                      &out->handle)) {
        release_memory(get);
        return false;
    }
    out->address = get->stream.destination;
    return true;
}

void unpack(transfer *get)
{
    get->job.copy.source = get->packed.address;
    get->job.copy.within_device = true;
    get->gpu().copies.submit(*get->into, &get->job.copy);
}

} // namespace

stage_side::stage_side(transport &of)
    : transport_(of), services_(of), receiver_(of.process.own_node(), services_), sender_(services_)
{
}

stage_side::~stage_side()
{
    if (gpu_side *side = transport_.process.gpu_if_made(); side != nullptr) {
        side->look_at_contexts();
        (void)side->copies.cancel_all(); // what is under way uses what goes now
    }
}

status stage_side::begin(transfer *get)
{
    stream_fetch &stream = new_stream(get, &services_.host_pool);
    stream.to_device = !is_for_host(get);
    stream.may_end_early = memory_kind::host == get->known.source;
    switch (get->goes) {
    case mode::device_ring:
        stream.pool = services_.device_pool_for(get);
        break;
    case mode::pushed:
        stream.may_end_early = false; // the sender's device may still write
        if (!name_target(get)) {
            get->known.target = memory_kind::unmappable;
            choose_mode(get);
            return begin(get);
        }
        break;
    case mode::pulled:
        stream.back_parts = {pulled_part.least, pulled_part.most, 2};
        break;
    default: // staged_ring
        break;
    }
    const status s = receiver_.fetch(*get->endpoint->peer, &stream);
    if (status::ok == s) {
        return s;
    }
    release_memory(get);
    const bool no_ring = status::no_memory == s || status::busy == s;
    if (no_ring && mode::device_ring == get->goes) {
        get->known.set(fact::device_rings, false);
        choose_mode(get);
        return begin(get);
    }
    return no_ring && begin_without_ring(get) ? status::ok : s;
}

// A ring stays lent to a sender that is not in MPI. False: the get has to wait for one.
bool stage_side::begin_without_ring(transfer *get)
{
    get->known.set(fact::rings, false);
    choose_mode(get);
    if (mode::bounced != get->goes) {
        return false;
    }
    bounce_get(get);
    return true;
}

// False: the sender cannot map the ring, and the get waits to be begun in another mode.
bool stage_side::end_device_ring(transfer *get)
{
    reach_table<std::uint32_t> &rings = get->endpoint->rings;
    const stream_fetch &stream = get->stream;
    if (status::not_found != stream.outcome) {
        (void)(status::ok == stream.outcome ? rings.worked(get->into->index)
                                            : rings.failed(get->into->index, stream.outcome));
        return true;
    }
    if (rings.refused(get->into->index, status::unsupported)) {
        log_line(log_level::info,
                 "process %u cannot map a ring on a device of this process; its messages come "
                 "through host memory for now",
                 static_cast<unsigned>(get->endpoint->peer->identity().vpid));
    }
    waiting_.append(get);
    return false;
}

void stage_side::end(transfer *get)
{
    const stream_fetch &stream = get->stream;
    if (mode::shared == get->goes) {
        note_part_of_sender(get->endpoint, &get->endpoint->its_pushes, stream);
    } else if (mode::device_ring == get->goes && !end_device_ring(get)) {
        return;
    } else if (mode::pushed == get->goes && stream.received > 0 && 0 == stream.written) {
        get->goes = mode::staged_ring; // the sender could not write here, and has chosen again
    }
    if (get->packed.on != nullptr && status::ok == stream.outcome) {
        unpack(get);
    } else {
        finish(get, stream.outcome);
    }
}

status stage_side::fetch(transfer *get)
{
    if (0 == get->job.copy.len_bytes) {
        (void)new_stream(get, &services_.host_pool); // through which nothing comes
        finish(get, status::ok);
        return status::ok;
    }
    // Those that wait do so for rings in host memory.
    if (nullptr == waiting_.first() || mode::device_ring == get->goes) {
        const status s = begin(get);
        if (status::busy != s) {
            return s;
        }
    } else if (begin_without_ring(get)) {
        return status::ok;
    }
    waiting_.append(get);
    return status::ok;
}

// The owner copies from the front, and this process, by its mapping, from the end.
bool stage_side::share(transfer *get)
{
    stream_fetch &stream = new_stream(get, &services_.without_slots);
    stream.source = get->from_blocks ? get->described : get->remote;
    stream.target = host_target(stream.destination, stream.len_bytes);
    stream.back_parts = {shared_part.least, shared_part.most, 2};
    stream.back_by_device = true;
    return status::ok == receiver_.fetch(*get->endpoint->peer, &stream);
}

bool stage_side::message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                              std::size_t bytes)
{
    std::unique_lock<optional_mutex> guard;
    if (gpu_side *side = transport_.process.gpu(); side != nullptr) {
        guard = std::unique_lock(side->lock);
    }
    return stream_message_for(&sender_, from, payload, bytes);
}

bool stage_side::forget_peer(const peer &ended)
{
    if (!receiver_.forget(ended) || !sender_.forget_peer(ended)) {
        return false;
    }
    return nullptr == transport_.process.gpu_if_made() ||
           services_.forget_rings(ended.shared().base(), ended.shared().len_bytes());
}

void stage_side::progress()
{
    if (!sender_.idle()) {
        sender_.progress();
    }
    for (stream_fetch *each = receiver_.idle() ? nullptr : receiver_.progress(); each != nullptr;) {
        transfer *get = transfer_of(each);
        each = each->next;
        end(get);
    }
    while (transfer *get = waiting_.first()) {
        choose_mode_anew(get);
        const status s = source_has_ended(get) ? status::peer_gone : begin(get);
        if (status::busy == s) {
            break;
        }
        (void)waiting_.take();
        if (status::ok != s) {
            finish(get, s);
        }
    }
}

} // namespace gpusm
