// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// latency.cc: the ping-pong.
#include "bench/gpusm_perf/run.h"

namespace gpusm::bench {

namespace {

void ping_pong(run &r, int len, std::size_t place)
{
    void *out = r.outgoing->at(place);
    void *in = r.incoming->at(place);
    if (r.first) {
        (void)MPI_Send(out, len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD);
        (void)MPI_Recv(in, len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        (void)MPI_Recv(in, len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        (void)MPI_Send(out, len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD);
    }
}

} // namespace

measurement measure_latency(run &r, std::size_t len_bytes)
{
    measurement result;
    const int len = static_cast<int>(len_bytes);
    const placement places = r.places_for(len_bytes);
    const std::size_t place = places.at(0);
    const int warmup = r.opt.warmup_for(len_bytes);
    const int iterations = r.opt.iterations_for(len_bytes);
    std::vector<double> half_us;
    half_us.reserve(static_cast<std::size_t>(iterations));
    if (r.opt.check) {
        result.note("before", r.incoming->poison(0, places.end()));
    }
    for (int i = -warmup; i < iterations; ++i) {
        if (0 == i) {
            r.end_of_warmup();
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
        placed_message out = {place, len_bytes, 0};
        placed_message in = out;
        if (r.opt.check) {
            const std::uint64_t seed = r.draw_seeds(2);
            out.seed = seed + (r.first ? 0 : 1);
            in.seed = seed + (r.first ? 1 : 0);
            result.note(iteration_name(i), fill_placed(*r.outgoing, places.end(), {&out, 1}));
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
        const auto start = clock_type::now();
        ping_pong(r, len, place);
        if (i >= 0) {
            half_us.push_back(seconds_since(start) * 1e6 / 2);
        }
        if (r.opt.check) {
            result.note(iteration_name(i), compare_placed(*r.incoming, places.end(), {&in, 1}));
        }
    }
    result.latency_us = median_of(half_us);
    result.latency_mean_us = mean_of(half_us);
    return result;
}

} // namespace gpusm::bench
