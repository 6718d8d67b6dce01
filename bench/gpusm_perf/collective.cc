// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// collective.cc: calls that all ranks make together, the slowest rank of every call: MPI_Alltoall,
// with one block for every rank.
#include "bench/gpusm_perf/message_set.h"
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

// New seeds for the blocks that this rank sends and receives in the next call.
void renew(run &r, message_set *set)
{
    const auto ranks = static_cast<std::size_t>(r.ranks);
    const auto mine = static_cast<std::size_t>(r.rank);
    const std::uint64_t base = r.draw_seeds(ranks * ranks);
    for (std::size_t other = 0; other < ranks; ++other) {
        set->sent[other].seed = base + mine * ranks + other;
        set->received[other].seed = base + other * ranks + mine;
    }
}

void call(const run &r, const placement &places)
{
    const void *out = r.outgoing->at(places.at(0));
    void *in = r.incoming->at(places.at(0));
    const int len = static_cast<int>(places.len_bytes);
    (void)MPI_Alltoall(out, len, MPI_BYTE, in, len, MPI_BYTE, MPI_COMM_WORLD);
}

} // namespace

measurement measure_collective(run &r, std::size_t len_bytes)
{
    measurement result;
    message_set timed = timed_set(r, len_bytes);
    message_set lead_in = lead_in_set(r, len_bytes); // only when content is checked
    timed.noun = lead_in.noun = "block from rank";
    const int warmup = r.opt.warmup_for(len_bytes);
    const int iterations = r.opt.iterations_for(len_bytes);
    std::vector<double> mine_us;
    mine_us.reserve(static_cast<std::size_t>(iterations));
    if (r.opt.check) {
        result.note("before", poison_incoming(r, timed, lead_in));
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
