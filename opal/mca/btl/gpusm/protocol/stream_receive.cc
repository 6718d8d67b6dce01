// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_receive.cc: the receiver's end of streams, and the rings, which are its own.
#include "opal/mca/btl/gpusm/protocol/stream.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace gpusm {

namespace {

// Copies of a message by a device that run. Each takes the processor microseconds, so what comes
// meanwhile goes together.
constexpr std::size_t copies_at_once = 2;
// The longest of them, so that the sender gets slots back early.
constexpr std::uint32_t most_pieces = stream_pieces / 4;

} // namespace

status stream_engine::make_ring(const stream_pool &pool, inlet **out)
{
    const std::size_t slots_bytes = std::size_t{stream_pieces} * pool.slot_bytes;
    const bool on_device = pool.device != nullptr;
    std::uint32_t granule = 0;
    std::uint64_t slots = 0;
    stream_memory memory{};
    const std::size_t bytes = sizeof(stream_ring) + (on_device ? 0 : slots_bytes);
    if (on_device && status::ok != services_.make_slots(pool, slots_bytes, &slots, &memory)) {
        return status::no_memory;
    }
    if (status::ok != local_.own().carve(bytes, &granule, page_bytes)) {
        return status::no_memory;
    }
    auto *ring = reinterpret_cast<stream_ring *>(local_.own().at(granule));
    if (!on_device) {
        slots = reinterpret_cast<std::uint64_t>(ring + 1);
        services_.made_ring(local_.own().at(granule), bytes);
    }
    inlet &made = inlets_.emplace_back();
    made.pool = &pool;
    made.in = stream_reader(ring);
    made.granule = granule;
    made.slots = slots;
    made.memory = memory;
    *out = &made;
    return status::ok;
}

status stream_engine::ring_for(peer &from, const stream_pool &pool, inlet **out)
{
    std::size_t rings = 0;
    inlet *free = nullptr;
    for (inlet &each : inlets_) {
        if (each.pool != &pool) {
            continue;
        }
        rings += nullptr == each.from || !each.from->closed() ? 1 : 0; // else it is lost
        if (each.from == &from) {
            *out = &each;
            return status::ok;
        }
        free = nullptr == free && nullptr == each.from ? &each : free;
    }
    if (free != nullptr) {
        *out = free;
        return status::ok;
    }
    const status s = rings < pool.most_rings ? make_ring(pool, out) : status::busy;
    return status::no_memory == s && rings > 0 ? status::busy : s;
}

status stream_engine::fetch(peer &from, stream_fetch *message)
{
    const std::lock_guard guard(mutex_);
    inlet *ring = nullptr;
    if (const status s = ring_for(from, *message->pool, &ring); status::ok != s) {
        return s;
    }
    if (ring->fetches.size() >= stream_wants) {
        return status::busy;
    }
    const bool on_device = message->pool->device != nullptr;
    const bool has_target = share_kind::none != message->target.handle.kind;
    const stream_message wants = {message->source,
                                  message->address,
                                  message->len_bytes,
                                  ring->fetches.empty() ? ring->in.next() : continues,
                                  ring->granule,
                                  ring->next_want,
                                  message->pool->slot_bytes,
                                  on_device    ? stream_memory_use::slots
                                  : has_target ? stream_memory_use::target
                                               : stream_memory_use::none};
    ring->in.want(wants.want, wants.len_bytes);
    const status s = services_.send(from, wants,
                                    on_device    ? &ring->memory
                                    : has_target ? &message->target
                                                 : nullptr);
    if (status::ok != s && status::busy != s) {
        return s;
    }
    ring->from = &from;
    ++ring->next_want;
    ring->fetches.push_back({message, wants.len_bytes, wants.len_bytes, wants.want});
    ring->quiet_since_ns = 0;
    if (!ring->listed) {
        ring->listed = true;
        receiving_.push_back(ring);
        count_active();
    }
    return status::ok;
}

void stream_engine::take_pieces(inlet *of, std::uint32_t pieces)
{
    if (of->copies.empty()) {
        of->in.release(pieces);
        return;
    }
    of->copies.push_back({{0, 0, 0, stream_copy::is::done}, nullptr, pieces});
    of->ahead += pieces;
}

// Nothing more of it is wanted, and its message ends badly.
void stream_engine::spoil(inlet *of, awaited *range, status outcome)
{
    range->outcome = status::ok == range->outcome ? outcome : range->outcome;
    range->end = 0;
    of->in.want_less(range->want, 0);
}

// Ends the message of a range of which nothing more comes, or has to come.
void stream_engine::settle(inlet *of, awaited *range, ended_list *ended)
{
    stream_fetch *message = range->message;
    const bool complete = range->received >= range->end;
    if (nullptr == message || range->copies > 0 ||
        (!range->answered && (!complete || !message->may_end_early ||
                              // The sender is writing to the target.
                              (share_kind::none != message->target.handle.kind &&
                               range->received < of->in.begun_bytes(range->want))))) {
        return;
    }
    range->message = nullptr;
    message->received = range->received;
    message->outcome = status::ok != range->outcome ? range->outcome
                       : complete                   ? status::ok
                                                    : status::unsupported;
    message->next = nullptr;
    *ended->end = message;
    ended->end = &message->next;
}

void stream_engine::pop_answered(inlet *of)
{
    while (!of->fetches.empty() && of->fetches.front().answered &&
           0 == of->fetches.front().copies) {
        of->fetches.pop_front();
        --of->reading;
    }
}

