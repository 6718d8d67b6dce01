// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// options.h: the command line of gpusm_perf.
#ifndef GPUSM_PERF_OPTIONS_H
#define GPUSM_PERF_OPTIONS_H

#include "bench/common/buffer.h"

#include <cstddef>
#include <string>
#include <vector>

namespace gpusm::bench {

enum class perf_mode { latency, bw, bibw, mbw_mr, alltoall, allreduce };

const char *name_of(perf_mode mode);

struct options {
    perf_mode mode = perf_mode::latency;
    memory_kind source = memory_kind::host;      // of the first rank of a pair; collectives: sent
    memory_kind destination = memory_kind::host; // of the second; collectives: received
    std::size_t source_offset = 0;               // bytes added to the addresses of what is sent
    std::size_t destination_offset = 0;          // likewise, of what is received
    std::vector<std::size_t> sizes;              // bytes, in the order to be measured
    int window = 64;                             // messages under way at once (is_bandwidth)
    int places = 0;                              // of a window's messages; 0: one for each
    int block_bytes = 0; // of messages in blocks with gaps as long between them; 0: in one piece
    int iterations = 0;  // 0: chosen by message size
    int warmup = -1;     // -1: chosen by message size
    int repeat = 1;      // every row is the median of so many
    bool check = false;
    bool limit = true; // never in allreduce
    bool late_cuda = false;
    bool help = false;
    std::string json_path;
    std::string nccl;      // its library, when messages are to go by NCCL and not by MPI
    double link_scale = 1; // not 1 in tests: the link is taken to be so much as fast as measured

    bool uses_gpu() const { return is_gpu(source) || is_gpu(destination); }
    bool needs_gpu() const { return bench::needs_gpu(source) || bench::needs_gpu(destination); }
    bool is_pairwise() const { return perf_mode::alltoall != mode && perf_mode::allreduce != mode; }
    bool is_bandwidth() const { return is_pairwise() && perf_mode::latency != mode; }
    // From the first byte of a message to behind its last one.
    std::size_t extent_of(std::size_t len_bytes) const;
    int iterations_for(std::size_t len_bytes) const;
    int warmup_for(std::size_t len_bytes) const;
};

// Empty on success; otherwise one sentence about what is wrong, and *result is not to be used.
std::string parse_options(int argc, char *const *argv, options *result);

extern const char *const help_text;

} // namespace gpusm::bench

#endif
