// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/fd_passing.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/ipc/import_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpusm {

// Made when it is first needed, on either side, and anew when it could not be made, or received
// from, a while ago.
descriptor_socket &fd_passing::socket()
{
    if (!socket_.has_value() || (!socket_->valid() && receiving_.may_try())) {
        const log_as_retry quiet(receiving_.failures() > 0);
        socket_.emplace(own_.directory(), own_.identity());
        if (!socket_->valid()) {
            (void)receiving_.failed(status::system_failed);
        }
    }
    return *socket_;
}

// False: there is none, or none can be received now.
bool fd_passing::receive(descriptor_message *out)
{
    const log_as_retry quiet(receiving_.failures() > 0);
    if (!socket_.has_value() || !socket_->valid()) {
        return false;
    }
    const status s = socket_->receive(out);
    if (status::ok == s) {
        (void)receiving_.worked();
    } else if (!socket_->valid()) {
        (void)receiving_.refused(s);
    }
    return status::ok == s;
}

std::vector<fd_passing::request>::iterator fd_passing::find(std::uint32_t owner,
                                                            const remote_handle &handle)
{
    return std::find_if(requests_.begin(), requests_.end(), [&](const request &each) {
        return each.owner == owner && each.handle.slot == handle.slot &&
               each.handle.generation == handle.generation;
    });
}

bool fd_passing::ask(std::uint32_t owner, const remote_handle &handle, std::function<void()> then)
{
    auto place = find(owner, handle);
    if (place == requests_.end()) {
        if (!socket().valid() || !tell(owner, ipc_operation::want_descriptors, handle)) {
            return false;
        }
        place = requests_.insert(place, {owner, handle, {}, {}});
    }
    if (then) {
        place->waiters.push_back(std::move(then));
    }
    return true;
}

void fd_passing::answered(std::uint32_t owner, const remote_handle &handle)
{
    // What nobody has asked for is closed.
    for (descriptor_message message; receive(&message);) {
        const auto wanted = std::find_if(requests_.begin(), requests_.end(), [&](request &each) {
            return each.handle.slot == message.slot &&
                   each.handle.generation == message.generation &&
                   services_.peer_at(each.owner)->identity() == message.from;
        });
        if (wanted != requests_.end()) {
            wanted->message = std::move(message);
        }
    }
    const auto place = find(owner, handle);
    if (place == requests_.end()) {
        return; // nobody asked
    }
    const auto waiters = std::exchange(place->waiters, {});
    place->answered = true;
    if (!place->message.has_value()) {
        requests_.erase(place);
    }
    for (const auto &each : waiters) {
        each();
    }
}

status fd_passing::take(std::uint32_t owner, const remote_handle &handle, descriptor_message *out)
{
    const auto found = find(owner, handle);
    if (found == requests_.end() || !found->answered) {
        return status::not_ready;
    }
    *out = std::move(*found->message);
    requests_.erase(found);
    return status::ok;
}

void fd_passing::drop_over(std::uint32_t owner, const segment_view &of)
{
    std::erase_if(requests_, [&](const request &each) {
        return each.owner == owner && each.answered &&
               is_over(of, each.handle.slot, each.handle.generation);
    });
}

void fd_passing::drop_owner(std::uint32_t owner)
{
    std::erase_if(unsent_, [&](const unsent &each) { return each.to == owner; });
    std::vector<std::function<void()>> waiters;
    std::erase_if(requests_, [&](request &each) {
        if (each.owner != owner) {
            return false;
        }
        std::move(each.waiters.begin(), each.waiters.end(), std::back_inserter(waiters));
        return true;
    });
    for (const auto &each : waiters) {
        each();
    }
}

bool fd_passing::tell(std::uint32_t to, ipc_operation operation, const remote_handle &handle)
{
    return services_.send(to, {operation, refuse_reason::none, {}, handle});
}

// Sends, and answers unless the socket is full; `busy` then.
status fd_passing::try_to_send(const unsent &what)
{
    const peer *to = services_.peer_at(what.to);
    const status s = to->closed() ? status::peer_gone
                                  : socket().send(to->directory(), to->identity(), what.message);
    if (status::busy != s) {
        (void)tell(what.to,
                   status::ok == s ? ipc_operation::descriptors_sent
                                   : ipc_operation::descriptors_not_sent,
                   what.handle);
    }
    return s;
}

void fd_passing::send(std::uint32_t to, const remote_handle &handle)
{
    unsent what{to, handle, {own_.identity(), handle.generation, handle.slot, {}, {}}};
    // For importers that take none too many would be kept open.
    std::size_t kept = 0;
    for (const unsent &each : unsent_) {
        kept += each.message.fds.size();
    }
    if (kept >= most_descriptors || status::ok != exports_.descriptors_of(handle, &what.message)) {
        (void)tell(to, ipc_operation::descriptors_not_sent, handle);
    } else if (status::busy == try_to_send(what)) {
        unsent_.push_back(std::move(what));
    }
}

void fd_passing::send_on()
{
    // In order, and a full socket holds up what comes after it, also for other peers: this is rare.
    while (!unsent_.empty() && status::busy != try_to_send(unsent_.front())) {
        unsent_.erase(unsent_.begin());
    }
}

} // namespace gpusm
