// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/protocol/stream_receiver.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// Copies of a message by a device that run. Each takes the processor microseconds, so what comes
// meanwhile goes together.
constexpr std::size_t copies_at_once = 2;
// How long a peer may be silent before we look whether it still lives.
constexpr std::chrono::milliseconds life_check{100};
// Parts of one peer's messages that are on their way.
constexpr std::size_t parts_at_once = 32;

} // namespace

status stream_receiver::make_ring(const stream_pool &pool, inlet **out)
{
    const std::size_t slots_bytes = std::size_t{pool.pieces} * pool.slot_bytes;
    const bool on_device = pool.device != nullptr;
    std::uint32_t granule = 0;
    std::uint64_t slots = 0;
    stream_memory memory{};
    // Whole pages, in which nothing else lies: a sender with a device registers them, and the
    // driver refuses to copy what is registered in part.
    const std::size_t bytes =
        on_device ? sizeof(stream_ring) : in_system_pages(stream_slots_offset + slots_bytes);
    const std::size_t alignment = on_device ? page_bytes : system_page_bytes();
    // In this order, as slots cannot be given back. What was carved for a ring on a device that did
    // not come about is for the next one.
    if (on_device && spare_ring_ != 0) {
        granule = spare_ring_;
    } else if (status::ok != local_.own().carve(bytes, &granule, alignment)) {
        return status::no_memory;
    }
    if (on_device) {
        spare_ring_ = granule;
        if (status::ok != services_.make_slots(pool, slots_bytes, &slots, &memory)) {
            return status::no_memory;
        }
        spare_ring_ = 0;
    }
    auto *ring = reinterpret_cast<stream_ring *>(local_.own().at(granule));
    if (!on_device) {
        unsigned char *begin = local_.own().at(granule);
        slots = reinterpret_cast<std::uint64_t>(begin + stream_slots_offset);
        services_.made_ring(begin, bytes);
    }
    *out = &inlets_.emplace_back(
        inlet{&pool, stream_reader(ring, pool.pieces), granule, slots, memory});
    return status::ok;
}

status stream_receiver::ring_for(peer &from, const stream_pool &pool, inlet **out)
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
    // Where there is no memory for more, those that there are will do.
    return 0 == rings || status::ok == s ? s : status::busy;
}

status stream_receiver::fetch(peer &from, stream_fetch *message)
{
    const std::lock_guard guard(mutex_);
    inlet *ring = nullptr;
    if (const status s = ring_for(from, *message->pool, &ring); status::ok != s) {
        return s;
    }
    if (ring->fetches.size() >= stream_wants) {
        return status::busy;
    }
    if (ring->fetches.empty() && message->pool->rewinds) {
        ring->in.rewind();
    }
    const stream_pool &pool = *message->pool;
    if (pool.device != nullptr) {
        services_.name_slots(pool, ring->slots, &ring->memory);
    }
    const bool has_target = share_kind::none != message->target.handle.kind;
    const stream_memory *memory = pool.device != nullptr ? &ring->memory
                                  : has_target           ? &message->target
                                                         : nullptr;
    stream_message wants = {
        message->source,         message->address,
        message->len_bytes,      ring->fetches.empty() ? ring->in.next() : stream_continues,
        ring->granule,           ring->next_want,
        pool.slot_bytes,         pool.pieces,
        stream_memory_use::none, 0};
    wants.uses = nullptr == memory        ? stream_memory_use::none
                 : pool.device != nullptr ? stream_memory_use::slots
                                          : stream_memory_use::target;
    ring->in.want(wants.want, wants.len_bytes);
    const status s = services_.send(from, wants, memory);
    if (status::ok != s && status::busy != s) {
        return s;
    }
    ring->from = &from;
    ++ring->next_want;
    ring->fetches.push_back({message, wants.len_bytes, wants.len_bytes, wants.want});
    ring->quiet_since = {};
    ring->empty_polls = 0;
    if (!ring->listed) {
        ring->listed = true;
        receiving_.push_back(ring);
        active_.store(under_way(receiving_, &inlet::fetches), std::memory_order_relaxed);
    }
    return status::ok;
}

// Nothing more of it is wanted, and its message ends badly.
void stream_receiver::spoil(inlet *of, awaited *range, status outcome)
{
    range->outcome = status::ok == range->outcome ? outcome : range->outcome;
    range->end = 0;
    of->in.want_less(range->want, 0);
}

// Ends the message of a range of which nothing more comes, or has to come.
void stream_receiver::settle(inlet *of, awaited *range, ended_list *ended)
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
    ended->append(message);
}

void stream_receiver::pop_answered(inlet *of)
{
    while (!of->fetches.empty() && of->fetches.front().answered &&
           0 == of->fetches.front().copies) {
        of->fetches.pop_front();
        --of->reading;
    }
}

