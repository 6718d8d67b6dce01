// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// report.h: what gpusm_perf prints and writes.
#ifndef GPUSM_PERF_REPORT_H
#define GPUSM_PERF_REPORT_H

#include "bench/gpusm_perf/limit.h"
#include "bench/gpusm_perf/run.h"

#include <string>
#include <vector>

namespace gpusm::bench {

// What the header says. Gathered collectively, printed by rank 0.
struct run_facts {
    std::string mpi_version;
    std::string transports;              // the value of --mca btl, or "default"
    std::string driver;                  // empty when no GPU memory is used
    std::vector<std::string> rank_lines; // one per rank
    std::string limit;
    link_figure link;
};

run_facts gather_facts(const run &r);
std::vector<std::string> header_lines(const options &opt, const run_facts &facts);

// One line of the table; every number is the median over --repeat.
struct row {
    std::size_t len_bytes = 0;
    measurement measured;
    double limit = 0; // us for latency and collectives, bytes per second else; 0: none
    double ratio() const;
    double value() const
    {
        return 0 < measured.latency_us ? measured.latency_us : measured.bytes_per_s;
    }
};

// From the measurements of one size, one of them per repetition.
row median_row(std::size_t len_bytes, const std::vector<measurement> &measured,
               const std::vector<double> &limits);

std::string table_head(const options &opt);
std::string table_line(const options &opt, const row &line);
std::string path_line(bool available, const path_counts &warmup, const path_counts &measured);

// Empty, or why the file could not be written.
std::string write_json(const options &opt, const run_facts &facts, const std::vector<row> &rows,
                       bool have_paths, const path_counts &paths);

} // namespace gpusm::bench

#endif
