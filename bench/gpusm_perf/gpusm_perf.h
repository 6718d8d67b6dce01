// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpusm_perf.h: what the source files share. The command line, this rank's part in a run, what is
// measured and checked of one size, the bare copies beside it, and the report.
#ifndef GPUSM_PERF_H
#define GPUSM_PERF_H

#include "bench/common/agree.h"
#include "bench/common/buffer.h"
#include "bench/common/busy_kernel.h"
#include "bench/common/numbers.h"
#include "bench/common/path_counters.h"
#include "bench/common/placed.h"

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::bench {

enum class perf_mode { latency, bw, bibw, kernels, check };

inline constexpr const char *mode_names[] = {"latency", "bw", "bibw", "kernels", "check"};
inline const char *name_of(perf_mode mode)
{
    return mode_names[static_cast<int>(mode)];
}

struct options {
    perf_mode mode = perf_mode::latency;
    std::string sources; // letters of kinds; what check goes through
    std::string destinations;
    memory_kind source = memory_kind::host;      // of the first rank of a pair
    memory_kind destination = memory_kind::host; // of the second
    std::size_t source_offset = 0;               // bytes added to the addresses of what is sent
    std::size_t destination_offset = 0;          // likewise, of what is received
    std::size_t source_block = 0;                // bytes; 0: the first rank's messages have no gaps
    std::size_t destination_block = 0;
    std::vector<std::size_t> sizes; // bytes, in the order to be measured
    int window = 64;                // messages under way at once in bw and bibw
    int kernel_us = 50;             // of each rank's kernel before an exchange in kernels
    int places = 0;                 // of a window's messages; 0: one for each
    int iterations = 0;             // 0: chosen by message size
    int warmup = -1;                // -1: chosen by message size
    double link_gb_per_s = 0;       // 0: measured
    bool check = false;
    bool limit = true;
    bool help = false;
    std::string json_path;

    bool uses_gpu() const { return is_gpu(source) || is_gpu(destination); }
    bool has_gaps() const { return 0 != source_block || 0 != destination_block; }
    bool needs_gpu() const
    {
        return bench::needs_gpu(source) || bench::needs_gpu(destination) ||
               perf_mode::kernels == mode;
    }
    int iterations_for(std::size_t len_bytes) const;
    int warmup_for(std::size_t len_bytes) const;
};

// Empty on success; otherwise one sentence about what is wrong, and *result is not to be used.
std::string parse_options(int argc, char **argv, options *result);

extern const char *const help_text;

// The messages of a window have places of their own, up to so many bytes of messages per side.
inline constexpr std::size_t window_bytes = std::size_t{256} << 20;

struct run {
    options opt;
    int rank = 0;
    int ranks = 1;
    int peer = 0;      // the other rank of this rank's pair
    bool first = true; // this rank is the first of its pair (the sender, in bw)
    const device *gpu = nullptr;
    std::unique_ptr<buffer> outgoing;
    std::unique_ptr<buffer> incoming;
    std::unique_ptr<busy_kernel> kernel; // in kernels
    std::string kernel_error;            // its first
    std::unique_ptr<path_counters> counters;
    bool warmed_up = false;
    path_counts after_warmup;
    unsigned long long contents = 0; // made up to now, the same on all ranks

    // Whether this rank sends data, or only the answer to a window; likewise for receives.
    bool sends() const { return first || perf_mode::bw != opt.mode; }
    bool receives() const { return !first || perf_mode::bw != opt.mode; }
    memory_kind kind() const { return first ? opt.source : opt.destination; }
    // Of this rank's messages, each followed by a gap as long; 0: they have none.
    std::size_t block_bytes() const { return first ? opt.source_block : opt.destination_block; }
    memory_kind peer_kind() const { return first ? opt.destination : opt.source; }
    int pairs() const { return ranks / 2; }
    // Of a pair, in one iteration; in kernels the time is of the whole iteration.
    int messages() const
    {
        return perf_mode::kernels == opt.mode   ? 1
               : perf_mode::latency == opt.mode ? 2
               : perf_mode::bw == opt.mode      ? opt.window
                                                : 2 * opt.window;
    }
    // Where messages of this size lie, in the outgoing buffer as well as in the incoming one.
    placement places_for(std::size_t len_bytes) const
    {
        const int wanted = perf_mode::latency == opt.mode ? 1
                           : opt.places > 0               ? std::min(opt.window, opt.places)
                                                          : opt.window;
        return placement::spaced(len_bytes, static_cast<std::size_t>(wanted), window_bytes);
    }
};

// One rank's times of a message, in microseconds.
struct rank_times {
    double median_us = 0;
    double mean_us = 0;
};

// All of these are collective. Sentences are empty on success, and a rank's own.

// Buffers for the kinds and sizes of r.opt, and in kernels the kernel.
std::string make_buffers(run &r);
rank_times measure(run &r, std::size_t len_bytes, std::string *error);
// The iterations of kernels without messages: the mean of the slowest rank, in microseconds.
double kernels_alone_us(run &r);
// So many iterations, each with contents of its own, of which every byte is compared.
std::string check_bytes(run &r, std::size_t len_bytes, int iterations);
// gpusm_perf check; returns the exit status.
int check_everything(run &r, const std::string &no_device);

using clock_type = std::chrono::steady_clock;

inline double us_between(clock_type::time_point from, clock_type::time_point to)
{
    return std::chrono::duration<double, std::micro>(to - from).count();
}

// The largest, or the sum, over all ranks, on every rank. Collective.
inline double over_ranks(double mine, MPI_Op operation)
{
    double all = 0;
    (void)MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, operation, MPI_COMM_WORLD);
    return all;
}