bool stream_receiver::end_copies(inlet *of, ended_list *ended)
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
bool stream_receiver::copy_run(inlet *from, awaited *range, const stream_piece_facts &first)
{
    const std::uint32_t slot_bytes = from->pool->slot_bytes;
    const std::uint32_t most_pieces = std::max(1U, from->in.pieces() / 4); // slots come back early
    std::uint64_t bytes = first.bytes;
    std::uint32_t pieces = 1;
    stream_piece_facts next;
    while (pieces < most_pieces && bytes == std::uint64_t{pieces} * slot_bytes &&
           from->in.look(from->ahead + pieces, &next) && stream_answer::bytes == next.answer &&
           next.slot == first.slot + pieces &&
           next.makes_sense(range->want, range->received + bytes, range->len_bytes, slot_bytes,
                            false)) {
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
bool stream_receiver::receive_some(inlet *from, std::uint64_t *copied_bytes, ended_list *ended)
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
    const bool with_target = nullptr == message || share_kind::none != message->target.handle.kind;
    if (!piece.makes_sense(range.want, range.received, range.len_bytes, from->pool->slot_bytes,
                           with_target)) {
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
    if (from->copies.empty()) {
        from->in.release(1);
    } else {
        from->copies.push_back({{0, 0, 0, stream_copy::is::done}, nullptr, 1});
        ++from->ahead;
    }
    const bool unreachable = stream_answer::unreachable == piece.answer;
    if (range.received == range.len_bytes || stream_answer::ended == piece.answer || unreachable) {
        range.answered = true;
        ++from->reading;
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
void stream_receiver::abandon(inlet *of, status outcome, ended_list *ended)
{
    for (awaited &each : of->fetches) {
        if (!each.answered) {
            each.answered = true;
            each.outcome = status::ok == each.outcome ? outcome : each.outcome;
        }
        settle(of, &each, ended);
    }
    of->reading = of->fetches.size();
    pop_answered(of);
}

// Takes a part of a range, at the end of what is left of it, or all that is left. False: that is
// nothing.
bool stream_receiver::begin_back(inlet *of, awaited *range)
{
    const stream_fetch *message = range->message;
    // When the sender has answered, what is left is left to this process.
    const bool all = range->answered;
    const std::uint64_t from =
        all ? range->received : std::max(range->received, of->in.begun_bytes(range->want));
    if (from >= range->end) {
        return false;
    }
    std::uint64_t begin = from;
    if (!all) {
        const std::uint64_t bytes = message->back_parts.next(range->end - from);
        const std::uint64_t at = range->end - bytes; // and the parts in front of it in whole pages
        begin = std::max(from, at / page_bytes * page_bytes);
    }
    back_part &made =
        of->backs.emplace_back(back_part{{message->destination + begin, message->address + begin,
                                          range->end - begin, stream_copy::is::running},
                                         range});
    range->end = begin;
    of->in.want_less(range->want, begin);
    ++range->copies;
    ++range->backs;
    to_begin_.push_back(&made);
    return true;
}

// Of the oldest messages first.
void stream_receiver::begin_backs(inlet *of)
{
    std::uint64_t begun_bytes = 0;
    for (std::size_t i = of->reading; i < of->fetches.size() && !of->from->closed(); ++i) {
        awaited &range = of->fetches[i];
        if (nullptr == range.message ||
            of->empty_polls < range.message->polls_before_back(range.received)) {
            continue;
        }
        while (range.backs < range.message->back_parts.at_once) {
            if (of->backs.size() >= parts_at_once || begun_bytes >= stream_bytes_at_once) {
                return;
            }
            if (!begin_back(of, &range)) {
                break;
            }
            begun_bytes += range.message->back_by_device ? 0 : of->backs.back().copy.len_bytes;
        }
    }
}

bool stream_receiver::end_backs(inlet *of, ended_list *ended)
{
    bool any = false;
    for (; !of->backs.empty() && stream_copy::is::running != of->backs.front().copy.state;
         any = true) {
        const back_part over = of->backs.front();
        of->backs.pop_front();
        --over.of->copies;
        --over.of->backs;
        if (stream_copy::is::failed == over.copy.state) {
            spoil(of, over.of, status::unsupported);
        }
        settle(of, over.of, ended);
    }
    pop_answered(of);
    return any;
}

// Nothing has come from a peer that owes us something.
void stream_receiver::wait_for(inlet *quiet, ended_list *ended)
{
    if (quiet->from->closed()) {
        abandon(quiet, status::peer_gone, ended);
        return;
    }
    if (quiet->reading == quiet->fetches.size()) {
        return;
    }
    ++quiet->empty_polls;
    const auto now = std::chrono::steady_clock::now();
    if (decltype(now){} == quiet->quiet_since) {
        quiet->quiet_since = now;
    } else if (now - quiet->quiet_since > life_check) {
        quiet->quiet_since = now;
        (void)quiet->from->lives();
    }
}

stream_fetch *stream_receiver::progress()
{
    ended_list ended;
    {
        const std::lock_guard guard(mutex_);
        const std::uint64_t most = stream_bytes_at_once * receiving_.size();
        std::uint64_t copied = 0;
        bool any = true;
        for (std::uint32_t steps = 0; any && copied < most && steps < most_stream_pieces; ++steps) {
            any = false;
            for (inlet *each : receiving_) {
                const bool came = receive_some(each, &copied, &ended);
                each->came = each->came || came;
                any = any || came;
            }
        }
        unlist(&receiving_, [&](inlet *each) {
            if (std::exchange(each->came, false)) {
                each->quiet_since = {};
                each->empty_polls = 0;
            } else {
                wait_for(each, &ended);
            }
            begin_backs(each);
            const bool over = each->fetches.empty() && each->copies.empty() && each->backs.empty();
            if (over && !each->from->closed()) { // which may still write to the ring
                each->from = nullptr;
            }
            return over;
        });
        active_.store(under_way(receiving_, &inlet::fetches), std::memory_order_relaxed);
    }
    if (!to_begin_.empty()) {
        // These may be system calls that copy a gigabyte.
        for (back_part *each : to_begin_) {
            services_.copy_back(*each->of->message, &each->copy);
        }
        to_begin_.clear();
        const std::lock_guard guard(mutex_);
        for (inlet *each : receiving_) {
            (void)end_backs(each, &ended);
        }
    }
    return ended.first();
}

} // namespace gpusm
