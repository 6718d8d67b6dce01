// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// agree.h: what all ranks of a benchmark have to know of each other's errors.
#ifndef GPUSM_BENCH_AGREE_H
#define GPUSM_BENCH_AGREE_H

#include <string>

namespace gpusm::bench {

// Makes a rank's sentence known to all: empty when every rank's is empty, else that of the lowest
// rank that has one. Collective.
std::string agree_on_error(const std::string &mine);

} // namespace gpusm::bench

#endif
