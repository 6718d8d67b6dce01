// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// sizes.h: message sizes as people write them.
#ifndef GPUSM_BENCH_SIZES_H
#define GPUSM_BENCH_SIZES_H

#include <climits>
#include <cstddef>
#include <string>

namespace gpusm::bench {

inline constexpr std::size_t max_size_bytes = INT_MAX; // MPI counts are int

// "4K" -> 4096; suffixes K, M and G. False when the text is not a size, or above max_size_bytes.
bool parse_size(const std::string &text, std::size_t *bytes);

} // namespace gpusm::bench

#endif
