// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// Shorter messages between host and device memory are copied by one side alone: what the other one
// would take does not pay for the message that it costs.
constexpr std::uint64_t shared_least_bytes = 128 * 1024;
// What a receiver reads of host memory for its device by itself: each part is a system call and a
// copy of the device.
constexpr stream_parts pulled_parts = {64 * 1024, 256 * 1024, 2};

// Of host memory that is streamed to this device: will this process read a part by itself? One
// processor does not keep up with the bus.
bool reads_part(const get_request *get)
{
    return get->copy.len_bytes >= shared_least_bytes && share_kind::host == get->remote.kind &&
           !is_for_host(get) && 0 == (get->remote.flags & no_single_copy) && smsc_reads_plainly() &&
           here().gpu.load()->bounces.available();
}

// Memory that the sender may write to by itself, if it has said that it would. It stays exported
// until the get is over.
void name_target(get_request *get)
{
    stream_memory *out = &get->stream.target;
    if (status::ok == here().gpu.load()->exports.export_range(get->copy.destination,
                                                              get->copy.len_bytes, 0, &get->target,
                                                              &out->handle)) {
        out->address = get->copy.destination;
    }
}

void release_target(get_request *get)
{
    if (get->target != nullptr) {
        here().gpu.load()->exports.release(std::exchange(get->target, nullptr));
    }
}

stream_fetch &new_stream(get_request *get, stream_pool *pool)
{
    get->stream = {};
    get->stream.source = get->remote;
    get->stream.address = get->remote_address;
    get->stream.destination = get->copy.destination;
    get->stream.len_bytes = get->copy.len_bytes;
    get->stream.pool = pool;
    return get->stream;
}

} // namespace

stage_side::stage_side(gpusm::node &local) : receiver_(local, services_), sender_(services_)
{
}

stage_side::~stage_side()
{
    if (gpu_side *side = here().gpu; side != nullptr) {
        side->look_at_contexts();
        (void)side->copies.cancel_all(); // what is under way uses what goes now
    }
}

status stage_side::begin(get_request *get)
{
    stream_fetch &stream = new_stream(get, services_.pool_for(get));
    stream.to_device = !is_for_host(get);
    stream.may_end_early = share_kind::host == get->remote.kind;
    const bool direct = share_kind::host == get->remote.kind && !is_for_host(get) &&
                        0 != (get->remote.flags & page_locked) &&
                        mca_btl_gpusm_component.use_direct_host;
    if (direct) {
        stream.may_end_early = false;
        name_target(get);
    } else if (reads_part(get)) {
        stream.back_parts = pulled_parts;
    }
    status s = receiver_.fetch(*get->endpoint->peer, &stream);
    if (status::no_memory == s && stream.pool->device != nullptr) {
        stream.pool = &services_.host_pool;
        s = receiver_.fetch(*get->endpoint->peer, &stream);
    }
    if (status::ok != s) {
        release_target(get);
    }
    return s;
}

void stage_side::end(get_request *get)
{
    const stream_fetch &stream = get->stream;
    const bool on_device = stream.pool->device != nullptr;
    release_target(get);
    if (get->mapping != nullptr) { // both have copied
        here().gpu.load()->imports.release(std::exchange(get->mapping, nullptr));
        note_part_of_sender(get->endpoint, &get->endpoint->its_pushes, stream);
        count(counter::pushed_host_bytes, stream.written);
        finish_get(get, stream.outcome);
        return;
    }
    if (status::not_found == stream.outcome && on_device) {
        if (get->endpoint->rings.refused(get->into->index, status::unsupported)) {
            log_line(log_level::info,
                     "process %u cannot map a ring on a device of this process; its messages come "
                     "through host memory for now",
                     static_cast<unsigned>(get->endpoint->peer->identity().vpid));
        }
        waiting_.append(get);
        return;
    }
    const bool good = status::ok == stream.outcome;
    if (on_device) {
        (void)(good ? get->endpoint->rings.worked(get->into->index)
                    : get->endpoint->rings.failed(get->into->index, stream.outcome));
    }
    if (good && stream.written > 0) {
        count(counter::direct_host_messages, 1);
        count(counter::direct_host_bytes, stream.len_bytes);
    } else if (good && stream.received > 0) {
        count(on_device ? counter::device_ring_messages : counter::host_ring_messages, 1);
        count(on_device ? counter::device_ring_bytes : counter::host_ring_bytes, stream.received);
    }
    finish_get(get, stream.outcome);
}

status stage_side::fetch(get_request *get)
{
    if (0 == get->copy.len_bytes) {
        finish_get(get, status::ok);
        return status::ok;
    }
    const status s = nullptr == waiting_.first() ? begin(get) : status::busy;
    if (status::busy != s) {
        return s;
    }
    waiting_.append(get);
    return status::ok;
}

// The owner copies from the front, and this process, by its mapping, from the end.
bool stage_side::share(get_request *get)
{
    mca_btl_base_endpoint_t *owner = get->endpoint;
    if (get->copy.len_bytes < shared_least_bytes || get->copy.wait_for != nullptr ||
        !smsc_reads_plainly() || !owner->its_pushes.may_try() || !reads_our_memory(owner)) {
        return false;
    }
    stream_fetch &stream = new_stream(get, &services_.without_slots);
    stream.target = host_target(stream.destination, stream.len_bytes);
    stream.back_parts = {pushed_parts.least_bytes, pushed_parts.most_bytes, 2};
    stream.back_by_device = true;
    return status::ok == receiver_.fetch(*owner->peer, &stream);
}

bool stage_side::message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                              std::size_t bytes)
{
    std::unique_lock<optional_mutex> guard;
    if (gpu_side *side = gpu(); side != nullptr) {
        guard = std::unique_lock(side->lock);
    }
    return stream_message_for(&sender_, from, payload, bytes);
}

bool stage_side::forget_peer(const peer &ended)
{
    if (!receiver_.forget(ended) || !sender_.forget_peer(ended)) {
        return false;
    }
    return nullptr == here().gpu.load() ||
           services_.forget_rings(ended.shared().base(), ended.shared().len_bytes());
}

void stage_side::progress()
{
    if (!sender_.idle()) {
        sender_.progress();
    }
    for (stream_fetch *each = receiver_.idle() ? nullptr : receiver_.progress(); each != nullptr;) {
        get_request *get = get_of(each);
        each = each->next;
        end(get);
    }
    while (get_request *get = waiting_.first()) {
        const status s = begin(get);
        if (status::busy == s) {
            break;
        }
        (void)waiting_.take();
        if (status::ok != s) {
            finish_get(get, s);
        }
    }
}

} // namespace gpusm
