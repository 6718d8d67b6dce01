// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// numbers.h: numbers on a command line, as people write them, and the median of measured ones.
#ifndef GPUSM_BENCH_NUMBERS_H
#define GPUSM_BENCH_NUMBERS_H

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

namespace gpusm::bench {

inline constexpr std::size_t max_size_bytes = INT_MAX; // MPI counts are int

// "4K" -> 4096; suffixes K, M and G. False when the text is not a size, or above max_size_bytes.
bool parse_size(const std::string &text, std::size_t *bytes);
std::string size_text(std::size_t bytes); // "8", "64K", "16M"

// A whole number; false when it is none, or out of range.
bool parse_count(const std::string &text, int least, int most, int *value);

// A number above 0 in plain decimal notation.
bool parse_positive(const std::string &text, double most, double *value);

// What stands between commas.
std::vector<std::string> split(const std::string &text);

// What is wrong with an argument that getopt_long, with opterr 0, has just refused.
std::string refusal(int answer, char *const *argv);

// 0 when there are none.
double median_of(std::vector<double> values);

} // namespace gpusm::bench

#endif
