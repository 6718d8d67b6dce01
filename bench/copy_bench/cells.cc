// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// cells.cc: --table, all counts and sizes.
#include "bench/copy_bench/measure.h"
#include "bench/copy_bench/parts.h"
#include "bench/copy_bench/table.h"

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

namespace {

constexpr double tolerance = 1.10; // of the best way's time

// How often the choice was good, over all cells.
struct score {
    int cells = 0;
    int good = 0;
    double worst = 0; // time of the choice / time of the best way
    std::string worst_cell;
};

std::string print_cell(const options &opt, workplace &at, submitter &by, const cell &of,
                       const table &out, score *total)
{
    samples_by_way measured;
    const std::string error = measure_ways(at, by, all_ways, of, opt.seconds, &measured);
    if (!error.empty()) {
        return error;
    }
    const copy_way choice = choose_way(of.copies, of.len_bytes, copy_limits{},
                                       by.has(copy_way::kernel), by.has(copy_way::batch));
    copy_way best = copy_way::single;
    std::vector<std::string> row = {std::to_string(of.copies), size_text(of.len_bytes)};
    for (const copy_way way : all_ways) {
        const double us = measured[index_of(way)].median_of(&sample::seen_us);
        row.push_back(us_text(us));
        if (us >= 0 && us < measured[index_of(best)].median_of(&sample::seen_us)) {
            best = way;
        }
    }
    const double choice_us = measured[index_of(choice)].median_of(&sample::seen_us);
    const double ratio = choice_us / measured[index_of(best)].median_of(&sample::seen_us);
    row.push_back(name_of(choice));
    row.push_back(name_of(best));
    row.push_back(ratio <= tolerance ? "yes" : "no");
    row.push_back(gb_per_s_text(static_cast<double>(of.bytes()) / choice_us / 1e3));
    for (const copy_way way : all_ways) {
        row.push_back(us_text(measured[index_of(way)].median_of(&sample::submit_us)));
    }
    out.row(row);
    total->cells += 1;
    total->good += ratio <= tolerance ? 1 : 0;
    if (ratio > total->worst) {
        total->worst = ratio;
        total->worst_cell = row[0] + " x " + row[1];
    }
    return {};
}

} // namespace

std::string print_cells(const options &opt, workplace &at, submitter &by)
{
    print_title(opt.markdown, "copies of one size from a peer GPU, until all are seen");
    const table out(opt.markdown,
                    {"copies", "size", "single us", "batch us", "kernel us", "choice", "best",
                     "within 10 %", "GB/s", "submit single", "submit batch", "submit kernel"});
    score total;
    for (const std::size_t len_bytes : opt.sizes) {
        for (const std::uint32_t copies : opt.counts) {
            const cell of{copies, len_bytes};
            if (of.bytes() > most_cell_bytes) {
                continue;
            }
            const std::string error = print_cell(opt, at, by, of, out, &total);
            if (!error.empty()) {
                return error;
            }
        }
    }
    char text[160];
    std::snprintf(
        text, sizeof(text),
        "gpusm's choice is within 10 %% of the best in %d of %d cells; at most %.2f times "
        "the best (%s)",
        total.good, total.cells, total.worst, total.worst_cell.c_str());
    print_remark(opt.markdown, text);
    return {};
}

} // namespace gpusm::copy_bench
