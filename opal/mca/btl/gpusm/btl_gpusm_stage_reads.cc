// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_stage_reads.cc: the reader's side of staged gets: asks the owner of memory that cannot
// be mapped here, copies the pieces out of the owner's ring, and gives them back; or lets the owner
// write where they would go.
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

// Does [position, position + len_bytes) of the ring exist, as far as the message says?
bool is_in_ring(const stage_message &message)
{
    return message.position <= message.handle.len_bytes &&
           message.len_bytes <= message.handle.len_bytes - message.position;
}

} // namespace

stage_reads::~stage_reads()
{
    for (const peer_rings &each : peers_) {
        if (each.registered != nullptr) {
            const driver_scope scope(gpu_.driver, each.registered_in->context);
            const CUresult result = gpu_.driver.mem_host_unregister(each.registered);
            if (CUDA_SUCCESS != result && scope.entered()) {
                (void)gpu_.driver.report("cuMemHostUnregister", result);
            }
        }
    }
}

stage_reads::peer_rings &stage_reads::rings_of(const mca_btl_base_endpoint_t *owner)
{
    while (peers_.size() <= owner->number) {
        peers_.emplace_back();
    }
    return peers_[owner->number];
}

status stage_reads::fetch(get_request *get)
{
    if (get->endpoint->peer->closed()) {
        return status::peer_gone;
    }
    if (0 == get->copy.len_bytes) {
        finish_get(get, status::ok);
        return status::ok;
    }
    peer_rings &rings = rings_of(get->endpoint);
    if (rings.under_way < stage_fetches_at_once) {
        return ask(get);
    }
    get->next = nullptr;
    (nullptr == rings.first_waiting ? rings.first_waiting : rings.last_waiting->next) = get;
    rings.last_waiting = get;
    return status::ok;
}

// Memory that the owner may write to by itself, if it has said that it would. It stays exported
// until the get is over.
bool stage_reads::name_target(get_request *get, stage_target *out)
{
    if (share_kind::host != get->remote.kind || 0 == (get->remote.flags & page_locked) ||
        is_for_host(get) || !mca_btl_gpusm_component.use_direct_host ||
        status::ok != gpu_.export_range(get->copy.destination, get->copy.len_bytes, 0, &get->target,
                                        &out->handle)) {
        return false;
    }
    out->address = get->copy.destination;
    return true;
}

void stage_reads::release_target(get_request *get)
{
    if (get->target != nullptr) {
        gpu_.exports.release(std::exchange(get->target, nullptr));
    }
}

status stage_reads::ask(get_request *get)
{
    peer_rings &rings = rings_of(get->endpoint);
    staged_get *made = gets_.open(get->endpoint->number, get->copy.len_bytes, get);
    if (nullptr == made) {
        return status::no_memory;
    }
    stage_message message = stage_message_of(stage_operation::fetch, made->number);
    message.handle = get->remote;
    message.offset = get->remote_address - get->remote.base;
    message.len_bytes = get->copy.len_bytes;
    if (rings.by_host || is_for_host(get) || 0 == mca_btl_gpusm_component.staging_device_bytes) {
        message.flags = stage_by_host;
    }
    stage_target target{};
    made->has_target = split_pull(get, made, &target) || name_target(get, &target);
    if (!send_stage_message(get->endpoint, message, made->has_target ? &target : nullptr)) {
        if (made->is_split) {
            give_split(made->split);
        }
        release_target(get);
        gets_.close(made);
        return status::peer_gone;
    }
    ++rings.under_way;
    if (made->is_split) {
        start_bounce(&get->bouncing);
    }
    return status::ok;
}

void stage_reads::ask_waiting(mca_btl_base_endpoint_t *owner)
{
    peer_rings &rings = rings_of(owner);
    while (rings.first_waiting != nullptr && rings.under_way < stage_fetches_at_once) {
        get_request *get = std::exchange(rings.first_waiting, rings.first_waiting->next);
        if (owner->peer->closed() || status::ok != ask(get)) {
            finish_get(get, status::peer_gone);
        }
    }
}

stage_read *stage_reads::take_read()
{
    if (nullptr == free_reads_) {
        free_reads_ = &reads_.emplace_back();
        free_reads_->next = nullptr;
    }
    stage_read *taken = std::exchange(free_reads_, free_reads_->next);
    *taken = stage_read{};
    taken->copy.part_of = static_cast<std::uint8_t>(copy_part::stage_out);
    return taken;
}

