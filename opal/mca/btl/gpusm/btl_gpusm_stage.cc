// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage.cc: gets of memory that cannot be mapped: streams with a device at one end or
// both (protocol/stream.h), and what they need of the GPU side. docs/staging.md explains the whole.
#include "opal/mca/btl/gpusm/btl_gpusm_smsc.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/protocol/stream_receiver.h"
#include "opal/mca/btl/gpusm/protocol/stream_sender.h"

#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

stage_services *services = nullptr;

// Shorter messages between host and device memory are copied by one side alone: what the other one
// would take does not pay for the message that it costs.
constexpr std::uint64_t shared_least_bytes = 128 * 1024;
// What a receiver reads of host memory for its device by itself: each part is a system call and a
// copy of the device.
constexpr stream_parts pulled_parts = {64 * 1024, 256 * 1024, 2};

// Gets that wait for a ring, in order, so that no peer keeps one for ever.
struct {
    get_request *first = nullptr;
    get_request *last = nullptr;
} waiting;

// Of host memory that is streamed to this device: will this process read a part by itself? One
// processor does not keep up with the bus.
bool reads_part(const get_request *get)
{
    return get->copy.len_bytes >= shared_least_bytes && share_kind::host == get->remote.kind &&
           !is_for_host(get) && 0 == (get->remote.flags & no_single_copy) && smsc_reads_plainly() &&
           can_bounce();
}

// Memory that the sender may write to by itself, if it has said that it would. It stays exported
// until the get is over.
void name_target(get_request *get)
{
    stream_memory *out = &get->stream.target;
    if (status::ok ==
        mca_btl_gpusm_component.gpu.load()->export_range(get->copy.destination, get->copy.len_bytes,
                                                         0, &get->target, &out->handle)) {
        out->address = get->copy.destination;
    }
}

