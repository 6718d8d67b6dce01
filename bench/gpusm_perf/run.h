// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// run.h: what all modes share: this rank's part in a run, its buffers, and the result of one size.
#ifndef GPUSM_PERF_RUN_H
#define GPUSM_PERF_RUN_H

#include "bench/common/buffer.h"
#include "bench/common/path_counters.h"
#include "bench/gpusm_perf/options.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::bench {

// One size, measured. Valid on rank 0; an `error` may come from any rank.
struct measurement {
    double latency_us = 0;      // latency: median of half the round trip
    double latency_mean_us = 0; // latency: mean of the same
    double bytes_per_s = 0;     // others: all pairs, both ways where there are two
    double messages_per_s = 0;
    std::string error; // corrupt data or a failed driver call, seen by this rank
};

// Data messages, acknowledgements.
inline constexpr int data_tag = 1;
inline constexpr int ack_tag = 2;

// Distinct places for the messages of a checked window are limited to so many bytes per side.
inline constexpr std::size_t checked_window_bytes = std::size_t{256} << 20;

struct run {
    options opt;
    int rank = 0;
    int ranks = 1;
    int peer = 0;      // the other rank of this rank's pair
    bool first = true; // this rank is the first of its pair (the sender, in one-way modes)
    const device *gpu = nullptr;
    std::unique_ptr<buffer> outgoing; // nullptr where this rank does not send data
    std::unique_ptr<buffer> incoming; // nullptr where this rank does not receive data
    std::unique_ptr<path_counters> counters;
    bool warmed_up = false;
    path_counts before_warmup;
    path_counts after_warmup;
    std::uint64_t next_seed = 1; // the same on all ranks, because all draw equally often

    memory_kind kind() const { return first ? opt.source : opt.destination; }
    memory_kind peer_kind() const { return first ? opt.destination : opt.source; }
    int pairs() const { return ranks / 2; }

    // Called by every mode between warm-up and measurement; only the first call counts.
    void end_of_warmup()
    {
        if (!warmed_up) {
            warmed_up = true;
            after_warmup = counters->read();
        }
    }

    // Places for messages in a checked window.
    static std::size_t stride_of(std::size_t len_bytes) { return (len_bytes + 255) / 256 * 256; }
    std::size_t places_for(std::size_t len_bytes) const
    {
        if (!opt.check || !opt.is_bandwidth() || 0 == len_bytes) {
            return 1;
        }
        const std::size_t fit = checked_window_bytes / stride_of(len_bytes);
        return std::clamp<std::size_t>(fit, 1, static_cast<std::size_t>(opt.window));
    }
    std::size_t buffer_bytes() const
    {
        std::size_t most = 1;
        for (std::size_t size : opt.sizes) {
            most = std::max(most, stride_of(size) * places_for(size));
        }
        return most;
    }
};

using clock_type = std::chrono::steady_clock;

inline double seconds_since(clock_type::time_point start)
{
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

inline double median_of(std::vector<double> values)
{
    if (values.empty()) {
        return 0;
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// One measurement of one size; collective over all ranks. A mode's file holds its timing loop.
measurement measure_latency(run &r, std::size_t len_bytes);
measurement measure_bandwidth(run &r, std::size_t len_bytes); // bw, bibw, mbw_mr

} // namespace gpusm::bench

#endif