void stage_reads::piece(mca_btl_base_endpoint_t *owner, const stage_message &message)
{
    staged_get *get = gets_.find(owner->number, message.get);
    const bool in_segment = share_kind::host == message.handle.kind;
    const peer_segment &shared = owner->peer->shared();
    if (nullptr == get || nullptr == get->user || !is_in_ring(message) ||
        (!in_segment && share_kind::legacy != message.handle.kind) ||
        (in_segment && !shared.holds(message.handle.base, message.handle.len_bytes)) ||
        !get->accept(message.offset, message.len_bytes)) {
        close_for_garbage(owner, message);
        return;
    }
    get_request *request = request_of(get);
    stage_read *read = take_read();
    read->owner = owner;
    read->get = get;
    read->piece = message.piece;
    read->copy.destination = request->copy.destination + message.offset;
    read->copy.len_bytes = message.len_bytes;
    if (get->bad) {
        end(read); // not wanted any more
        return;
    }
    if (0 == message.offset) {
        count(in_segment ? counter::host_ring_messages : counter::device_ring_messages, 1);
    }
    if (!in_segment) {
        copy_from_device(read, message);
        return;
    }
    if (!is_for_host(request)) {
        register_ring(read, message);
    }
    copy_from_host(read, shared.base() + message.handle.base + message.position);
}

void stage_reads::copy_from_device(stage_read *read, const stage_message &message)
{
    get_request *request = request_of(read->get);
    status s = status::not_ready;
    if (request->into != nullptr) {
        s = gpu_.import(*read->owner, message.handle, *request->into, &read->mapped);
    }
    if (status::ok == s) {
        read->copy.source = read->mapped->local_base +
                            (message.handle.base - read->mapped->remote_base) + message.position;
        read->copy.for_kernel =
            request->copy.for_kernel &&
            gpu_side::kernel_reads(*read->mapped, message.handle, *request->into);
        count(counter::device_ring_bytes, message.len_bytes);
        gpu_.copies.submit(*request->into, &read->copy);
        return;
    }
    peer_rings &rings = rings_of(read->owner);
    if (!rings.by_host) {
        rings.by_host = true;
        log_line(log_level::info,
                 "the staging ring on the device of process %u cannot be mapped (%s); its messages "
                 "come through host memory",
                 static_cast<unsigned>(read->owner->peer->identity().vpid), to_string(s));
    }
    read->get->again = true;
    spoil(read->owner, read->get);
    end(read);
}

void stage_reads::copy_from_host(stage_read *read, const unsigned char *from)
{
    get_request *request = request_of(read->get);
    read->copy.source = reinterpret_cast<std::uint64_t>(from);
    count(counter::host_ring_bytes, read->copy.len_bytes);
    if (!is_for_host(request)) {
        // The ring that is registered is the one of the first piece that came.
        const peer_rings &rings = rings_of(read->owner);
        read->copy.over_bus = true;
        read->copy.for_kernel =
            request->copy.for_kernel && rings.registered != nullptr && from >= rings.registered &&
            from + read->copy.len_bytes <= rings.end_of_registered &&
            gpu_.kernel_touches(*request->into, rings.registered_in, rings.registered);
        gpu_.copies.submit(*request->into, &read->copy);
        return;
    }
    read->next = nullptr;
    (nullptr == first_by_hand_ ? first_by_hand_ : last_by_hand_->next) = read;
    last_by_hand_ = read;
}

