// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/fd_passing.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/ipc/import_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gpusm {

namespace {

// Messages with file descriptors that wait to be taken. Each keeps its memory alive, so old ones
// go; whoever still wants them asks again.
constexpr std::size_t most_arrived = 64;

template <typename Name> bool is_of(const remote_handle &handle, const Name &name)
{
    return handle.slot == name.slot && handle.generation == name.generation;
}

} // namespace

// Made when it is first needed, on either side. Null: it cannot be made.
descriptor_socket *fd_passing::socket()
{
    if (!socket_.has_value()) {
        std::string why;
        if (status::ok != descriptor_socket::create(own_.directory(), own_.identity(),
                                                    &socket_.emplace(), &why)) {
            log_line(log_level::warn, "VMM and pool memory of peers cannot be mapped: %s",
                     why.c_str());
        }
    }
    return socket_->valid() ? &*socket_ : nullptr;
}

fd_passing::waiting *fd_passing::wait_for(std::uint32_t owner, const remote_handle &handle)
{
    for (waiting &each : waits_) {
        if (each.owner == owner && is_of(each.handle, handle)) {
            return &each;
        }
    }
    if (nullptr == socket() ||
        !calls_.send(owner, {ipc_operation::want_descriptors, refuse_reason::none, {}, handle})) {
        return nullptr;
    }
    return &waits_.emplace_back(waiting{owner, handle, {}});
}

bool fd_passing::wait(std::uint32_t owner, const remote_handle &handle, void *waiter)
{
    waiting *place = wait_for(owner, handle);
    if (place != nullptr) {
        place->waiters.push_back(waiter);
    }
    return place != nullptr;
}

std::vector<void *> fd_passing::answered(std::uint32_t owner, const remote_handle &handle)
{
    std::vector<void *> waiters;
    std::erase_if(waits_, [&](waiting &each) {
        const bool is_it = each.owner == owner && is_of(each.handle, handle);
        if (is_it) {
            waiters = std::move(each.waiters);
        }
        return is_it;
    });
    empty_socket();
    return waiters;
}

// Takes everything out of the socket, whoever waits for it.
void fd_passing::empty_socket()
{
    descriptor_message message;
    while (socket_.has_value() && status::ok == socket_->receive(&message)) {
        // A sender that we do not know by its segment has no business here.
        std::uint32_t owner = 0;
        const peer *from = nullptr;
        while ((from = calls_.peer_at(owner)) != nullptr &&
               !(from->identity() == message.label.from)) {
            ++owner;
        }
        if (from != nullptr) {
            if (arrived_.size() >= most_arrived) {
                arrived_.erase(arrived_.begin());
            }
            arrived_.push_back({owner, std::move(message)});
        }
        message = descriptor_message{};
    }
}

status fd_passing::take(std::uint32_t owner, const remote_handle &handle, descriptor_message *out)
{
    const auto found = std::find_if(arrived_.begin(), arrived_.end(), [&](const arrived &each) {
        return each.owner == owner && is_of(handle, each.message.label);
    });
    if (found == arrived_.end()) {
        return status::not_ready;
    }
    *out = std::move(found->message);
    arrived_.erase(found);
    return status::ok;
}

void fd_passing::drop_over(std::uint32_t owner, const segment_view &of)
{
    std::erase_if(arrived_, [&](const arrived &each) {
        return each.owner == owner &&
               is_over(of, each.message.label.slot, each.message.label.generation);
    });
}

void fd_passing::answer(std::uint32_t to, const remote_handle &handle, bool sent)
{
    (void)calls_.send(to,
                      {sent ? ipc_operation::descriptors_sent : ipc_operation::descriptors_not_sent,
                       refuse_reason::none,
                       {},
                       handle});
}

// Sends, and answers unless the socket is full; `busy` then.
status fd_passing::try_to_send(const unsent &what)
{
    const peer *to = calls_.peer_at(what.to);
    std::vector<int> fds;
    for (const file_descriptor &each : what.descriptors) {
        fds.push_back(each.get());
    }
    const descriptor_label label{own_.identity(), what.handle.generation, what.handle.slot,
                                 static_cast<std::uint32_t>(fds.size())};
    const status s = to->closed() ? status::peer_gone
                                  : socket_->send(to->directory(), to->identity(), label,
                                                  what.lengths.data(), fds.data());
    if (status::busy != s) {
        answer(what.to, what.handle, status::ok == s);
    }
    return s;
}

void fd_passing::send(std::uint32_t to, const remote_handle &handle)
{
    unsent what{to, handle, {}, {}};
    if (nullptr == socket() ||
        status::ok != exports_.descriptors_of(handle, &what.descriptors, &what.lengths)) {
        answer(to, handle, false);
    } else if (status::busy == try_to_send(what)) {
        unsent_.push_back(std::move(what));
    }
}

void fd_passing::progress()
{
    // In order, and a full socket holds up what comes after it, also for other peers: this is rare.
    while (!unsent_.empty() && status::busy != try_to_send(unsent_.front())) {
        unsent_.erase(unsent_.begin());
    }
}

} // namespace gpusm
