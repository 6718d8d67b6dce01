// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// measure.cc: repetitions and their medians.
#include "bench/copy_bench/measure.h"

#include "bench/copy_bench/table.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

namespace {

constexpr int rounds = 4; // turns of each way, so that what drifts does so for all of them
static_assert(least_repetitions % rounds == 0);

constexpr std::size_t most_repetitions = 100000;

} // namespace

double samples::median_of(double sample::*member) const
{
    if (all.empty()) {
        return -1;
    }
    std::vector<double> values;
    for (const sample &each : all) {
        values.push_back(each.*member);
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

double samples::longest_of(double sample::*member) const
{
    double longest = -1;
    for (const sample &each : all) {
        longest = std::max(longest, each.*member);
    }
    return longest;
}

std::string repeat(const repetition &once, int least, double seconds, samples *to)
{
    sample first;
    std::string error = once(&first);
    const auto begin = clock_type::now();
    for (int i = 0; error.empty() && to->all.size() < most_repetitions &&
                    (i < least || us_between(begin, clock_type::now()) < seconds * 1e6);
         ++i) {
        sample each;
        error = once(&each);
        to->all.push_back(each);
    }
    return error;
}

std::string submit_once(submitter &by, copy_way way, copy_list &copies, sample *out)
{
    const auto begin = clock_type::now();
    std::string error = by.submit(way, copies);
    const auto submitted = clock_type::now();
    if (error.empty()) {
        error = by.wait(way);
    }
    out->seen_us = us_between(begin, clock_type::now());
    out->submit_us = us_between(begin, submitted);
    return error;
}

std::string measure_ways(workplace &at, submitter &by, std::span<const copy_way> ways,
                         const cell &of, double seconds, samples_by_way *to)
{
    copy_list copies(at, of);
    for (int round = 0; round < rounds; ++round) {
        for (const copy_way way : ways) {
            if (!by.has(way)) {
                continue;
            }
            const std::string error =
                repeat([&](sample *out) { return submit_once(by, way, copies, out); },
                       least_repetitions / rounds, seconds / rounds, &(*to)[index_of(way)]);
            if (!error.empty()) {
                return error;
            }
        }
    }
    for (const copy_way way : ways) {
        if (!by.has(way)) {
            continue;
        }
        const std::string error = check_bytes(
            at, of, name_of(way), [&](sample *out) { return submit_once(by, way, copies, out); });
        if (!error.empty()) {
            return error;
        }
    }
    return {};
}

std::string check_bytes(workplace &at, const cell &of, const std::string &name,
                        const repetition &once)
{
    std::string error = at.poison(of);
    sample unused;
    if (error.empty()) {
        error = once(&unused);
    }
    if (error.empty()) {
        error = at.compare(of);
    }
    return error.empty() ? std::string()
                         : std::to_string(of.copies) + " x " + size_text(of.len_bytes) + ", " +
                               name + ": " + error;
}

} // namespace gpusm::copy_bench