void stream_engine::settle_all(inlet *of, ended_list *ended)
{
    for (awaited &each : of->fetches) {
        settle(of, &each, ended);
    }
    pop_answered(of);
}

bool stream_engine::end_copies(inlet *of, ended_list *ended)
{
    bool any = false;
    for (; !of->copies.empty() && stream_copy::is::running != of->copies.front().copy.state;
         any = true) {
        const taken over = of->copies.front();
        of->copies.pop_front();
        of->in.release(over.pieces);
        of->ahead -= over.pieces;
        if (over.of != nullptr) {
            --over.of->copies;
            if (stream_copy::is::failed == over.copy.state) {
                spoil(of, over.of, status::unsupported);
            }
            settle(of, over.of, ended);
        }
    }
    pop_answered(of);
    return any;
}

// Has a device copy the pieces from `first` on that lie together. False: later, with more of them.
bool stream_engine::copy_run(inlet *from, awaited *range, const stream_piece_facts &first)
{
    const std::uint32_t slot_bytes = from->pool->slot_bytes;
    std::uint64_t bytes = first.bytes;
    std::uint32_t pieces = 1;
    stream_piece_facts next;
    while (pieces < most_pieces && bytes == std::uint64_t{pieces} * slot_bytes &&
           from->in.look(from->ahead + pieces, &next) && stream_answer::bytes == next.answer &&
           next.want == first.want && next.slot == first.slot + pieces &&
           next.offset == first.offset + bytes && next.bytes > 0 && next.bytes <= slot_bytes &&
           next.bytes <= range->len_bytes - range->received - bytes) {
        bytes += next.bytes;
        ++pieces;
    }
    const bool completes = range->received + bytes >= range->end;
    if (!completes && pieces < most_pieces && from->copies.size() >= copies_at_once) {
        return false;
    }
    stream_fetch *message = range->message;
    taken &made = from->copies.emplace_back(taken{
        {message->destination + range->received,
         from->slots + std::uint64_t{first.slot} * slot_bytes, bytes, stream_copy::is::running},
        range,
        pieces});
    from->ahead += pieces;
    range->received += bytes;
    ++range->copies;
    services_.copy_out(*message, &made.copy);
    return true;
}

// Takes the next step. False: there was none to take.
bool stream_engine::receive_some(inlet *from, std::uint64_t *copied_bytes, ended_list *ended)
{
    bool any = !from->copies.empty() && end_copies(from, ended);
    any = (!from->backs.empty() && end_backs(from, ended)) || any;
    stream_piece_facts piece;
    if (from->reading == from->fetches.size() || !from->in.look(from->ahead, &piece)) {
        return any;
    }
    awaited &range = from->fetches[from->reading];
    stream_fetch *message = range.message;
    const bool is_bytes = stream_answer::bytes == piece.answer;
    const bool has_sense =
        piece.want == range.want && piece.answer <= stream_answer::unreachable &&
        (!is_bytes || (piece.offset == range.received && piece.bytes > 0 &&
                       piece.bytes <= from->pool->slot_bytes &&
                       piece.bytes <= range.len_bytes - range.received)) &&
        (stream_answer::written != piece.answer ||
         (piece.offset > range.received && piece.offset <= range.len_bytes &&
          (nullptr == message || share_kind::none != message->target.handle.kind)));
    if (!has_sense) {
        log_line(log_level::error,
                 "process %u streamed a piece that makes no sense; nothing more is sent to it or "
                 "taken from it",
                 static_cast<unsigned>(from->from->identity().vpid));
        from->from->close();
        abandon(from, status::bad_peer, ended);
        return false;
    }
    // What is behind the end has come in another way.
    const bool is_wanted = message != nullptr && range.received < range.end;
    if (is_bytes && is_wanted && message->to_device) {
        any = copy_run(from, &range, piece) || any;
        if (range.received == range.len_bytes) {
            range.answered = true;
            ++from->reading;
        }
        return any;
    }
    if (is_bytes) {
        if (is_wanted) {
            std::memcpy(reinterpret_cast<unsigned char *>(message->destination) + range.received,
                        reinterpret_cast<const unsigned char *>(from->slots) +
                            std::uint64_t{piece.slot} * from->pool->slot_bytes,
                        piece.bytes);
            *copied_bytes += from->pool->slot_bytes;
        }
        range.received += piece.bytes;
    } else if (stream_answer::written == piece.answer) {
        if (message != nullptr) {
            message->written += piece.offset - range.received;
        }
        range.received = piece.offset;
    }
    take_pieces(from, 1);
    if (range.received == range.len_bytes || stream_answer::ended == piece.answer ||
        stream_answer::unreachable == piece.answer) {
        range.answered = true;
        ++from->reading;
        const bool unreachable = stream_answer::unreachable == piece.answer;
        // What the sender does not bring this process gets by itself, where it has begun to.
        if (message != nullptr && message->back_parts.most_bytes > 0) {
            message->sender_cannot = unreachable;
            (void)begin_back(from, &range);
        } else if (unreachable && status::ok == range.outcome) {
            range.outcome = status::not_found;
        }
    }
    settle(from, &range, ended);
    pop_answered(from);
    return true;
}

// The peer is closed. What comes of its messages is over when no device copies any more.
void stream_engine::abandon(inlet *of, status outcome, ended_list *ended)
{
    for (awaited &each : of->fetches) {
        if (!each.answered) {
            each.answered = true;
            each.outcome = status::ok == each.outcome ? outcome : each.outcome;
        }
    }
    of->reading = of->fetches.size();
    settle_all(of, ended);
}

} // namespace gpusm
