// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// main.cc: what collective operations and exchanges between device buffers take, beside NCCL in the
// same processes and in turns. `coll_bench --help` is the manual.
#include "bench/coll_bench/nccl.h"
#include "bench/coll_bench/operations.h"
#include "bench/common/agree.h"
#include "bench/common/numbers.h"

#include <getopt.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>

namespace gpusm::bench {

namespace {

constexpr int exit_wrong = 1;
constexpr int exit_usage = 2;
constexpr int turn = 10; // calls of MPI, then as many of NCCL

constexpr const char *help_text = R"(usage: mpirun -n N coll_bench [options] [OPERATION...]

Operations on device memory, by MPI and by NCCL in turns. Times are microseconds of a call until the
processor knows that it is done (of NCCL: the call and cuStreamSynchronize), of the slowest rank, as
medians; every byte of both is compared afterwards. GB/s is what the rank that moves most bytes
moves over its link in one direction, as nccl-tests' "busbw". Bytes are those of one rank's block.

  allreduce reduce reduce_scatter allgather alltoall bcast gather scatter
                 as MPI and NCCL have them; of floats where there is a sum; the root is rank 0
  ring           each sends to the next rank and receives from the one before
  neighbours     each exchanges with the next and with the one before
  one_to_all, all_to_one     rank 0 with each of the others, by messages
  pairs          each rank to each other one, one message at a time: GB/s of the largest size

  --sizes A,B,C  suffixes K M G, multiples of 4 (default 8,4K,64K,1M,16M,64M)
  --iterations N of each size (default: by size, 200 to 20)
  --gaps         bytes are those of every second float, by MPI alone; no reductions
  --no-nccl      MPI alone, as without libnccl.so.2 or where ranks share a device
  -h, --help     this text

status: 0 fine; 1 wrong bytes or a failing call; 2 bad usage, or no device
)";

struct options {
    std::vector<std::size_t> sizes{
        8, 4096, 65536, std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{64} << 20};
    std::vector<const operation *> operations;
    bool pairs = false;
    int iterations = 0; // 0: by size
    bool has_gaps = false;
    bool use_nccl = true;
    bool help = false;
};

std::string parse_sizes(const std::string &text, std::vector<std::size_t> *sizes)
{
    sizes->clear();
    for (const std::string &item : split(text)) {
        std::size_t bytes = 0;
        if (!parse_size(item, &bytes) || 0 == bytes || 0 != bytes % sizeof(float)) {
            return "--sizes: '" + item + "' is no multiple of 4 bytes";
        }
        sizes->push_back(bytes);
    }
    return "";
}

std::string parse_options(int argc, char **argv, options *opt)
{
    enum { sizes_option = 1000, iterations_option, gaps_option, no_nccl_option };
    static const option known[] = {{"sizes", required_argument, nullptr, sizes_option},
                                   {"iterations", required_argument, nullptr, iterations_option},
                                   {"gaps", no_argument, nullptr, gaps_option},
                                   {"no-nccl", no_argument, nullptr, no_nccl_option},
                                   {"help", no_argument, nullptr, 'h'},
                                   {nullptr, 0, nullptr, 0}};
    opterr = 0;
    std::string error;
    for (int answer = 0;
         error.empty() && -1 != (answer = getopt_long(argc, argv, "h", known, nullptr));) {
        switch (answer) {
        case sizes_option:
            error = parse_sizes(optarg, &opt->sizes);
            break;
        case iterations_option:
            error = parse_count(optarg, 1, 1000000, &opt->iterations)
                        ? ""
                        : "--iterations: '" + std::string(optarg) + "' is no number of calls";
            break;
        case gaps_option:
            opt->has_gaps = true;
            opt->use_nccl = false;
            break;
        case no_nccl_option:
            opt->use_nccl = false;
            break;
        case 'h':
            opt->help = true;
            return "";
        default:
            return refusal(answer, argv);
        }
    }
    for (int i = optind; error.empty() && i < argc; i++) {
        const std::string name = argv[i];
        const operation *what = find_operation(name);
        opt->pairs = opt->pairs || "pairs" == name;
        if (nullptr != what && what->reduces && opt->has_gaps) {
            error = "'" + name + "' has no gaps";
        } else if (nullptr != what) {
            opt->operations.push_back(what);
        } else if ("pairs" != name) {
            error = "'" + name + "' is no operation";
        }
    }
    if (optind == argc) {
        for (const operation &one : all_operations()) {
            if (!one.reduces || !opt->has_gaps) {
                opt->operations.push_back(&one);
            }
        }
        opt->pairs = !opt->has_gaps;
    }
    return error;
}

struct run {
    options opt;
    const device *gpu = nullptr;
    const nccl *other = nullptr;
    call c; // with the buffers
    std::unique_ptr<buffer> given;
    std::unique_ptr<buffer> taken;
};

double slowest_median(std::vector<double> times)
{
    (void)MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE,
                        MPI_MAX, MPI_COMM_WORLD);
    return median_of(std::move(times));
}