// --- limit.cc: the bare copies that messages are compared with: for each size the same copies (the
// limit), and once per run large ones, back to back (the link)

// The receiver of every message copies what it receives, out of its peer's device memory where both
// have some, else within its own process. All functions are collective, with the same result on all
// ranks.
class bare_copies {
  public:
    explicit bare_copies(run &r);
    // When it is not empty, nothing can be measured.
    const std::string &error() const { return error_; }
    // Gives memory back, mappings first and what they map only when all ranks have closed theirs.
    void close();

    // Microseconds per message, as rank_times has them; 0 when there is no answer.
    double limit_us(std::size_t len_bytes);
    // GB/s of all pairs, both ways where there are two; 0: there is no link to be measured.
    double link_gb_per_s();
    // Messages that may be faster than the link: within one device, out of its cache.
    bool fit_into_cache(std::size_t len_bytes) const;

  private:
    std::string open(std::size_t len_bytes);
    std::string exchange_memory(std::size_t len_bytes);
    double message_us(const placement &places, int copies, int samples);
    double copy_us(const placement &places, int copies);

    run &r_;
    std::string error_;
    std::string failure_;              // of this rank, not yet agreed on
    std::unique_ptr<buffer> exported_; // what the peer copies from
    std::unique_ptr<buffer> destination_;
    std::unique_ptr<buffer> source_; // where it is of this process
    CUdeviceptr imported_ = 0;
    CUdeviceptr from_ = 0;
    CUdeviceptr to_ = 0;
    bool by_driver_ = false;
    bool within_device_ = false; // any pair
    CUstream stream_ = nullptr;
    CUevent event_ = nullptr;
};

// What the header says about the limit for these kinds.
const char *describe_limit(const options &opt);

// --- report.cc: what gpusm_perf prints and writes

// One line of the table.
struct row {
    std::size_t len_bytes = 0;
    rank_times slowest;          // of the rank with the largest mean
    std::vector<double> mean_us; // of each rank
    double limit_us = 0;         // 0: none
    int pairs = 1;

    double gb_per_s() const
    {
        return static_cast<double>(len_bytes) * pairs / slowest.mean_us / 1e3;
    }
    double messages_per_s() const { return pairs / slowest.mean_us * 1e6; }
};

// Valid on rank 0.
struct report {
    std::vector<std::string> devices; // of each rank
    std::vector<std::string> paths;   // what each rank has counted, as in JSON
    std::string limit;
    double link_gb_per_s = 0; // 0: none
    bool link_enforced = false;
    std::vector<row> rows;
};

// Collective.
std::vector<std::string> gather_devices(const run &r);
std::vector<std::string> gather_paths(const run &r);
row make_row(const run &r, std::size_t len_bytes, const rank_times &mine, double limit_us);

void print_header(const run &r, const report &about);
void print_row(const row &line);
// Below the table: each rank's view.
void print_ranks(const report &about);

// Empty, or why the file could not be written.
std::string write_json(const run &r, const report &about);

} // namespace gpusm::bench

#endif
