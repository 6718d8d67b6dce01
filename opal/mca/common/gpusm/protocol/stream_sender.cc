// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/protocol/stream_sender.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace gpusm {

namespace {

// Parts that are on their way to targets, of several messages.
constexpr std::size_t parts_at_once = 32;

} // namespace

bool stream_sender::take(peer &from, const stream_message &message, const stream_memory *memory)
{
    const std::uint64_t offset = std::uint64_t{message.granule} * granule_bytes;
    const bool in_segment = stream_memory_use::slots != message.uses;
    const std::uint64_t slots_bytes = std::uint64_t{message.pieces} * message.slot_bytes;
    const std::uint64_t bytes =
        in_segment ? stream_slots_offset + slots_bytes : sizeof(stream_ring);
    if (!from.shared().holds(offset, bytes) || 0 != offset % page_bytes ||
        0 == message.slot_bytes || 0 == message.len_bytes || 0 == message.pieces ||
        message.pieces > most_stream_pieces ||
        (stream_memory_use::none == message.uses) != (nullptr == memory) ||
        (memory != nullptr &&
         !covers(memory->handle, memory->address, in_segment ? message.len_bytes : slots_bytes))) {
        return false;
    }
    const std::lock_guard guard(mutex_);
    outlet &to = outlets_[{&from, message.granule}];
    if (stream_continues != message.sequence) {
        if (!to.wants.empty()) {
            return false;
        }
        to.to = &from;
        to.out = stream_writer(reinterpret_cast<stream_ring *>(from.shared().base() + offset),
                               message.pieces, message.sequence);
        to.slot_bytes = message.slot_bytes;
        to.most_pieces = std::max(1U, message.pieces / (in_segment ? 16 : 4));
    } else if (!to.out.open() || to.slot_bytes != message.slot_bytes ||
               to.out.pieces() != message.pieces || to.wants.size() >= stream_wants) {
        return false;
    }
    wanted &range = to.wants.emplace_back();
    range.len_bytes = message.len_bytes;
    range.want = message.want;
    range.source.slots =
        reinterpret_cast<std::uint64_t>(from.shared().base() + offset + stream_slots_offset);
    services_.open(from, message, memory, &range.source);
    if (!to.listed) {
        to.listed = true;
        sending_.push_back(&to);
        active_.store(under_way(sending_, &outlet::wants), std::memory_order_relaxed);
    }
    return true;
}

void stream_sender::forget(const void *owner)
{
    const std::lock_guard guard(mutex_);
    for (outlet *each : sending_) {
        for (wanted &range : each->wants) {
            if (range.source.owner == owner) {
                range.source.memory = nullptr;
            }
        }
    }
}

bool stream_sender::forget_peer(const peer &ended)
{
    const std::lock_guard guard(mutex_);
    const auto is_its = [&](const auto &each) { return each.first.first == &ended; };
    if (std::any_of(outlets_.begin(), outlets_.end(),
                    [&](const auto &each) { return is_its(each) && each.second.listed; })) {
        return false;
    }
    std::erase_if(outlets_, is_its);
    return true;
}

void stream_sender::end_range(outlet *of)
{
    services_.close(of->wants.front().source);
    of->wants.pop_front();
    of->begun -= of->begun > 0 ? 1 : 0;
}

// Publishes what the services have copied.
bool stream_sender::end_batches(outlet *of)
{
    bool any = false;
    for (; !of->batches.empty() && stream_copy::is::running != of->batches.front().copy.state;
         any = true) {
        const batch ended = of->batches.front();
        wanted &range = *ended.of;
        of->batches.pop_front();
        range.bad = range.bad || stream_copy::is::failed == ended.copy.state ||
                    nullptr == range.source.memory;
        --range.batches;
        const bool last = 0 == range.batches && of->begun > 0;
        const bool has_bytes = ended.copy.len_bytes > 0;
        for (std::uint32_t i = 0; i < ended.pieces; ++i) {
            const std::uint64_t offset = std::uint64_t{i} * of->slot_bytes;
            const auto bytes = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(of->slot_bytes, ended.copy.len_bytes - offset));
            const bool ends = last && i + 1 == ended.pieces;
            const stream_answer answer = range.source.unreachable ? stream_answer::unreachable
                                         : !has_bytes             ? stream_answer::ended
                                         : range.bad
                                             ? ends ? stream_answer::ended : stream_answer::skipped
                                         : 0 != range.source.target ? stream_answer::written
                                                                    : stream_answer::bytes;
            const std::uint64_t at =
                ended.offset + (stream_answer::written == answer ? ended.copy.len_bytes : offset);
            of->out.publish({at, stream_answer::bytes == answer ? bytes : 0, range.want, answer});
        }
        if (last) {
            end_range(of);
        }
    }
    return any;
}

