// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_back.cc: what a receiver gets of its messages by itself, from the end, and what becomes of
// a sender that does not answer.
#include "opal/mca/btl/gpusm/protocol/stream.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <chrono>

namespace gpusm {

namespace {

// How long a peer may be silent before we look whether it still lives.
constexpr std::uint64_t life_check_ns = 100'000'000;
// Parts of one peer's messages that are on their way.
constexpr std::size_t parts_at_once = 32;
// In one call of progress no further part is begun after so many bytes.
constexpr std::uint64_t bytes_at_once = 128 * 1024;

std::uint64_t now_ns()
{
    using clock = std::chrono::steady_clock;
    return static_cast<std::uint64_t>(
        std::chrono::nanoseconds(clock::now().time_since_epoch()).count());
}

} // namespace

// Takes a part of a range, at the end of what is left of it, or all that is left. False: that is
// nothing, or so little that the sender, who is at it, had better copy it.
bool stream_engine::begin_back(inlet *of, awaited *range)
{
    stream_fetch *message = range->message;
    if (nullptr == message || 0 == message->back_parts.most_bytes) {
        return false;
    }
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
        begin = std::max(from, at < page_bytes ? 0 : at / page_bytes * page_bytes);
    }
    back_part &made =
        of->backs.emplace_back(back_part{{message->destination + begin, message->address + begin,
                                          range->end - begin, stream_copy::is::running},
                                         range,
                                         of->from});
    range->end = begin;
    of->in.want_less(range->want, begin);
    ++range->copies;
    ++range->backs;
    to_begin_.push_back(&made);
    return true;
}

// Of the oldest messages first.
void stream_engine::begin_backs(inlet *of)
{
    if (of->from->closed()) {
        return;
    }
    std::uint64_t begun_bytes = 0;
    for (std::size_t i = of->reading; i < of->fetches.size(); ++i) {
        awaited &range = of->fetches[i];
        if (nullptr == range.message) {
            continue;
        }
        while (range.backs < range.message->back_parts.at_once) {
            if (of->backs.size() >= parts_at_once || begun_bytes >= bytes_at_once) {
                return;
            }
            if (!begin_back(of, &range)) {
                break;
            }
            begun_bytes += of->backs.back().copy.len_bytes;
        }
    }
}

bool stream_engine::end_backs(inlet *of, ended_list *ended)
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
void stream_engine::wait_for(inlet *quiet, ended_list *ended)
{
    if (quiet->from->closed()) {
        abandon(quiet, status::peer_gone, ended);
        return;
    }
    if (quiet->reading == quiet->fetches.size()) {
        return;
    }
    const std::uint64_t now = now_ns();
    if (0 == quiet->quiet_since_ns) {
        quiet->quiet_since_ns = now;
        return;
    }
    if (now - quiet->quiet_since_ns > life_check_ns) {
        quiet->quiet_since_ns = now;
        if (!quiet->from->shared().owner_alive()) {
            log_line(log_level::error, "process %u has ended with a message from it on the way",
                     static_cast<unsigned>(quiet->from->identity().vpid));
            quiet->from->close();
        }
    }
}

} // namespace gpusm
