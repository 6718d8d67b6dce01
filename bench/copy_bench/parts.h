// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// parts.h: what copy_bench can print. Each part returns an empty string, or a sentence about the
// wrong byte or the driver call that stopped it.
#ifndef GPUSM_COPY_BENCH_PARTS_H
#define GPUSM_COPY_BENCH_PARTS_H

#include "bench/copy_bench/options.h"
#include "bench/copy_bench/submitter.h"
#include "bench/copy_bench/workplace.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace gpusm::copy_bench {

std::string print_cells(const options &opt, workplace &at, submitter &by);
std::string print_signals(const options &opt, workplace &at, submitter &by);
std::string print_grid(const options &opt, workplace &at);
std::string print_host(const options &opt, workplace &at, submitter &by);
std::string print_busy(const options &opt, workplace &at, submitter &by);

// What --grid, --host and --busy copy.
inline constexpr cell grid_cells[] = {
    {64, std::size_t{64} << 10}, {64, std::size_t{256} << 10}, {16, std::size_t{1} << 20}};
inline constexpr cell host_cells[] = {{1, std::size_t{64} << 10},  {1, std::size_t{256} << 10},
                                      {1, std::size_t{1} << 20},   {4, std::size_t{64} << 10},
                                      {16, std::size_t{64} << 10}, {6, std::size_t{128} << 10}};
inline constexpr cell busy_cells[] = {{64, 8}, {16, std::size_t{64} << 10}};

// The memory that all of them need on each side.
std::size_t room_for(const options &opt);

} // namespace gpusm::copy_bench

#endif
