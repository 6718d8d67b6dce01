// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// run.h: what all modes share: this rank's part in a run, its buffers, and the result of one size.
#ifndef GPUSM_PERF_RUN_H
#define GPUSM_PERF_RUN_H

#include "bench/common/buffer.h"
#include "bench/common/path_counters.h"
#include "bench/common/placed.h"
#include "bench/gpusm_perf/nccl_peer.h"
#include "bench/gpusm_perf/options.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::bench {

// One size, measured. Valid on rank 0; an `error` may come from any rank.
struct measurement {
    double latency_us = 0;      // latency: median of half the round trip; collectives: of a call
    double latency_mean_us = 0; // the mean of the same
    double bytes_per_s = 0;     // others: all pairs, both ways where there are two
    double messages_per_s = 0;
    std::string error; // corrupt data or a failed driver call, seen by this rank

    // Keeps the first error only. `where` says which iteration it was.
    void note(const std::string &where, const std::string &what)
    {
        if (error.empty() && !what.empty()) {
            error = where + ": " + what;
        }
    }
};

// Data messages, replies. The reply to a lead-in has a place of its own behind the other's.
inline constexpr int data_tag = 1;
inline constexpr int reply_tag = 2;
inline constexpr int reply_bytes = 4;
inline constexpr std::size_t lead_in_reply_at = 256;

// The messages of a window have places of their own, up to so many bytes of messages per side.
inline constexpr std::size_t window_bytes = std::size_t{256} << 20;

// A lead-in is what is sent, not timed, directly before something that is timed and checked. Making
// and comparing content leaves an idle link and other content in the caches, and without it the
// clock would start there, while in a run that checks nothing it starts when the window or
// ping-pong before it has just ended. One window, or one call, or so many ping-pongs.
inline constexpr int lead_in_ping_pongs = 3;

inline constexpr int most_collective_ranks = 64;

struct run {
    options opt;
    int rank = 0;
    int ranks = 1;
    int peer = 0;      // the other rank of this rank's pair; not used in collectives
    bool first = true; // this rank is the first of its pair (the sender, in one-way modes)
    const device *gpu = nullptr;
    std::unique_ptr<buffer> outgoing; // nullptr where this rank does not send data
    std::unique_ptr<buffer> incoming; // nullptr where this rank does not receive data
    std::unique_ptr<buffer> reply;    // in one-way modes: what is sent, or received, after a window
    std::unique_ptr<path_counters> counters;
    std::unique_ptr<nccl_peer> nccl; // moves the messages, unless null: then MPI does
    bool warmed_up = false;
    path_counts before_warmup;
    path_counts after_warmup;
    std::uint64_t next_seed = 1; // the same on all ranks, because all draw equally often

    bool one_way() const { return perf_mode::bw == opt.mode || perf_mode::mbw_mr == opt.mode; }
    bool sends() const { return first || !one_way(); }
    bool receives() const { return !first || !one_way(); }
    // Of a pair's first and second rank; in a collective all ranks send one, receive the other.
    memory_kind kind() const { return first ? opt.source : opt.destination; }
    memory_kind outgoing_kind() const { return opt.is_pairwise() ? kind() : opt.source; }
    memory_kind incoming_kind() const { return opt.is_pairwise() ? kind() : opt.destination; }
    int pairs() const { return ranks / 2; }

    // Called by every mode between warm-up and measurement; only the first call counts.
    void end_of_warmup()
    {
        if (!warmed_up) {
            warmed_up = true;
            after_warmup = counters->read();
        }
    }

    // Where messages of this size lie, in the outgoing buffer as well as in the incoming one.
    placement places_for(std::size_t len_bytes) const
    {
        if (perf_mode::alltoall == opt.mode) {
            return placement::packed(len_bytes, static_cast<std::size_t>(ranks));
        }
        int wanted = opt.is_bandwidth() ? opt.window : 1;
        if (opt.places > 0) {
            wanted = std::min(wanted, opt.places);
        }
        return placement::spaced(opt.extent_of(len_bytes), static_cast<std::size_t>(wanted),
                                 window_bytes);
    }
    // Where the messages of its lead-in lie, behind the others. Each ping-pong has its own place.
    placement lead_in_places_for(std::size_t len_bytes) const
    {
        const placement timed = places_for(len_bytes);
        if (perf_mode::latency != opt.mode) {
            return timed.behind(timed);
        }
        return placement::spaced(opt.extent_of(len_bytes), lead_in_ping_pongs, window_bytes)
            .behind(timed);
    }
    // What the places of any size take, in bytes, without those of lead-ins.
    std::size_t places_bytes() const
    {
        std::size_t most = 1;
        for (std::size_t size : opt.sizes) {
            most = std::max(most, places_for(size).end());
        }
        return most;
    }
    std::size_t buffer_bytes() const
    {
        std::size_t most = places_bytes();
        for (std::size_t size : opt.sizes) {
            most = std::max(most, opt.check ? lead_in_places_for(size).end() : 0);
        }
        return most;
    }
    std::size_t reply_buffer_bytes() const
    {
        return (opt.check ? lead_in_reply_at : 0) + reply_bytes;
    }

    // The first of `count` seeds that nothing in this run has used.
    std::uint64_t draw_seeds(std::size_t count)
    {
        const std::uint64_t drawn = next_seed;
        next_seed += count;
        return drawn;
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

inline double mean_of(const std::vector<double> &values)
{
    double sum = 0;
    for (double value : values) {
        sum += value;
    }
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Element by element the largest over all ranks, on every rank. Collective; all lists are equally
// long.
inline std::vector<double> slowest_of(const std::vector<double> &mine)
{
    std::vector<double> slowest(mine.size());
    (void)MPI_Allreduce(mine.data(), slowest.data(), static_cast<int>(mine.size()), MPI_DOUBLE,
                        MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

// "iteration 3", or for what comes before the first "warm-up -1".
inline std::string iteration_name(int iteration)
{
    return (iteration < 0 ? "warm-up " : "iteration ") + std::to_string(iteration);
}

// One measurement of one size; collective over all ranks. A mode's file holds its timing loop.
measurement measure_latency(run &r, std::size_t len_bytes);
measurement measure_bandwidth(run &r, std::size_t len_bytes);  // bw, bibw, mbw_mr
measurement measure_collective(run &r, std::size_t len_bytes); // alltoall, allreduce

} // namespace gpusm::bench

#endif
