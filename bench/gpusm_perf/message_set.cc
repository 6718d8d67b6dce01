// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// message_set.cc: seeds, content and comparison of the messages that are checked together.
#include "bench/gpusm_perf/message_set.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace gpusm::bench {

namespace {

message_set set_at(const placement &places)
{
    message_set set;
    set.places = places;
    for (std::size_t i = 0; i < places.places; ++i) {
        set.sent.push_back({places.at(i), places.len_bytes, 0});
    }
    set.received = set.sent;
    return set;
}

} // namespace

message_set timed_set(const run &r, std::size_t len_bytes)
{
    return set_at(r.places_for(len_bytes));
}

message_set lead_in_set(const run &r, std::size_t len_bytes)
{
    message_set set = set_at(r.lead_in_places_for(len_bytes));
    set.prefix = "lead-in ";
    return set;
}

void renew_between_peers(run &r, message_set *set)
{
    const std::size_t places = set->places.places;
    const auto pairs = static_cast<std::size_t>(r.pairs());
    const auto pair = static_cast<std::size_t>(std::min(r.rank, r.peer));
    const std::uint64_t base = r.draw_seeds(pairs * 2 * places) + pair * 2 * places;
    for (std::size_t i = 0; i < places; ++i) {
        set->sent[i].seed = base + i + (r.first ? 0 : places);
        set->received[i].seed = base + i + (r.first ? places : 0);
    }
}

std::string fill_outgoing(run &r, const message_set &set)
{
    return fill_placed(*r.outgoing, {set.places.begin, set.places.end(), set.sent, set.write_sent,
                                     set.prefix + set.noun});
}

std::string compare_incoming(const run &r, const message_set &set)
{
    return compare_incoming(r, set, set.places.places);
}

std::string compare_incoming(const run &r, const message_set &set, std::size_t count)
{
    const std::span<const placed_message> messages(set.received.data(), count);
    return compare_placed(*r.incoming, {set.places.begin, set.places.end_of(count - 1), messages,
                                        set.write_received, set.prefix + set.noun});
}

std::string poison_incoming(run &r, const message_set &timed, const message_set &lead_in)
{
    const std::size_t begin = timed.places.begin;
    return r.incoming->poison(begin, lead_in.places.end() - begin);
}

} // namespace gpusm::bench
