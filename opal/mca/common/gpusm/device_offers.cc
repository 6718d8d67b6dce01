// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/device_offers.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <mutex>

namespace gpusm {

namespace {

// Whether the peer can map that memory of ours, and what else is of that kind and device. Under the
// GPU lock.
void note_mapping(const gpu_side &side, device_link *link, const peer &by,
                  const ipc_message &message)
{
    const exported *entry = side.exports.live_export(message.handle);
    if (nullptr == entry) {
        return; // it is over, or the message names none
    }
    const std::pair of_what{entry->on->ordinal, entry->kind};
    if (refuse_reason::none != message.reason) {
        (void)link->maps.refused(of_what, status::unsupported);
    } else if (link->maps.worked(of_what)) {
        log_line(log_level::info, "process %u fetches memory of device %d again",
                 static_cast<unsigned>(by.identity().vpid), entry->on->ordinal);
    }
}

} // namespace

bool device_offers::send(peer &to, const ipc_message &message)
{
    message_services *messages = process_.messages();
    return messages != nullptr && messages->send(to, message);
}

// An answer that cannot be sent: the peer asks again after some messages.
void device_offers::reply(peer &to, ipc_operation operation, refuse_reason reason)
{
    if (!send(to, {operation, reason, {}, {}})) {
        log_line(log_level::warn, "an answer to a CUDA IPC request could not be sent");
    }
}

// May that peer send device memory by get from now on? What cannot be mapped then its owner is told
// (tell_mapping). Under the GPU lock.
void device_offers::answer(gpu_side &side, peer &from)
{
    device *into = nullptr;
    const bool ready = from.attached() && status::ok == side.devices.for_host(&into);
    reply(from, ready ? ipc_operation::ack : ipc_operation::not_ready);
}

device_link *device_offers::link_of(const peer &of)
{
    const std::lock_guard guard(lock_);
    while (links_.size() <= of.number) {
        links_.emplace_back();
    }
    return &links_[of.number];
}

bool device_offers::may_offer(device_link &link, peer &to)
{
    const ipc_state state = link.fetches.state();
    if (ipc_state::ready == state || ipc_state::refused == state) [[likely]] {
        return ipc_state::ready == state;
    }
    gpu_side *side = process_.gpu();
    if (nullptr == side) {
        return false;
    }
    const std::lock_guard guard(side->lock);
    if (ipc_action::send_req == link.fetches.step(ipc_event::gpu_message) &&
        !send(to, {ipc_operation::req, refuse_reason::none, {}, {}})) {
        (void)link.fetches.step(ipc_event::not_ready);
    }
    return ipc_state::refused != link.fetches.state();
}

void device_offers::message_from(device_link &link, peer &from, const ipc_message &message)
{
    const bool asks = ipc_operation::req == message.operation; // perhaps the first GPU message
    gpu_side *side = asks ? process_.gpu() : process_.gpu_if_made();
    if (nullptr == side) {
        if (asks) {
            reply(from, ipc_operation::refuse,
                  process_.uses_devices() ? refuse_reason::no_driver : refuse_reason::switched_off);
        }
        return;
    }
    std::unique_lock guard(side->lock);
    ipc_event event = ipc_event::ack;
    switch (message.operation) {
    case ipc_operation::req:
        return answer(*side, from);
    case ipc_operation::ack:
        // Also without having been asked, when a later buffer could not be mapped, or could.
        note_mapping(*side, &link, from, message);
        break;
    case ipc_operation::not_ready:
        event = ipc_event::not_ready;
        break;
    case ipc_operation::refuse:
        event = ipc_event::refuse;
        break;
    case ipc_operation::want_descriptors:
        return side->fds.send(from.number, message.handle);
    case ipc_operation::descriptors_sent:
    case ipc_operation::descriptors_not_sent:
        return side->fds.answered(from.number, message.handle);
    default: // a peer's byte, not our enum
        log_line(log_level::error, "a CUDA IPC message of an unknown kind was dropped");
        return;
    }
    const ipc_action action = link.fetches.step(event);
    guard.unlock();
    if (ipc_action::open_gate == action) {
        log_line(log_level::info, "process %u fetches device memory of this process",
                 static_cast<unsigned>(from.identity().vpid));
    }
    const bool refuses = ipc_action::tell_user == action ||
                         (ipc_event::ack == event && refuse_reason::none != message.reason);
    message_services *messages = process_.messages();
    if (messages != nullptr && ipc_action::open_gate == action) {
        messages->fetches(from);
    }
    if (messages != nullptr && refuses) {
        messages->refused(from, message.reason);
    }
}

void device_offers::tell_mapping(peer &owner, const remote_handle &handle, bool can)
{
    const refuse_reason reason = can ? refuse_reason::none : refuse_reason::no_peer_access;
    (void)send(owner, {ipc_operation::ack, reason, {}, handle});
}

} // namespace gpusm
