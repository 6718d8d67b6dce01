// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_ipc.cc: performs what the handshake (ipc/handshake.h) and the passing of file
// descriptors (ipc/fd_passing.h) ask for.
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <cstring>
#include <mutex>

namespace gpusm {

bool send_ipc_message(mca_btl_base_endpoint_t *endpoint, const ipc_message &message)
{
    const status s = post_control(endpoint, frag_kind::ipc_control, &message, sizeof(message));
    return status::ok == s || status::busy == s;
}

void cannot_map(mca_btl_base_endpoint_t *owner, const remote_handle &handle, const device &into)
{
    (void)owner->rings.refused(into.index, status::unsupported);
    (void)send_ipc_message(owner, {ipc_operation::ack, refuse_reason::no_peer_access, {}, handle});
}

void can_map_after_all(mca_btl_base_endpoint_t *owner, const remote_handle &handle)
{
    (void)send_ipc_message(owner, {ipc_operation::ack, refuse_reason::none, {}, handle});
}

status wait_for_descriptors(get_request *get)
{
    if (get->has_waited) {
        return status::not_found; // they came, and did not help
    }
    const auto go_on = [get] {
        const status s = start_get(get);
        if (status::ok != s && status::busy != s) {
            finish_get(get, s);
        }
    };
    fd_passing &fds = here().gpu.load()->fds;
    if (!fds.ask(get->endpoint->number, get->remote, go_on)) {
        return status::unsupported;
    }
    get->has_waited = true;
    return status::busy;
}

namespace {

const char *reason_in_words(refuse_reason reason)
{
    switch (reason) {
    case refuse_reason::switched_off:
        return "CUDA IPC is switched off there (btl_gpusm_use_cuda_ipc)";
    case refuse_reason::no_driver:
        return "it has no CUDA driver";
    case refuse_reason::no_peer_access:
        return "its device cannot map memory of this process's device";
    default: // a peer's byte, not our enum
        return "it gave no reason";
    }
}

void tell_user(mca_btl_base_endpoint_t *endpoint, refuse_reason reason)
{
    if (!endpoint->gpu_warned) {
        endpoint->gpu_warned = true;
        show_help("cuda ipc refused", static_cast<unsigned>(endpoint->peer->identity().vpid),
                  reason_in_words(reason));
    }
}

// An answer that cannot be sent: the peer asks again after some messages.
void reply(mca_btl_base_endpoint_t *to, ipc_operation operation,
           refuse_reason reason = refuse_reason::none)
{
    if (!send_ipc_message(to, {operation, reason, {}, {}})) {
        log_line(log_level::warn, "an answer to a CUDA IPC request could not be sent");
    }
}

// May that peer send device memory by get from now on? What cannot be mapped then its owner is told
// (cannot_map). Under the GPU lock.
void answer(gpu_side &side, mca_btl_base_endpoint_t *from)
{
    device *into = nullptr;
    if (!from->peer->attached() || status::ok != side.devices.for_host(&into)) {
        return reply(from, ipc_operation::not_ready);
    }
    reply(from, ipc_operation::ack);
}

// Whether the peer can map that memory of ours, and what else is of that kind and device. Under the
// GPU lock.
void note_mapping(gpu_side &side, mca_btl_base_endpoint_t *by, const ipc_message &message)
{
    const exported *entry = side.exports.live_export(message.handle);
    if (nullptr == entry) {
        return; // it is over, or the message names none
    }
    const std::pair of_what{entry->ordinal, entry->kind};
    if (refuse_reason::none != message.reason) {
        (void)by->its_mappings.refused(of_what, status::unsupported);
    } else if (by->its_mappings.worked(of_what)) {
        log_line(log_level::info, "process %u fetches memory of device %d again",
                 static_cast<unsigned>(by->peer->identity().vpid), entry->ordinal);
    }
}

} // namespace

void enable_get(mca_btl_base_endpoint_t *endpoint)
{
    // Only ob1 takes this flag as good news, and only it registers the callback.
    opal_proc_t *proc = endpoint->proc;
    if (mca_btl_gpusm.error_cb != nullptr && proc != nullptr &&
        !endpoint->get_enabled.exchange(true)) {
        mca_btl_gpusm.error_cb(&mca_btl_gpusm.super, MCA_BTL_ERROR_FLAGS_ADD_ACCELERATOR_IPC, proc,
                               nullptr);
    }
}

bool is_offered_to(mca_btl_base_endpoint_t *endpoint)
{
    const ipc_state state = endpoint->handshake->state();
    if (ipc_state::ready == state || ipc_state::refused == state) [[likely]] {
        return ipc_state::ready == state;
    }
    gpu_side *side = gpu();
    if (nullptr == side) {
        return false;
    }
    const std::lock_guard guard(side->lock);
    if (ipc_action::send_req == endpoint->handshake->step(ipc_event::gpu_message) &&
        !send_ipc_message(endpoint, {ipc_operation::req, refuse_reason::none, {}, {}})) {
        (void)endpoint->handshake->step(ipc_event::not_ready);
    }
    return ipc_state::refused != endpoint->handshake->state();
}

void ipc_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                      std::size_t bytes)
{
    ipc_message message;
    if (bytes != sizeof(message)) {
        log_line(log_level::error, "a CUDA IPC message of %zu bytes was dropped", bytes);
        return;
    }
    std::memcpy(&message, payload, sizeof(message));
    const bool asks = ipc_operation::req == message.operation; // perhaps the first GPU message
    gpu_side *side = asks ? gpu() : here().gpu.load();
    if (nullptr == side) {
        if (asks) {
            reply(endpoint, ipc_operation::refuse,
                  mca_btl_gpusm_component.use_cuda_ipc ? refuse_reason::no_driver
                                                       : refuse_reason::switched_off);
        }
        return;
    }
    std::unique_lock guard(side->lock);
    ipc_event event = ipc_event::ack;
    switch (message.operation) {
    case ipc_operation::req:
        return answer(*side, endpoint);
    case ipc_operation::ack:
        // Also without having been asked, when a later buffer could not be mapped, or could.
        note_mapping(*side, endpoint, message);
        break;
    case ipc_operation::not_ready:
        event = ipc_event::not_ready;
        break;
    case ipc_operation::refuse:
        event = ipc_event::refuse;
        break;
    case ipc_operation::want_descriptors:
        return side->fds.send(endpoint->number, message.handle);
    case ipc_operation::descriptors_sent:
    case ipc_operation::descriptors_not_sent:
        return side->fds.answered(endpoint->number, message.handle);
    default: // a peer's byte, not our enum
        log_line(log_level::error, "a CUDA IPC message of an unknown kind was dropped");
        return;
    }
    const ipc_action action = endpoint->handshake->step(event);
    guard.unlock();
    if (ipc_action::open_gate == action) {
        log_line(log_level::info, "process %u fetches device memory of this process",
                 static_cast<unsigned>(endpoint->peer->identity().vpid));
        enable_get(endpoint);
    }
    // That waits for the runtime, so no lock is held.
    if (ipc_action::tell_user == action ||
        (ipc_event::ack == event && refuse_reason::none != message.reason)) {
        tell_user(endpoint, message.reason);
    }
}

} // namespace gpusm
