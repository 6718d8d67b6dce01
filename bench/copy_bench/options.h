// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// options.h: the command line of copy_bench.
#ifndef GPUSM_COPY_BENCH_OPTIONS_H
#define GPUSM_COPY_BENCH_OPTIONS_H

#include "opal/mca/btl/gpusm/gpu/copy_choice.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

// Combinations of more bytes than this are left out.
inline constexpr std::size_t most_cell_bytes = std::size_t{1} << 30;

struct options {
    std::vector<std::uint32_t> counts = {1, 2, 4, 8, 16, 32, 64, 128};
    std::vector<std::size_t> sizes; // bytes of one copy
    double seconds = 0.05;          // for one way of one cell, at least 20 repetitions
    std::uint32_t blocks = copy_limits{}.kernel_blocks;
    bool same_gpu = false;
    bool markdown = false;
    bool help = false;
    bool cells = false; // the parts to print
    bool signals = false;
    bool grid = false;
    bool host = false;
    bool busy = false;
};

// Empty on success; otherwise one sentence about what is wrong, and *result is not to be used.
std::string parse_options(int argc, char *const *argv, options *result);

extern const char *const help_text;

} // namespace gpusm::copy_bench

#endif