// Registered memory is copied without the processor's help. A refusal costs that, no more.
void stage_reads::register_ring(stage_read *read, const stage_message &message)
{
    peer_rings &rings = rings_of(read->owner);
    if (rings.tried_to_register) {
        return;
    }
    rings.tried_to_register = true;
    if (!mca_btl_gpusm_component.register_segments || 0 != message.handle.base % page_bytes ||
        0 != message.handle.len_bytes % page_bytes) {
        return;
    }
    device *in = request_of(read->get)->into;
    const driver_scope scope(gpu_.driver, in->context);
    unsigned char *start = read->owner->peer->shared().base() + message.handle.base;
    const CUresult result =
        gpu_.driver.mem_host_register(start, message.handle.len_bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (CUDA_SUCCESS == result) {
        rings.registered = start;
        rings.end_of_registered = start + message.handle.len_bytes;
        rings.registered_in = in;
    } else {
        log_line(log_level::info,
                 "the staging ring of process %u stays unregistered with the driver: %s",
                 static_cast<unsigned>(read->owner->peer->identity().vpid),
                 gpu_.driver.error_name(result));
    }
}

void stage_reads::failed(mca_btl_base_endpoint_t *owner, const stage_message &message)
{
    staged_get *get = gets_.find(owner->number, message.get);
    if (nullptr == get || get->owner_is_done()) {
        close_for_garbage(owner, message);
        return;
    }
    get->bad = get->owner_failed = true;
    end_if_over(owner, get);
}

void stage_reads::written(mca_btl_base_endpoint_t *owner, const stage_message &message)
{
    staged_get *get = gets_.find(owner->number, message.get);
    bool sensible = get != nullptr;
    if (sensible && get->is_split) {
        const std::uint64_t front = split_look(splits_[get->split]).front;
        sensible = get->accept_all_told(std::min(get->len_bytes, front * pull_chunk_bytes));
    } else if (sensible) {
        sensible = get->accept_written();
    }
    if (!sensible) {
        close_for_garbage(owner, message);
        return;
    }
    if (!get->is_shared && !get->is_split) {
        count(counter::direct_host_messages, 1);
        count(counter::direct_host_bytes, get->len_bytes);
    }
    end_if_over(owner, get);
}

// Nothing more of it is wanted.
void stage_reads::spoil(mca_btl_base_endpoint_t *owner, staged_get *get)
{
    if (!get->bad && !get->owner_is_done()) {
        (void)send_stage_message(owner, stage_message_of(stage_operation::cancel, get->number));
    }
    get->bad = true;
}

void stage_reads::copied(copy_request *copy)
{
    stage_read *read = enclosing<stage_read>(copy, offsetof(stage_read, copy));
    if (status::ok != copy->outcome) {
        spoil(read->owner, read->get);
    }
    end(read);
}

// Gives a piece back.
void stage_reads::end(stage_read *read)
{
    if (read->mapped != nullptr) {
        gpu_.imports.release(read->mapped);
    }
    mca_btl_base_endpoint_t *owner = read->owner;
    staged_get *get = read->get;
    stage_message message = stage_message_of(stage_operation::release, get->number);
    message.piece = read->piece;
    read->next = std::exchange(free_reads_, read);
    (void)send_stage_message(owner, message);
    --get->copying;
    end_if_over(owner, get);
}

void stage_reads::end_if_over(mca_btl_base_endpoint_t *owner, staged_get *get)
{
    if (!get->over()) {
        return;
    }
    if (get->is_shared || get->is_split) {
        get->is_shared ? end_shared(owner, get) : end_split(owner, get);
        return;
    }
    get_request *request = request_of(get);
    const bool good = !get->bad;
    const bool again = get->again && !owner->peer->closed();
    gets_.close(get);
    release_target(request);
    --rings_of(owner).under_way;
    if (good || !again || status::ok != ask(request)) {
        finish_get(request, good ? status::ok : status::driver_failed);
    }
    ask_waiting(owner);
}

int stage_reads::progress()
{
    int pieces = 0;
    for (std::size_t copied_here = 0;
         first_by_hand_ != nullptr && copied_here < progress_copy_bytes; ++pieces) {
        stage_read *read = std::exchange(first_by_hand_, first_by_hand_->next);
        if (!read->get->bad) {
            std::memcpy(reinterpret_cast<void *>(read->copy.destination),
                        reinterpret_cast<const void *>(read->copy.source), read->copy.len_bytes);
            copied_here += read->copy.len_bytes;
        }
        end(read);
    }
    return pieces;
}

void stage_reads::drop_closed()
{
    for (std::size_t i = 0; i < gets_.places(); ++i) {
        staged_get *get = gets_.at(i);
        mca_btl_base_endpoint_t *owner = nullptr == get ? nullptr : endpoint_at(get->peer);
        if (owner != nullptr && owner->peer->closed()) {
            get->bad = get->owner_failed = true;
            end_if_over(owner, get);
        }
    }
}

} // namespace gpusm
