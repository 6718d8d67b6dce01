// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// grid.cc: --grid, the kernel with different numbers of blocks.
#include "bench/copy_bench/measure.h"
#include "bench/copy_bench/parts.h"
#include "bench/copy_bench/table.h"

#include <string>
#include <vector>

namespace gpusm::copy_bench {

namespace {

constexpr unsigned grids[] = {4, 8, 16, 24, 32, 48, 64, 96, 128};
constexpr copy_way kernel_only[] = {copy_way::kernel};

} // namespace

std::string print_grid(const options &opt, workplace &at)
{
    print_title(opt.markdown, "the gather kernel by its number of blocks");
    std::vector<std::string> titles = {"blocks"};
    for (const cell &of : grid_cells) {
        const std::string shape = std::to_string(of.copies) + " x " + size_text(of.len_bytes);
        titles.push_back(shape + " us");
        titles.push_back(shape + " GB/s");
    }
    const table out(opt.markdown, titles);
    for (const unsigned blocks : grids) {
        submitter by(at, blocks);
        std::string error = by.open();
        if (error.empty() && !by.has(copy_way::kernel)) {
            error = "--grid: the driver does not take the gather kernel";
        }
        std::vector<std::string> row = {std::to_string(blocks)};
        for (const cell &of : grid_cells) {
            samples_by_way measured;
            if (error.empty()) {
                error = measure_ways(at, by, kernel_only, of, opt.seconds, &measured);
            }
            const double us = measured[index_of(copy_way::kernel)].median_of(&sample::seen_us);
            row.push_back(us_text(us));
            row.push_back(gb_per_s_text(static_cast<double>(of.bytes()) / us / 1e3));
        }
        if (!error.empty()) {
            return error;
        }
        out.row(row);
    }
    return {};
}

} // namespace gpusm::copy_bench