void release_target(get_request *get)
{
    if (get->target != nullptr) {
        mca_btl_gpusm_component.gpu.load()->exports.release(std::exchange(get->target, nullptr));
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

status begin(get_request *get)
{
    stream_fetch &stream = new_stream(get, services->pool_for(get));
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
    status s = mca_btl_gpusm_component.stage_receiver->fetch(*get->endpoint->peer, &stream);
    if (status::no_memory == s && stream.pool->device != nullptr) {
        services->give_up(stream.pool);
        stream.pool = &services->host_pool;
        s = mca_btl_gpusm_component.stage_receiver->fetch(*get->endpoint->peer, &stream);
    }
    if (status::ok != s) {
        release_target(get);
    }
    return s;
}

void wait_for_ring(get_request *get)
{
    get->next = nullptr;
    (nullptr == waiting.first ? waiting.first : waiting.last->next) = get;
    waiting.last = get;
}

void end_stream(get_request *get)
{
    const stream_fetch &stream = get->stream;
    const bool on_device = stream.pool->device != nullptr;
    release_target(get);
    if (get->mapping != nullptr) { // both have copied
        mca_btl_gpusm_component.gpu.load()->imports.release(std::exchange(get->mapping, nullptr));
        get->endpoint->reads_alone = get->endpoint->reads_alone || stream.sender_cannot;
        count(counter::pushed_host_bytes, stream.written);
        finish_get(get, stream.outcome);
        return;
    }
    if (status::not_found == stream.outcome && on_device) {
        if (!std::exchange(get->endpoint->streams_by_host, true)) {
            log_line(log_level::info,
                     "process %u cannot map a ring on a device of this process; its messages come "
                     "through host memory",
                     static_cast<unsigned>(get->endpoint->peer->identity().vpid));
        }
        wait_for_ring(get);
        return;
    }
    if (stream.written > 0) {
        count(counter::direct_host_messages, 1);
        count(counter::direct_host_bytes, stream.len_bytes);
    } else if (stream.received > 0) {
        count(on_device ? counter::device_ring_messages : counter::host_ring_messages, 1);
        count(on_device ? counter::device_ring_bytes : counter::host_ring_bytes, stream.received);
    }
    finish_get(get, stream.outcome);
}

} // namespace

void setup_stage()
{
    services = new stage_services;
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    component.stage_receiver = new stream_receiver(*component.node, *services, component.threads);
    component.stage_sender = new stream_sender(*services, component.threads);
}

std::size_t stage_ring_bytes()
{
    return host_rings *
           (mca_btl_gpusm_component.staging_host_bytes + sizeof(stream_ring) + page_bytes);
}

status stage_fetch(get_request *get)
{
    if (0 == get->copy.len_bytes) {
        finish_get(get, status::ok);
        return status::ok;
    }
    const status s = nullptr == waiting.first ? begin(get) : status::busy;
    if (status::busy != s) {
        return s;
    }
    wait_for_ring(get);
    return status::ok;
}

// The owner copies from the front, and this process, by its mapping, from the end.
bool share_get(get_request *get)
{
    mca_btl_base_endpoint_t *owner = get->endpoint;
    if (get->copy.len_bytes < shared_least_bytes || get->copy.wait_for != nullptr ||
        !smsc_reads_plainly() || owner->reads_alone || owner->peer->refuses_single_copies()) {
        return false;
    }
    stream_fetch &stream = new_stream(get, &services->without_slots);
    stream.target = host_target(stream.destination, stream.len_bytes);
    stream.back_parts = {pushed_parts.least_bytes, pushed_parts.most_bytes, 2};
    return status::ok == mca_btl_gpusm_component.stage_receiver->fetch(*owner->peer, &stream);
}

status post_stream_message(peer &to, frag_kind kind, const stream_message &message,
                           const stream_memory *memory)
{
    struct {
        stream_message message;
        stream_memory memory;
    } both{message, nullptr == memory ? stream_memory{} : *memory};
    static_assert(sizeof(both) == sizeof(stream_message) + sizeof(stream_memory));
    return post_control(endpoint_of(to), kind, &both,
                        nullptr == memory ? sizeof(message) : sizeof(both));
}

bool stream_message_for(stream_sender *streams, mca_btl_base_endpoint_t *from,
                        const unsigned char *payload, std::size_t bytes)
{
    stream_message message;
    stream_memory memory;
    const bool has_memory = sizeof(message) + sizeof(memory) == bytes;
    if (sizeof(message) != bytes && !has_memory) {
        return false;
    }
    std::memcpy(&message, payload, sizeof(message));
    if (has_memory) {
        std::memcpy(&memory, payload + sizeof(message), sizeof(memory));
    }
    return streams->take(*from->peer, message, has_memory ? &memory : nullptr);
}

bool stage_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                        std::size_t bytes)
{
    std::unique_lock<optional_mutex> guard;
    if (gpu_side *side = gpu(); side != nullptr) {
        guard = std::unique_lock(side->lock);
    }
    return stream_message_for(mca_btl_gpusm_component.stage_sender, endpoint, payload, bytes);
}

void stage_copied(copy_request *copy)
{
    services->copied(copy);
}

bool stages_several()
{
    return mca_btl_gpusm_component.stage_sender->messages() > 1 ||
           mca_btl_gpusm_component.stage_receiver->messages() > 1;
}

int progress_stage()
{
    int over = 0;
    if (!mca_btl_gpusm_component.stage_sender->idle()) {
        mca_btl_gpusm_component.stage_sender->progress();
    }
    stream_receiver &stages = *mca_btl_gpusm_component.stage_receiver;
    for (stream_fetch *each = stages.idle() ? nullptr : stages.progress(); each != nullptr;
         ++over) {
        get_request *get = get_of(each);
        each = each->next;
        end_stream(get);
    }
    while (waiting.first != nullptr) {
        get_request *get = waiting.first;
        get_request *next = get->next;
        const status s = begin(get);
        if (status::busy == s) {
            break;
        }
        waiting.first = next;
        if (status::ok != s) {
            finish_get(get, s);
        }
    }
    return over;
}

void release_stage()
{
    if (nullptr == services) {
        return;
    }
    if (gpu_side *side = mca_btl_gpusm_component.gpu; side != nullptr) {
        (void)side->copies.cancel_all(); // what is under way uses what goes now
    }
    delete std::exchange(mca_btl_gpusm_component.stage_sender, nullptr);
    delete std::exchange(mca_btl_gpusm_component.stage_receiver, nullptr);
    delete std::exchange(services, nullptr);
    waiting = {};
}

} // namespace gpusm