void stream_sender::copy_piece(outlet *to, wanted *range, std::uint64_t end)
{
    end = to->out.begin(range->want, range->begun, std::min(end, range->begun + to->slot_bytes));
    if (end == range->begun) {
        return;
    }
    const auto bytes = static_cast<std::uint32_t>(end - range->begun);
    std::memcpy(reinterpret_cast<unsigned char *>(range->source.slots) +
                    std::uint64_t{to->out.slot()} * to->slot_bytes,
                range->source.memory + range->begun, bytes);
    to->out.claim(1);
    to->out.publish({range->begun, bytes, range->want, stream_answer::bytes});
    range->begun = end;
    if (range->begun == range->len_bytes) {
        end_range(to);
    }
}

// One copy, into as many slots as there are or to the target. The first ones of a message are
// short, so that the receiver starts early; then they double. Returns the bytes of one that is
// over: the processor has made it.
std::uint64_t stream_sender::begin_batch(outlet *to, wanted *range, std::uint64_t end)
{
    const stream_source &source = range->source;
    const std::uint64_t begun = range->begun;
    std::uint64_t destination = source.target + begun;
    if (0 == source.target) {
        destination = source.slots + std::uint64_t{to->out.slot()} * to->slot_bytes;
        const auto slots_of = [to](std::uint64_t bytes) {
            return (bytes + to->slot_bytes - 1) / to->slot_bytes;
        };
        const auto wish = static_cast<std::uint32_t>(
            std::min({slots_of(end - begun), std::max<std::uint64_t>(slots_of(begun), 1),
                      std::uint64_t{to->most_pieces}}));
        end = std::min(end,
                       begun + std::uint64_t{std::min(wish, to->out.room(wish))} * to->slot_bytes);
    } else if (source.parts.most_bytes > 0) {
        end = begun + source.parts.next(end - begun);
    }
    end = to->out.begin(range->want, begun, end);
    if (end == begun) {
        return 0;
    }
    const std::uint64_t bytes = end - begun;
    const auto pieces = static_cast<std::uint32_t>(
        0 != source.target ? 1 : (bytes + to->slot_bytes - 1) / to->slot_bytes);
    batch &made = to->batches.emplace_back(
        batch{{destination, reinterpret_cast<std::uint64_t>(source.memory + begun), bytes,
               stream_copy::is::running},
              range,
              begun,
              pieces});
    to->out.claim(pieces);
    range->begun = end;
    ++range->batches;
    to->begun += range->begun == range->len_bytes ? 1 : 0;
    services_.copy_in(source, &made.copy);
    return stream_copy::is::running == made.copy.state ? 0 : bytes;
}

// Takes the next step. False: there was none to take.
bool stream_sender::send_some(outlet *to, std::uint64_t *copied_bytes)
{
    const bool any = !to->batches.empty() && end_batches(to);
    if (to->begun == to->wants.size() || 0 == to->out.room()) {
        return any;
    }
    wanted &range = to->wants[to->begun];
    const std::uint64_t end = std::min(range.len_bytes, to->out.wanted_bytes(range.want));
    if (nullptr == range.source.memory || range.bad || range.begun >= end) {
        // Its end, without a copy, so that the next range need not wait for what runs.
        to->batches.push_back({{0, 0, 0, stream_copy::is::done}, &range, range.begun, 1});
        to->out.claim(1);
        ++range.batches;
        ++to->begun;
        (void)end_batches(to);
    } else if (range.source.by_services) {
        const bool alone = to->begun + 1 == to->wants.size();
        if (range.source.parts.most_bytes > 0 &&
            (to->batches.size() >= parts_at_once ||
             (alone && range.batches >= range.source.parts.at_once))) {
            return any;
        }
        *copied_bytes += begin_batch(to, &range, end);
    } else if (to->batches.empty()) {
        copy_piece(to, &range, end);
        *copied_bytes += to->slot_bytes;
    } else {
        return any;
    }
    return true;
}

// The peer is closed. What the services copy to it has to end first.
void stream_sender::drop(outlet *of)
{
    (void)end_batches(of);
    while (of->batches.empty() && !of->wants.empty()) {
        end_range(of);
    }
}

void stream_sender::progress()
{
    const std::lock_guard guard(mutex_);
    const std::uint64_t most = stream_bytes_at_once * sending_.size();
    std::uint64_t copied = 0;
    bool any = true;
    for (std::uint32_t steps = 0; any && copied < most && steps < most_stream_pieces; ++steps) {
        any = false;
        for (outlet *each : sending_) {
            any = send_some(each, &copied) || any;
        }
    }
    unlist(&sending_, [this](outlet *each) {
        if (each->to->closed()) {
            drop(each);
        }
        return each->wants.empty();
    });
    active_.store(under_way(sending_, &outlet::wants), std::memory_order_relaxed);
}

} // namespace gpusm
