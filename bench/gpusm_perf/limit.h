// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// limit.h: the bare copies that messages are compared with: per size the same copies (the limit),
// and once per run as many bytes as the driver moves at best (the link).
#ifndef GPUSM_PERF_LIMIT_H
#define GPUSM_PERF_LIMIT_H

#include "bench/gpusm_perf/copy_channel.h"
#include "bench/gpusm_perf/run.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gpusm::bench {

// What no message can be faster than. Valid on rank 0.
struct link_figure {
    double bytes_per_s = 0;      // 0: there is none in this run
    bool enforced = false;       // a row above it is an error
    double crossing = 1;         // alltoall: blocks of a call that share the link
    std::size_t least_bytes = 0; // rows that touch less memory are not held against it
    std::string text = "none";   // for the header
    static constexpr double tolerance = 1.05;
};

class limit_probe {
  public:
    // Collective. error() is the same on all ranks afterwards; when it is not empty there is no
    // limit in this run.
    explicit limit_probe(run &r);
    const std::string &error() const { return error_; }

    // Collective: gives everything back, mappings first and what they map only when all ranks have
    // closed theirs. Nothing may be measured afterwards.
    void close();

    // Collective; the result is meant for rank 0. Zero when the size is zero.
    double latency_us(std::size_t len_bytes);
    double bytes_per_s(std::size_t len_bytes);

    // Collective, once. There is no figure where has_link() says so, or after an error.
    link_figure measure_link();

  private:
    using pieces = std::vector<copy_piece>;

    std::string open_channel(bool from_first);
    std::string open_all_to_all();
    std::string export_memory(copy_source *source);
    pieces window_of(const placement &places, int copies) const;
    pieces blocks_of(const placement &places) const;
    double median_us(copy_channel *channel, const pieces &list, std::size_t len_bytes);
    double best_rate(std::span<copy_channel *const> channels, std::size_t source, int streams);
    double pair_link();
    double all_to_all_link(const std::vector<std::string> &devices, double *crossing);
    double start_and_finish(std::span<copy_channel *const> channels, int variant,
                            const pieces &list, std::size_t len_bytes);

    run &r_;
    std::string error_;
    std::string failure_;                      // of this rank, not yet agreed on
    int variants_ = 1;                         // the most that any rank has
    std::size_t memory_bytes_ = 0;             // of every piece of memory
    std::unique_ptr<buffer> exported_;         // what the peers copy from
    std::unique_ptr<copy_channel> from_first_; // nullptr: not copied by this rank
    std::unique_ptr<copy_channel> from_second_;
};

// A sentence when a row claims more than the link carries, else empty.
struct row;
std::string above_link(const run &r, const link_figure &link, const row &line);

// Whether the kinds have a link: device memory at both ends, or in bw, bibw, mbw_mr and latency at
// one. Pages of managed memory may be anywhere.
bool has_link(const options &opt);

// The largest size in bytes that measure_link() copies, for these sizes of messages.
std::size_t largest_link_copy(const run &r);

// What the header says about the limit for these kinds.
std::string describe_limit(const options &opt);

// Makes a rank's sentence known to all: empty when every rank's is empty, else that of the lowest
// rank that has one. Collective.
std::string agree_on_error(const std::string &mine, MPI_Comm communicator);

} // namespace gpusm::bench

#endif
