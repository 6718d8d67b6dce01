// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// collective.cc: calls that all ranks make together, the slowest rank of every call: MPI_Alltoall,
// with one block for every rank, and MPI_Allreduce, a sum of floats.
#include "bench/gpusm_perf/message_set.h"
#include "bench/gpusm_perf/run.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace gpusm::bench {

namespace {

// What MPI_Allreduce adds up are integers so small that a float holds the sum of all ranks, and
// every part of it: whatever the order in which they are added, each bit of the result is known.
constexpr int term_bits = 18;
static_assert(most_collective_ranks << term_bits <= 1 << std::numeric_limits<float>::digits);

// A content_writer, but for the first argument: the sum of so many ranks' messages, whose seeds
// follow each other. Position and length are multiples of the size of a float.
void write_sum(std::size_t terms, void *to, std::size_t len_bytes, std::uint64_t seed,
               std::size_t position)
{
    const std::size_t count = len_bytes / sizeof(float);
    std::vector<std::uint32_t> drawn(count);
    std::vector<float> sums(count);
    static_assert(sizeof(drawn[0]) == sizeof(sums[0]));
    for (std::size_t term = 0; term < terms; ++term) {
        write_pattern(drawn.data(), len_bytes, seed + term, position);
        for (std::size_t i = 0; i < count; ++i) {
            sums[i] += static_cast<float>(drawn[i] >> (32 - term_bits));
        }
    }
    std::memcpy(to, sums.data(), len_bytes);
}

content_writer sum_of(std::size_t terms)
{
    return [terms](void *to, std::size_t len_bytes, std::uint64_t seed, std::size_t position) {
        write_sum(terms, to, len_bytes, seed, position);
    };
}

void prepare(const run &r, message_set *set)
{
    if (perf_mode::alltoall == r.opt.mode) {
        set->noun = "block from rank";
        return;
    }
    set->write_sent = sum_of(1);
    set->write_received = sum_of(static_cast<std::size_t>(r.ranks));
}

// New seeds for what this rank sends and receives in the next call.
void renew(run &r, message_set *set)
{
    const auto ranks = static_cast<std::size_t>(r.ranks);
    const auto mine = static_cast<std::size_t>(r.rank);
    if (perf_mode::allreduce == r.opt.mode) {
        const std::uint64_t base = r.draw_seeds(ranks);
        set->sent[0].seed = base + mine;
        set->received[0].seed = base;
        return;
    }
    const std::uint64_t base = r.draw_seeds(ranks * ranks);
    for (std::size_t other = 0; other < ranks; ++other) {
        set->sent[other].seed = base + mine * ranks + other;
        set->received[other].seed = base + other * ranks + mine;
    }
}

void call_by_nccl(const run &r, const placement &places)
{
    if (perf_mode::alltoall == r.opt.mode) {
        r.nccl->begin();
        for (int other = 0; other < r.ranks; ++other) {
            const std::size_t at = places.at(static_cast<std::size_t>(other));
            r.nccl->send(r.outgoing->at(at), places.len_bytes, other);
            r.nccl->receive(r.incoming->at(at), places.len_bytes, other);
        }
        r.nccl->end();
    } else {
        r.nccl->sum(r.outgoing->at(places.at(0)), r.incoming->at(places.at(0)),
                    places.len_bytes / sizeof(float));
    }
    r.nccl->finish();
}

void call(const run &r, const placement &places)
{
    const void *out = r.outgoing->at(places.at(0));
    void *in = r.incoming->at(places.at(0));
    const int len = static_cast<int>(places.len_bytes);
    if (nullptr != r.nccl) {
        call_by_nccl(r, places);
    } else if (perf_mode::alltoall == r.opt.mode) {
        (void)MPI_Alltoall(out, len, MPI_BYTE, in, len, MPI_BYTE, MPI_COMM_WORLD);
    } else {
        const int count = len / static_cast<int>(sizeof(float));
        (void)MPI_Allreduce(out, in, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
}

} // namespace

measurement measure_collective(run &r, std::size_t len_bytes)
{
    measurement result;
    message_set timed = timed_set(r, len_bytes);
    message_set lead_in = lead_in_set(r, len_bytes); // only when content is checked
    prepare(r, &timed);
    prepare(r, &lead_in);
    const int warmup = r.opt.warmup_for(len_bytes);
    const int iterations = r.opt.iterations_for(len_bytes);
    std::vector<double> mine_us;
    mine_us.reserve(static_cast<std::size_t>(iterations));
    if (r.opt.check) {
        result.note("before", poison_incoming(r, timed, lead_in));
    } else if (perf_mode::allreduce == r.opt.mode) {
        result.note("before", fill_outgoing(r, timed)); // numbers: any bytes might be NaNs
    }
    for (int i = -warmup; i < iterations; ++i) {
        if (0 == i) {
            r.end_of_warmup();
        }
        if (r.opt.check) {
            for (message_set *set : {&lead_in, &timed}) {
                renew(r, set);
                result.note(iteration_name(i), fill_outgoing(r, *set));
            }
            (void)MPI_Barrier(MPI_COMM_WORLD);
            call(r, lead_in.places);
        }
        // Every call starts on all ranks at once, and ends when the slowest has what it receives.
        (void)MPI_Barrier(MPI_COMM_WORLD);
        const auto start = clock_type::now();
        call(r, timed.places);
        if (i >= 0) {
            mine_us.push_back(seconds_since(start) * 1e6);
        }
        if (r.opt.check) {
            result.note(iteration_name(i), compare_incoming(r, lead_in));
            result.note(iteration_name(i), compare_incoming(r, timed));
        }
    }
    const std::vector<double> slowest_us = slowest_of(mine_us);
    result.latency_us = median_of(slowest_us);
    result.latency_mean_us = mean_of(slowest_us);
    return result;
}

} // namespace gpusm::bench
