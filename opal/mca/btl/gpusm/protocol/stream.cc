// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/protocol/stream.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

namespace gpusm {

namespace {

// Rings that a process has at most. Who streams to it at the same time beyond that is read by
// single copies.
constexpr std::size_t most_rings = 8;
// What a ring begins with, and after how many pieces it becomes longer by one.
constexpr std::uint32_t first_slots = 4;
constexpr std::uint32_t pieces_for_a_slot = 64;
// Of each direction with each peer, in one call of progress.
constexpr std::uint64_t bytes_at_once = 128 * 1024;
// In that time a sender inside MPI answers: it may be posting a window of messages.
constexpr std::uint64_t patience_ns = 30'000;
// A lower bound of how fast a single copy is, bytes per nanosecond.
constexpr std::uint64_t single_copy_bytes_per_ns = 8;
// How long a peer may be silent before we look whether it still lives.
constexpr std::uint64_t life_check_ns = 100'000'000;

std::uint64_t now_ns()
{
    using clock = std::chrono::steady_clock;
    return static_cast<std::uint64_t>(
        std::chrono::nanoseconds(clock::now().time_since_epoch()).count());
}

// In the message to a peer whose ring is not empty.
constexpr std::uint64_t continues = UINT64_MAX;

} // namespace

void stream_engine::ended_list::add(stream_fetch *message, status outcome)
{
    message->outcome = outcome;
    message->next = nullptr;
    *end = message;
    end = &message->next;
}

stream_engine::stream_engine(node &local, stream_services &services, bool threads)
    : local_(local), services_(services), mutex_(threads)
{
}

stream_engine::channel &stream_engine::channel_of(peer &with)
{
    if (nullptr == with.streams) {
        channels_.push_back(std::make_unique<channel>(with));
        with.streams = channels_.back().get();
    }
    return *static_cast<channel *>(with.streams);
}

void stream_engine::list(channel *busy)
{
    if (!busy->listed) {
        busy->listed = true;
        busy_.push_back(busy);
        active_.store(busy_.size(), std::memory_order_relaxed);
    }
}

bool stream_engine::borrow_ring(channel *to)
{
    std::size_t which = 0;
    while (which < rings_.size() && rings_[which].lent) {
        ++which;
    }
    if (which == rings_.size()) {
        std::uint32_t granule = 0;
        segment &own = local_.own();
        if (which == most_rings || status::ok != own.reserve(sizeof(stream_ring), &granule) ||
            status::ok != own.commit(granule, offsetof(stream_ring, data[first_slots]))) {
            return false;
        }
        auto *ring = reinterpret_cast<stream_ring *>(own.at(granule));
        ring->slots.store(first_slots, std::memory_order_relaxed);
        rings_.push_back({stream_reader(ring), ring, granule, false});
    }
    rings_[which].lent = true;
    to->ring = which;
    to->in = rings_[which].reader;
    to->in.stop_before(to->first_want); // what the last borrower's number was says nothing here
    return true;
}

// By a slot, if there is memory.
void stream_engine::lengthen(const lent_ring &longer)
{
    const std::uint32_t slots = longer.ring->slots.load(std::memory_order_relaxed);
    if (slots < stream_pieces) {
        const std::size_t at =
            offsetof(stream_ring, data) + std::size_t{slots} * stream_piece_bytes;
        const auto granule = static_cast<std::uint32_t>(longer.granule + at / granule_bytes);
        if (status::ok == local_.own().commit(granule, stream_piece_bytes)) {
            longer.ring->slots.store(slots + 1, std::memory_order_release);
        }
    }
}

status stream_engine::fetch(peer &from, stream_fetch *message)
{
    const std::lock_guard guard(mutex_);
    channel &with = channel_of(from);
    // One that has not answered the last time is not asked again before it has.
    if (!with.fetches.empty() && nullptr == with.fetches.front().message) {
        return status::busy;
    }
    const bool borrowed = no_ring == with.ring;
    if (borrowed && !borrow_ring(&with)) {
        return status::busy;
    }
    const stream_message wants = {message->source,
                                  message->address + message->received,
                                  message->len_bytes - message->received,
                                  borrowed ? with.in.next() : continues,
                                  rings_[with.ring].granule,
                                  with.first_want +
                                      static_cast<std::uint32_t>(with.fetches.size())};
    const status s = services_.send(from, wants);
    if (status::ok == s || status::busy == s) {
        with.fetches.push_back({message, message->received, wants.len_bytes, 0});
        with.quiet_since_ns = 0;
        list(&with);
        return status::ok;
    }
    if (borrowed) {
        rings_[with.ring].lent = false;
        with.ring = no_ring;
    }
    return s;
}

bool stream_engine::take(peer &from, const stream_message &message)
{
    const std::uint64_t offset = std::uint64_t{message.granule} * granule_bytes;
    if (!from.shared().holds(offset, sizeof(stream_ring)) || 0 != offset % page_bytes ||
        0 == message.len_bytes) {
        return false;
    }
    const std::lock_guard guard(mutex_);
    channel &with = channel_of(from);
    if (continues != message.sequence) {
        if (!with.wants.empty()) {
            return false;
        }
        with.out = stream_writer(reinterpret_cast<stream_ring *>(from.shared().base() + offset),
                                 message.sequence);
    } else if (!with.out.open()) {
        return false;
    }
    with.wants.push_back({services_.source_of(message), message.len_bytes, 0, message.want});
    list(&with);
    return true;
}

void stream_engine::forget(const unsigned char *memory, std::uint64_t len_bytes)
{
    const std::lock_guard guard(mutex_);
    for (channel *each : busy_) {
        for (wanted &range : each->wants) {
            if (range.source >= memory && range.source < memory + len_bytes) {
                range.source = nullptr;
            }
        }
    }
}

bool stream_engine::copy_in(channel *to)
{
    if (to->wants.empty() || !to->out.has_room()) {
        return false;
    }
    wanted &range = to->wants.front();
    if (nullptr == range.source || to->out.is_stopped(range.want)) {
        to->out.publish(range.sent, 0, range.want);
        to->wants.pop_front();
        return true;
    }
    const auto bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(stream_piece_bytes, range.len_bytes - range.sent));
    std::memcpy(to->out.data(), range.source + range.sent, bytes);
    to->out.publish(range.sent, bytes, range.want);
    range.sent += bytes;
    if (range.sent == range.len_bytes) {
        to->wants.pop_front();
    }
    return true;
}

