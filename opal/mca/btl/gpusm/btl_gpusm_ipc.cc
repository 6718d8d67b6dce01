// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_ipc.cc: how the device's side of the process (device_offers, fd_passing, bounces) sends
// and takes messages and copies host memory, and what it has to say to ob1 and the user.
#include "opal/mca/btl/gpusm/btl_gpusm_ipc.h"
#include "opal/mca/btl/gpusm/btl_gpusm_delegate.h"
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <cstring>
#include <mutex>

namespace gpusm {

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

void ipc_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                      std::size_t bytes)
{
    ipc_message message;
    if (bytes != sizeof(message)) {
        log_line(log_level::error, "a CUDA IPC message of %zu bytes was dropped", bytes);
        return;
    }
    std::memcpy(&message, payload, sizeof(message));
    endpoint->transport->process.offers().message_from(*endpoint->link, *endpoint->peer, message);
}

} // namespace

bool messenger::send(peer &to, const ipc_message &message)
{
    const status s = transport_.frags->post_control(
        transport_.endpoint_of(to), frag_kind::ipc_control, &message, sizeof(message));
    return status::ok == s || status::busy == s;
}

bool messenger::send(peer &to, const delegated_copy &message)
{
    const status s = transport_.frags->post_control(
        transport_.endpoint_of(to), frag_kind::delegated, &message, sizeof(message));
    return status::ok == s || status::busy == s;
}

status messenger::read(peer &from, void *local, std::uint64_t remote, std::size_t bytes)
{
    mca_btl_base_endpoint_t *owner = transport_.endpoint_of(from);
    const status s = smsc_read(owner, local, remote, bytes);
    count(owner, counter::pulled_read_bytes, status::ok == s ? bytes : 0);
    return s;
}

status messenger::write(peer &to, const void *local, std::uint64_t remote, std::size_t bytes)
{
    return smsc_write(transport_.endpoint_of(to), local, remote, bytes);
}

void messenger::fetches(peer &by)
{
    enable_get(transport_.endpoint_of(by));
}

bool messenger::serve_views()
{
    install_pointer_check(transport_, true);
    const std::lock_guard guard(transport_.lock);
    install_view_hooks(transport_);
    return true;
}

// Waits for the runtime.
void messenger::refused(peer &by, refuse_reason reason)
{
    if (!std::exchange(transport_.endpoint_of(by)->gpu_warned, true)) {
        show_help("cuda ipc refused", static_cast<unsigned>(by.identity().vpid),
                  reason_in_words(reason));
    }
}

void enable_get(mca_btl_base_endpoint_t *endpoint)
{
    // Only ob1 takes this flag as good news, and only it registers the callback.
    opal_proc_t *proc = endpoint->proc.get();
    if (mca_btl_gpusm.error_cb != nullptr && proc != nullptr &&
        !endpoint->get_enabled.exchange(true)) {
        mca_btl_gpusm.error_cb(&mca_btl_gpusm.super, MCA_BTL_ERROR_FLAGS_ADD_ACCELERATOR_IPC, proc,
                               nullptr);
    }
}

bool is_offered_to(mca_btl_base_endpoint_t *endpoint)
{
    return endpoint->transport->process.offers().may_offer(*endpoint->link, *endpoint->peer);
}

void take_our_own(mca_btl_base_endpoint_t *from, const frag_header &header,
                  const unsigned char *payload)
{
    bool sensible = false;
    switch (header.kind) {
    case frag_kind::active_message:
        break; // the caller's
    case frag_kind::ipc_control:
        ipc_message_from(from, payload, header.payload_bytes);
        return;
    case frag_kind::stage:
        sensible = from->transport->stage->message_from(from, payload, header.payload_bytes);
        break;
    case frag_kind::cooperative:
        sensible = from->transport->host->message_from(from, payload, header.payload_bytes);
        break;
    case frag_kind::delegated:
        sensible = delegated_message_from(from, payload, header.payload_bytes);
        break;
    }
    if (!sensible) {
        from->peer->close_for_nonsense(); // a peer's byte
    }
}

void cannot_map(mca_btl_base_endpoint_t *owner, const remote_handle &handle, const device &into)
{
    (void)owner->rings.refused(into.index, status::unsupported);
    owner->transport->process.offers().tell_mapping(*owner->peer, handle, false);
}

void can_map_after_all(mca_btl_base_endpoint_t *owner, const remote_handle &handle)
{
    owner->transport->process.offers().tell_mapping(*owner->peer, handle, true);
}

status wait_for_descriptors(transfer *get)
{
    if (get->has_waited) {
        return status::not_found; // they came, and did not help
    }
    fd_passing &fds = get->gpu().fds;
    if (!fds.ask(get->endpoint->peer->number, get->remote, [get] { start_get_again(get); })) {
        return status::unsupported;
    }
    get->has_waited = true;
    return status::busy;
}

} // namespace gpusm
