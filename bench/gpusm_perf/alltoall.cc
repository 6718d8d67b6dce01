// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// alltoall.cc: MPI_Alltoall, one block for every rank, the slowest rank of every call.
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

// The blocks that this rank sends, or receives, in the call whose seeds begin at `base`.
std::vector<placed_message> blocks(const run &r, const placement &places, std::uint64_t base,
                                   bool sent)
{
    std::vector<placed_message> list;
    for (int other = 0; other < r.ranks; ++other) {
        const int from = sent ? r.rank : other;
        const int to = sent ? other : r.rank;
        list.push_back({places.at(static_cast<std::size_t>(other)), places.len_bytes,
                        base + static_cast<std::uint64_t>(from * r.ranks + to)});
    }
    return list;
}

} // namespace

measurement measure_alltoall(run &r, std::size_t len_bytes)
{
    measurement result;
    const int len = static_cast<int>(len_bytes);
    const placement places = r.places_for(len_bytes);
    const void *out = r.outgoing->at(places.at(0));
    void *in = r.incoming->at(places.at(0));
    const int warmup = r.opt.warmup_for(len_bytes);
    const int iterations = r.opt.iterations_for(len_bytes);
    std::vector<double> mine_us;
    mine_us.reserve(static_cast<std::size_t>(iterations));
    if (r.opt.check) {
        result.note("before", r.incoming->poison(0, places.end()));
    }
    for (int i = -warmup; i < iterations; ++i) {
        if (0 == i) {
            r.end_of_warmup();
        }
        std::uint64_t base = 0;
        if (r.opt.check) {
            base = r.draw_seeds(static_cast<std::size_t>(r.ranks * r.ranks));
            result.note(iteration_name(i),
                        fill_placed(*r.outgoing, places.end(), blocks(r, places, base, true)));
        }
        // Every call starts on all ranks at once, and ends when the slowest has its blocks.
        (void)MPI_Barrier(MPI_COMM_WORLD);
        const auto start = clock_type::now();
        (void)MPI_Alltoall(out, len, MPI_BYTE, in, len, MPI_BYTE, MPI_COMM_WORLD);
        if (i >= 0) {
            mine_us.push_back(seconds_since(start) * 1e6);
        }
        if (r.opt.check) {
            result.note(iteration_name(i),
                        compare_placed(*r.incoming, places.end(), blocks(r, places, base, false),
                                       "block from rank"));
        }
    }
    const std::vector<double> slowest_us = slowest_of(mine_us);
    result.latency_us = median_of(slowest_us);
    result.latency_mean_us = mean_of(slowest_us);
    return result;
}

} // namespace gpusm::bench
