// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_descriptors.cc: VMM memory and exportable pools have no handle that would fit into a
// directory: the process that maps them needs file descriptors. The importer asks for those of one
// export by a control message, the owner puts them into the importer's socket
// (ipc/descriptor_socket.h) and answers by a control message, so nobody polls a socket. What needed
// them waits here meanwhile. Everything runs under the GPU lock.
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace gpusm {

namespace {

// What waits for the descriptors of one export.
struct wait {
    mca_btl_base_endpoint_t *endpoint;
    remote_handle handle;
    get_request *gets; // linked by `next`, the newest first
    bool answer;       // the handshake's REQ named that export
};

std::vector<wait> waits;
descriptor_socket *own_socket = nullptr;
bool told_no_socket = false;

descriptor_socket *socket_of_ours()
{
    if (nullptr == own_socket) {
        const segment &own = mca_btl_gpusm_component.node->own();
        auto made = std::make_unique<descriptor_socket>();
        std::string why;
        if (status::ok ==
            descriptor_socket::create(own.directory(), own.identity(), made.get(), &why)) {
            own_socket = made.release();
        } else if (!std::exchange(told_no_socket, true)) {
            log_line(log_level::warn,
                     "no socket for file descriptors, so VMM and pool memory of peers cannot be "
                     "mapped: %s",
                     why.c_str());
        }
    }
    return own_socket;
}

std::vector<wait>::iterator find_wait(const mca_btl_base_endpoint_t *endpoint,
                                      const remote_handle &handle)
{
    return std::find_if(waits.begin(), waits.end(), [&](const wait &each) {
        return each.endpoint == endpoint && each.handle.slot == handle.slot &&
               each.handle.generation == handle.generation;
    });
}

// The wait for that export, begun if there is none. Null: nothing can be asked.
wait *wait_for(mca_btl_base_endpoint_t *endpoint, const remote_handle &handle)
{
    const auto found = find_wait(endpoint, handle);
    if (found != waits.end()) {
        return &*found;
    }
    if (nullptr == socket_of_ours() ||
        !send_ipc_message(endpoint,
                          {ipc_operation::want_descriptors, refuse_reason::none, {}, handle})) {
        return nullptr;
    }
    waits.push_back({endpoint, handle, nullptr, false});
    return &waits.back();
}

// Owner's side: what a peer wants and has not been sent yet, because its socket was full.
struct unsent {
    mca_btl_base_endpoint_t *to;
    remote_handle handle;
    std::vector<file_descriptor> descriptors;
    std::vector<std::uint64_t> lengths;
};
std::vector<unsent> unsents;

void answer_want(mca_btl_base_endpoint_t *to, const remote_handle &handle, bool sent)
{
    (void)send_ipc_message(
        to, {sent ? ipc_operation::descriptors_sent : ipc_operation::descriptors_not_sent,
             refuse_reason::none,
             {},
             handle});
}

// Sends, and answers unless the socket is full; `busy` then.
status try_to_send(const unsent &what)
{
    std::vector<int> fds;
    for (const file_descriptor &each : what.descriptors) {
        fds.push_back(each.get());
    }
    const descriptor_label label{mca_btl_gpusm_component.node->own().identity(),
                                 what.handle.generation, what.handle.slot,
                                 static_cast<std::uint32_t>(fds.size())};
    const status s = own_socket->send(what.to->peer->directory(), what.to->peer->identity(), label,
                                      what.lengths.data(), fds.data());
    if (status::busy != s) {
        answer_want(what.to, what.handle, status::ok == s);
    }
    return s;
}

void send_descriptors(mca_btl_base_endpoint_t *to, const remote_handle &handle)
{
    gpu_desk *desk = mca_btl_gpusm_component.gpu;
    std::vector<int> fds;
    unsent what{to, handle, {}, {}};
    if (nullptr == socket_of_ours() || nullptr == desk ||
        status::ok != desk->export_descriptors(handle, &fds, &what.lengths)) {
        answer_want(to, handle, false);
        return;
    }
    for (const int each : fds) {
        what.descriptors.emplace_back(each);
    }
    if (status::busy == try_to_send(what)) {
        unsents.push_back(std::move(what));
    }
}

// Takes everything out of the socket, whoever waits for it.
void empty_socket()
{
    descriptor_message message;
    while (own_socket != nullptr && status::ok == own_socket->receive(&message)) {
        // A sender that we do not know by its segment has no business here.
        for (mca_btl_base_endpoint_t *each : *mca_btl_gpusm_component.endpoints) {
            if (each->peer->identity() == message.label.from) {
                mca_btl_gpusm_component.gpu.load()->keep_descriptors(*each, std::move(message));
                break;
            }
        }
        message = descriptor_message{};
    }
}

} // namespace

status wait_for_descriptors(get_request *get)
{
    if (get->has_waited) {
        return status::not_found; // they came, and did not help
    }
    wait *place = wait_for(get->endpoint, get->remote);
    if (nullptr == place) {
        return status::unsupported;
    }
    get->has_waited = true;
    get->next = std::exchange(place->gets, get);
    return status::busy;
}

void ask_for_descriptors(mca_btl_base_endpoint_t *endpoint, const remote_handle &handle)
{
    (void)wait_for(endpoint, handle);
}

bool answer_after_descriptors(mca_btl_base_endpoint_t *endpoint, const remote_handle &handle)
{
    wait *place = wait_for(endpoint, handle);
    if (place != nullptr) {
        place->answer = true;
    }
    return place != nullptr;
}

bool descriptor_message_from(mca_btl_base_endpoint_t *endpoint, const ipc_message &message)
{
    if (ipc_operation::want_descriptors == message.operation) {
        send_descriptors(endpoint, message.handle);
        return false;
    }
    const auto found = find_wait(endpoint, message.handle);
    if (found == waits.end()) {
        return false;
    }
    const wait over = *found;
    waits.erase(found);
    empty_socket();
    // In the order in which they were asked for.
    get_request *in_order = nullptr;
    for (get_request *each = over.gets; each != nullptr;) {
        get_request *next = each->next;
        each->next = std::exchange(in_order, each);
        each = next;
    }
    while (in_order != nullptr) {
        get_request *get = std::exchange(in_order, in_order->next);
        const status s = start_get(get);
        if (status::ok != s && status::busy != s) {
            finish_get(get, s);
        }
    }
    return over.answer;
}

void progress_descriptors()
{
    // In order, and a full socket holds up only what comes after it for the same peer or another:
    // this is rare enough.
    while (!unsents.empty() &&
           (unsents.front().to->peer->closed() || status::busy != try_to_send(unsents.front()))) {
        unsents.erase(unsents.begin());
    }
}

void release_descriptors()
{
    unsents.clear();
    delete std::exchange(own_socket, nullptr);
    waits.clear();
    told_no_socket = false;
}

} // namespace gpusm