// Microseconds of `calls` calls, each begun by all ranks together.
template <typename function>
void time_calls(int calls, std::vector<double> *times, const function &one)
{
    for (int i = 0; i < calls; i++) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        one();
        times->push_back(1e6 * (MPI_Wtime() - begin));
    }
}

std::string by_nccl(const run &r, const operation &what)
{
    const int result = what.by_nccl(r.c, *r.other);
    return 0 == result ? r.other->wait() : "NCCL's result " + std::to_string(result);
}

std::string check_once(const run &r, const operation &what, bool mpi)
{
    std::string error = clear(r.c);
    (void)MPI_Barrier(MPI_COMM_WORLD); // nobody writes there before
    if (mpi) {
        what.by_mpi(r.c);
    } else if (error.empty()) {
        error = by_nccl(r, what);
    }
    error = error.empty() ? check(what, r.c) : error;
    return error.empty()
               ? ""
               : "rank " + std::to_string(r.c.rank) + ": " + (mpi ? "MPI, " : "NCCL, ") + error;
}

int iterations_of(const options &opt, std::size_t bytes)
{
    if (0 != opt.iterations) {
        return opt.iterations;
    }
    return bytes <= 65536 ? 200 : bytes <= (std::size_t{4} << 20) ? 100 : 20;
}

std::string measure(run &r, const operation &what, std::size_t bytes)
{
    r.c.block_bytes = bytes;
    const int iterations = iterations_of(r.opt, bytes);
    std::vector<double> mpi_times;
    std::vector<double> nccl_times;
    std::string error = fill(what, r.c);
    // The first turn of each warms up.
    for (int done = -turn; done < iterations; done += turn) {
        const int calls = std::min(turn, done < 0 ? turn : iterations - done);
        if (0 == done) {
            mpi_times.clear();
            nccl_times.clear();
        }
        time_calls(calls, &mpi_times, [&] { what.by_mpi(r.c); });
        if (nullptr != r.other) {
            time_calls(calls, &nccl_times, [&] {
                const std::string failed = by_nccl(r, what);
                error = error.empty() ? failed : error;
            });
        }
    }
    // Once more each, into memory that holds nothing of what was measured.
    error = agree_on_error(error.empty() ? check_once(r, what, true) : error);
    if (nullptr != r.other && error.empty()) {
        error = agree_on_error(check_once(r, what, false));
    }
    if (!error.empty()) {
        return std::string(what.name) + " of " + std::to_string(bytes) + " bytes: " + error;
    }
    const double us = slowest_median(std::move(mpi_times));
    const double moved = static_cast<double>(bytes) * what.blocks_moved(r.c.ranks);
    const double nccl_us = nullptr == r.other ? 0 : slowest_median(std::move(nccl_times));
    if (0 == r.c.rank) {
        std::printf("%-15s %6s %10.1f %9.2f", what.name, size_text(bytes).c_str(), us,
                    moved / us / 1000);
        if (nullptr != r.other) {
            std::printf(" %10.1f %7.2f", nccl_us, us / nccl_us);
        }
        std::printf("\n");
        (void)std::fflush(stdout);
    }
    return "";
}

