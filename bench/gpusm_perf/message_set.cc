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

message_set set_at(const placement &places, std::size_t block_bytes)
{
    message_set set;
    set.places = places;
    const std::size_t len_bytes = places.len_bytes; // with the gaps
    const std::size_t block = block_bytes > 0 ? block_bytes : std::max<std::size_t>(1, len_bytes);
    for (std::size_t i = 0; i < places.places; ++i) {
        std::size_t at = 0;
        do { // an empty message is one, too
            set.sent.push_back({places.at(i) + at, std::min(block, len_bytes - at), 0});
            at += 2 * block;
        } while (at < len_bytes);
    }
    set.received = set.sent;
    return set;
}

} // namespace

message_type::message_type(const options &opt, std::size_t len_bytes)
    : count_(static_cast<int>(len_bytes))
{
    const int block = opt.block_bytes;
    if (0 == block || count_ <= block) {
        return;
    }
    // The last block may be short.
    const int whole = count_ / block;
    const int lengths[] = {1, count_ % block};
    const MPI_Aint places[] = {0, MPI_Aint{2} * block * whole};
    MPI_Datatype types[] = {MPI_DATATYPE_NULL, MPI_BYTE};
    (void)MPI_Type_vector(whole, block, 2 * block, MPI_BYTE, &types[0]);
    (void)MPI_Type_create_struct(0 == lengths[1] ? 1 : 2, lengths, places, types, &type_);
    (void)MPI_Type_free(&types[0]);
    (void)MPI_Type_commit(&type_);
    count_ = 1;
}

message_type::~message_type()
{
    if (MPI_BYTE != type_) {
        (void)MPI_Type_free(&type_);
    }
}

message_set timed_set(const run &r, std::size_t len_bytes)
{
    return set_at(r.places_for(len_bytes), static_cast<std::size_t>(r.opt.block_bytes));
}

message_set lead_in_set(const run &r, std::size_t len_bytes)
{
    message_set set =
        set_at(r.lead_in_places_for(len_bytes), static_cast<std::size_t>(r.opt.block_bytes));
    set.prefix = "lead-in ";
    return set;
}

void renew_between_peers(run &r, message_set *set)
{
    const std::size_t count = set->sent.size();
    const auto pairs = static_cast<std::size_t>(r.pairs());
    const auto pair = static_cast<std::size_t>(std::min(r.rank, r.peer));
    const std::uint64_t base = r.draw_seeds(pairs * 2 * count) + pair * 2 * count;
    for (std::size_t i = 0; i < count; ++i) {
        set->sent[i].seed = base + i + (r.first ? 0 : count);
        set->received[i].seed = base + i + (r.first ? count : 0);
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
    const std::size_t of_each = set.received.size() / set.places.places;
    const std::span<const placed_message> messages(set.received.data(), count * of_each);
    return compare_placed(*r.incoming, {set.places.begin, set.places.end_of(count - 1), messages,
                                        set.write_received, set.prefix + set.noun});
}

std::string poison_incoming(run &r, const message_set &timed, const message_set &lead_in)
{
    const std::size_t begin = timed.places.begin;
    return r.incoming->poison(begin, lead_in.places.end() - begin);
}

} // namespace gpusm::bench
