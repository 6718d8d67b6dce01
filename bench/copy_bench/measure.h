// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// measure.h: repetitions and their medians.
#ifndef GPUSM_COPY_BENCH_MEASURE_H
#define GPUSM_COPY_BENCH_MEASURE_H

#include "bench/copy_bench/submitter.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

using clock_type = std::chrono::steady_clock;

inline double us_between(clock_type::time_point from, clock_type::time_point to)
{
    return std::chrono::duration<double, std::micro>(to - from).count();
}

// One repetition: from the first call until the calls are over, and until the end is seen. In
// microseconds; below 0 where there is no such time.
struct sample {
    double submit_us = -1;
    double seen_us = -1;
};

struct samples {
    std::vector<sample> all;

    // Below 0 when there are none.
    double median_of(double sample::*member) const;
    double longest_of(double sample::*member) const;
};

inline constexpr int least_repetitions = 20;

// Does `once` at least `least` times and for `seconds`, after one time that does not count, and
// adds what it fills in to *to. Stops at the first sentence that is not empty, and returns it.
using repetition = std::function<std::string(sample *)>;
std::string repeat(const repetition &once, int least, double seconds, samples *to);

// One submission by that way.
std::string submit_once(submitter &by, copy_way way, copy_list &copies, sample *out);

// The ways that `by` has among these take turns, `seconds` for each; the copies of each way are
// compared afterwards.
using samples_by_way = std::array<samples, all_ways.size()>;
std::string measure_ways(workplace &at, submitter &by, std::span<const copy_way> ways,
                         const cell &of, double seconds, samples_by_way *to);

// Poisons the destination, does `once`, compares. A sentence begins with the cell and `name`.
std::string check_bytes(workplace &at, const cell &of, const std::string &name,
                        const repetition &once);

} // namespace gpusm::copy_bench

#endif