// One message from each rank to each other one, the rest waiting meanwhile.
void measure_pairs(run &r)
{
    const std::size_t bytes = *std::max_element(r.opt.sizes.begin(), r.opt.sizes.end());
    r.c.block_bytes = bytes;
    if (0 == r.c.rank) {
        std::printf("pairs, %s, GB/s, from the rank of the line to that of the column:\n",
                    size_text(bytes).c_str());
    }
    for (int from = 0; from < r.c.ranks; from++) {
        for (int to = 0; to < r.c.ranks; to++) {
            std::vector<double> times;
            time_calls(from == to ? 0 : turn, &times, [&] {
                if (from == r.c.rank) {
                    (void)MPI_Send(r.c.given_at(0), r.c.count(), MPI_BYTE, to, 0, MPI_COMM_WORLD);
                } else if (to == r.c.rank) {
                    (void)MPI_Recv(r.c.taken_at(0), r.c.count(), MPI_BYTE, from, 0, MPI_COMM_WORLD,
                                   MPI_STATUS_IGNORE);
                }
            });
            const double us = slowest_median(std::move(times));
            if (0 == r.c.rank && from == to) {
                std::printf("%10s", "-");
            } else if (0 == r.c.rank) {
                std::printf("%10.1f", static_cast<double>(bytes) / us / 1000);
            }
        }
        if (0 == r.c.rank) {
            std::printf("\n");
        }
    }
}

std::string make_buffers(run &r)
{
    const std::size_t most = *std::max_element(r.opt.sizes.begin(), r.opt.sizes.end());
    const std::size_t bytes = most * static_cast<std::size_t>(r.c.ranks) * (r.opt.has_gaps ? 2 : 1);
    std::string why;
    r.given = buffer::make(memory_kind::device, bytes, r.gpu, &why);
    r.taken = nullptr == r.given ? nullptr : buffer::make(memory_kind::device, bytes, r.gpu, &why);
    r.c.given = r.given.get();
    r.c.taken = r.taken.get();
    return why;
}

std::string measure_all(run &r)
{
    for (const operation *what : r.opt.operations) {
        for (const std::size_t bytes : r.opt.sizes) {
            const std::string error = measure(r, *what, bytes);
            if (!error.empty()) {
                return error;
            }
        }
    }
    if (r.opt.pairs) {
        measure_pairs(r);
    }
    return "";
}

int complain(const run &r, const std::string &sentence, int status)
{
    if (0 == r.c.rank) {
        (void)std::fflush(stdout);
        std::fprintf(stderr, "coll_bench: %s\n", sentence.c_str());
    }
    return status;
}

// Between MPI_Init and MPI_Finalize.
int run_all(const options &opt, const device *gpu, const std::string &wrong)
{
    run r;
    r.opt = opt;
    r.gpu = gpu;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &r.c.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &r.c.ranks);
    std::string error = agree_on_error(wrong.empty() && r.c.ranks < 2 ? "needs two ranks" : wrong);
    error = error.empty() ? agree_on_error(make_buffers(r)) : error;
    if (!error.empty()) {
        return complain(r, error, exit_usage);
    }
    std::string no_nccl = opt.has_gaps ? "--gaps" : "--no-nccl";
    const std::unique_ptr<nccl> other =
        opt.use_nccl ? nccl::make(MPI_COMM_WORLD, *gpu, &no_nccl) : nullptr;
    r.other = other.get();
    if (0 == r.c.rank) {
        std::printf(
            "# %d ranks, %s\n# NCCL: %s\n%-15s %6s %10s %9s%s\n", r.c.ranks, gpu->text().c_str(),
            nullptr == other ? no_nccl.c_str() : std::to_string(other->version()).c_str(),
            "operation", "bytes", "us", "GB/s", nullptr == other ? "" : "    NCCL us   ratio");
    }
    r.c.has_gaps = opt.has_gaps;
    if (opt.has_gaps) {
        (void)MPI_Type_create_resized(MPI_FLOAT, 0, 2 * sizeof(float), &r.c.type);
        (void)MPI_Type_commit(&r.c.type);
    }
    error = measure_all(r);
    if (opt.has_gaps) {
        (void)MPI_Type_free(&r.c.type);
    }
    return error.empty() ? 0 : complain(r, error, exit_wrong);
}

} // namespace

} // namespace gpusm::bench

int main(int argc, char **argv)
{
    using namespace gpusm::bench;
    options opt;
    std::string error = parse_options(argc, argv, &opt);
    if (opt.help) {
        std::fputs(0 == local_rank_from_environment() ? help_text : "", stdout);
        return 0;
    }
    error += error.empty() ? "" : "; see --help";
    // Before MPI_Init, because btl/smcuda of Open MPI 5.0 needs it; btl/gpusm does not.
    std::string no_device;
    const std::unique_ptr<device> gpu = device::open(local_rank_from_environment(), &no_device);
    error = error.empty() ? no_device : error;
    (void)MPI_Init(&argc, &argv);
    const int status = run_all(opt, gpu.get(), error);
    (void)std::fflush(stdout);
    (void)MPI_Finalize();
    return status;
}