bool stream_engine::copy_out(channel *from, ended_list *ended)
{
    stream_piece_facts piece;
    if (from->fetches.empty() || !from->in.look(&piece)) {
        return false;
    }
    awaited &range = from->fetches.front();
    stream_fetch *message = range.message;
    if (piece.want != from->first_want || piece.offset != range.received ||
        piece.bytes > stream_piece_bytes || piece.bytes > range.len_bytes - range.received) {
        log_line(log_level::error,
                 "process %u streamed a piece that makes no sense; nothing more is sent to it or "
                 "taken from it",
                 static_cast<unsigned>(from->other.identity().vpid));
        from->other.close();
        fail_all(from, status::bad_peer, ended);
        return false;
    }
    if (message != nullptr) {
        std::memcpy(message->destination + range.begin + range.received, piece.data, piece.bytes);
    }
    from->in.release();
    if (0 == from->in.next() % pieces_for_a_slot) {
        lengthen(rings_[from->ring]);
    }
    from->quiet_since_ns = 0;
    range.received += piece.bytes;
    if (0 == piece.bytes || range.received == range.len_bytes) {
        if (message != nullptr) {
            message->received = range.begin + range.received;
            ended->add(message, 0 == piece.bytes ? status::unsupported : status::ok);
        }
        from->fetches.pop_front();
        ++from->first_want;
    }
    return true;
}

void stream_engine::fail_all(channel *of, status outcome, ended_list *ended)
{
    for (; !of->fetches.empty(); of->fetches.pop_front(), ++of->first_want) {
        if (stream_fetch *message = of->fetches.front().message; message != nullptr) {
            ended->add(message, outcome);
        }
    }
}

// Nothing has come from a peer that owes us something.
void stream_engine::wait_for(channel *quiet, ended_list *ended)
{
    if (quiet->other.closed()) {
        fail_all(quiet, status::peer_gone, ended);
        return;
    }
    awaited &front = quiet->fetches.front();
    if (nullptr == front.message) {
        return;
    }
    const std::uint64_t now = now_ns();
    if (0 == quiet->quiet_since_ns) {
        quiet->quiet_since_ns = now;
        return;
    }
    const std::uint64_t waited_ns = now - quiet->quiet_since_ns;
    const bool can_read = 0 == (front.message->source.flags & no_single_copy);
    const std::uint64_t left = front.len_bytes - front.received;
    if (can_read && waited_ns > patience_ns + left / single_copy_bytes_per_ns) {
        quiet->in.stop_before(quiet->first_want +
                              static_cast<std::uint32_t>(quiet->fetches.size()));
        for (awaited &each : quiet->fetches) {
            each.message->received = each.begin + each.received;
            to_read_.push_back({&quiet->other, each.message});
            each.message = nullptr;
        }
    } else if (waited_ns > life_check_ns) {
        quiet->quiet_since_ns = now;
        if (!quiet->other.shared().owner_alive()) {
            log_line(log_level::error, "process %u has ended with a message from it on the way",
                     static_cast<unsigned>(quiet->other.identity().vpid));
            quiet->other.close();
        }
    }
}

stream_fetch *stream_engine::progress()
{
    ended_list ended;
    {
        const std::lock_guard guard(mutex_);
        for (std::size_t i = 0; i < busy_.size();) {
            channel *with = busy_[i];
            bool any_out = false;
            for (std::uint64_t bytes = 0; bytes < bytes_at_once; bytes += stream_piece_bytes) {
                const bool in = copy_in(with);
                const bool out = copy_out(with, &ended);
                any_out = any_out || out;
                if (!in && !out) {
                    break;
                }
            }
            if (!any_out && !with->fetches.empty()) {
                wait_for(with, &ended);
            }
            if (with->other.closed()) { // which may still write to the ring
                with->wants.clear();
            } else if (with->fetches.empty() && with->ring != no_ring) {
                rings_[with->ring].reader = with->in;
                rings_[with->ring].lent = false;
                with->ring = no_ring;
            }
            if (with->fetches.empty() && with->wants.empty()) {
                with->listed = false;
                busy_[i] = busy_.back();
                busy_.pop_back();
            } else {
                ++i;
            }
        }
        active_.store(busy_.size(), std::memory_order_relaxed);
    }
    // These system calls copy what may be a gigabyte.
    for (const unanswered &each : to_read_) {
        each.message->read_singly = true;
        ended.add(each.message, services_.read_rest(*each.from, *each.message));
    }
    to_read_.clear();
    return ended.first;
}

} // namespace gpusm
