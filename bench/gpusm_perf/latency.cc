// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// latency.cc: the ping-pong.
#include "bench/gpusm_perf/run.h"

#include <numeric>

namespace gpusm::bench {

namespace {

void ping_pong(run &r, int len)
{
    if (r.first) {
        (void)MPI_Send(r.outgoing->data(), len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD);
        (void)MPI_Recv(r.incoming->data(), len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
    } else {
        (void)MPI_Recv(r.incoming->data(), len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
        (void)MPI_Send(r.outgoing->data(), len, MPI_BYTE, r.peer, data_tag, MPI_COMM_WORLD);
    }
}

} // namespace

measurement measure_latency(run &r, std::size_t len_bytes)
{
    measurement result;
    const int len = static_cast<int>(len_bytes);
    for (int i = 0; i < r.opt.warmup_for(len_bytes); ++i) {
        ping_pong(r, len);
    }
    r.end_of_warmup();
    const int iterations = r.opt.iterations_for(len_bytes);
    std::vector<double> half_us;
    half_us.reserve(static_cast<std::size_t>(iterations));
    (void)MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < iterations; ++i) {
        const std::uint64_t seed = r.next_seed;
        if (r.opt.check) {
            r.next_seed += 2;
            const std::string error = r.outgoing->fill(0, len_bytes, seed + (r.first ? 0 : 1));
            if (result.error.empty()) {
                result.error = error;
            }
            (void)MPI_Barrier(MPI_COMM_WORLD);
        }
        const auto start = clock_type::now();
        ping_pong(r, len);
        half_us.push_back(seconds_since(start) * 1e6 / 2);
        if (r.opt.check && result.error.empty()) {
            result.error = r.incoming->compare(0, len_bytes, seed + (r.first ? 1 : 0));
            if (!result.error.empty()) {
                result.error = "iteration " + std::to_string(i) + ": " + result.error;
            }
        }
    }
    result.latency_us = median_of(half_us);
    result.latency_mean_us =
        std::accumulate(half_us.begin(), half_us.end(), 0.0) / static_cast<double>(iterations);
    return result;
}

} // namespace gpusm::bench
