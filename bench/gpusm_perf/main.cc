// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// main.cc: START HERE. gpusm_perf measures what messages between the ranks of one node cost, for
// every kind of memory, next to what the bare copy costs. `gpusm_perf --help` is the manual.
#include "bench/gpusm_perf/limit.h"
#include "bench/gpusm_perf/report.h"
#include "bench/gpusm_perf/run.h"

#include <mpi-ext.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gpusm::bench {

namespace {

constexpr int exit_wrong = 1;
constexpr int exit_usage = 2;

std::string wrong_ranks(const options &opt, int ranks)
{
    if (perf_mode::mbw_mr == opt.mode) {
        return 0 == ranks % 2
                   ? std::string()
                   : "mbw_mr needs an even number of ranks, not " + std::to_string(ranks);
    }
    if (!opt.is_pairwise()) {
        return 2 <= ranks && ranks <= most_collective_ranks
                   ? std::string()
                   : std::string(name_of(opt.mode)) + " needs 2 to 64 ranks, not " +
                         std::to_string(ranks);
    }
    return 2 == ranks ? std::string()
                      : std::string(name_of(opt.mode)) + " needs exactly 2 ranks, not " +
                            std::to_string(ranks);
}

std::string mpi_without_cuda(const options &opt)
{
#if defined(OMPI_HAVE_MPI_EXT_CUDA) && OMPI_HAVE_MPI_EXT_CUDA
    if (opt.uses_gpu() && 1 != MPIX_Query_cuda_support()) {
        return "this Open MPI does not accept GPU buffers (its CUDA support is missing or off)";
    }
#endif
    (void)opt;
    return {};
}

// Open MPI's reductions add host memory; a component, whose name depends on the version, is needed
// to bring device memory there. Without it they would run into the device's addresses.
std::string mpi_without_reductions(const options &opt)
{
    if (perf_mode::allreduce != opt.mode || !opt.uses_gpu() || !init_tools()) {
        return {};
    }
    bool found = false;
    for (const char *variable : {"coll_cuda_priority", "coll_accelerator_priority"}) {
        int index = -1;
        found = found || MPI_SUCCESS == MPI_T_cvar_get_index(variable, &index);
    }
    (void)MPI_T_finalize();
    return found ? std::string()
                 : "this Open MPI does not reduce GPU buffers (neither coll/cuda nor "
                   "coll/accelerator is there)";
}

// Found out before the measurement, not after it.
std::string unwritable(const options &opt)
{
    if (opt.json_path.empty()) {
        return {};
    }
    std::FILE *file = std::fopen(opt.json_path.c_str(), "w");
    if (nullptr == file) {
        return "cannot write " + opt.json_path + ": " + std::strerror(errno);
    }
    (void)std::fclose(file);
    return {};
}

std::string make_buffers(run &r)
{
    std::string why;
    if (r.sends()) {
        r.outgoing =
            buffer::make(r.outgoing_kind(), r.buffer_bytes(), r.gpu, &why, r.opt.source_offset);
        if (nullptr == r.outgoing) {
            return why;
        }
        why = r.outgoing->fill(0, r.buffer_bytes(), 0);
    }
    if (why.empty() && r.receives()) {
        r.incoming = buffer::make(r.incoming_kind(), r.buffer_bytes(), r.gpu, &why,
                                  r.opt.destination_offset);
        if (nullptr == r.incoming) {
            return why;
        }
        why = r.incoming->poison();
    }
    if (why.empty() && r.one_way()) {
        r.reply = buffer::make(r.kind(), r.reply_buffer_bytes(), r.gpu, &why);
    }
    return why;
}

measurement measure(run &r, std::size_t len_bytes)
{
    switch (r.opt.mode) {
    case perf_mode::latency:
        return measure_latency(r, len_bytes);
    case perf_mode::bw:
    case perf_mode::bibw:
    case perf_mode::mbw_mr:
        return measure_bandwidth(r, len_bytes);
    case perf_mode::alltoall:
    case perf_mode::allreduce:
        return measure_collective(r, len_bytes);
    }
    return {};
}

struct outcome {
    std::vector<row> rows;
    std::string corruption; // empty when the content was right, or not checked
    bool above_link = false;
};

// All sizes. Rows are printed as they are measured.
outcome measure_all(run &r, limit_probe *limit, const link_figure &link)
{
    outcome result;
    for (std::size_t len_bytes : r.opt.sizes) {
        std::vector<measurement> measured;
        std::vector<double> limits;
        for (int i = 0; i < r.opt.repeat; ++i) {
            if (nullptr != limit && limit->error().empty()) {
                limits.push_back(r.opt.is_bandwidth() ? limit->bytes_per_s(len_bytes)
                                                      : limit->latency_us(len_bytes));
            }
            measured.push_back(measure(r, len_bytes));
            std::string mine = measured.back().error;
            if (!mine.empty()) {
                mine = std::to_string(len_bytes) + " bytes, rank " + std::to_string(r.rank) +
                       (r.opt.is_pairwise() ? ", from rank " + std::to_string(r.peer) : "") + ", " +
                       mine;
            }
            result.corruption = agree_on_error(mine, MPI_COMM_WORLD);
            if (!result.corruption.empty()) {
                return result;
            }
        }
        const row line = median_row(len_bytes, measured, limits);
        result.rows.push_back(line);
        if (0 == r.rank) {
            std::printf("%s\n", table_line(r.opt, line).c_str());
            std::fflush(stdout);
            const std::string above = above_link(r, link, line);
            if (!above.empty()) {
                result.above_link = true;
                std::fprintf(stderr, "gpusm_perf: %s\n", above.c_str());
            }
        }
    }
    return result;
}

int finish(run &r, const run_facts &facts, const outcome &result)
{
    const path_counts end = r.counters->read();
    const path_counts measured = sum_over_ranks(end - r.after_warmup, MPI_COMM_WORLD);
    const path_counts warmup = sum_over_ranks(r.after_warmup - r.before_warmup, MPI_COMM_WORLD);
    const int mine = r.counters->available() ? 1 : 0;
    int available = 0; // on all ranks
    (void)MPI_Allreduce(&mine, &available, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    int status = 0;
    if (0 == r.rank) {
        std::printf("%s\n", path_line(0 != available, warmup, measured).c_str());
        std::fflush(stdout);
        if (!result.corruption.empty()) {
            std::fprintf(stderr, "gpusm_perf: CORRUPT DATA: %s\n", result.corruption.c_str());
            status = exit_wrong;
        }
        if (result.above_link) {
            status = exit_wrong;
        }
        if (!r.opt.json_path.empty()) {
            const std::string error =
                write_json(r.opt, facts, result.rows, 0 != available, measured);
            if (!error.empty()) {
                std::fprintf(stderr, "gpusm_perf: %s\n", error.c_str());
                status = 0 == status ? exit_usage : status;
            }
        }
    }
    (void)MPI_Bcast(&status, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return status;
}

// Between MPI_Init and MPI_Finalize. `error` is what went wrong before.
int run_all(const options &opt, std::unique_ptr<device> &gpu, std::string error)
{
    run r;
    r.opt = opt;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &r.ranks);
    if (error.empty()) {
        error = wrong_ranks(opt, r.ranks);
    }
    if (error.empty() && opt.needs_gpu() && opt.late_cuda) {
        gpu = device::open(local_rank_from_environment(), &error);
    }
    if (error.empty()) {
        error = mpi_without_cuda(opt);
    }
    if (error.empty()) {
        error = mpi_without_reductions(opt);
    }
    if (error.empty() && 0 == r.rank) {
        error = unwritable(opt);
    }
    // Exchanges host memory only, so it works whatever is wrong with the GPU.
    error = agree_on_error(error, MPI_COMM_WORLD);
    if (error.empty()) {
        const int half = r.ranks / 2;
        r.first = r.rank < half;
        r.peer = r.first ? r.rank + half : r.rank - half; // has no meaning in collectives
        r.gpu = gpu.get();
        error = agree_on_error(make_buffers(r), MPI_COMM_WORLD);
    }
    if (error.empty() && !opt.nccl.empty()) {
        r.nccl = nccl_peer::open(opt.nccl, *r.gpu, &error);
    }
    if (!error.empty()) {
        if (0 == r.rank) {
            std::fprintf(stderr, "gpusm_perf: %s\n", error.c_str());
        }
        return exit_usage;
    }
    std::unique_ptr<limit_probe> limit;
    if (opt.limit) {
        limit = std::make_unique<limit_probe>(r);
    }
    run_facts facts = gather_facts(r);
    if (nullptr != limit) {
        facts.link = limit->measure_link();
    }
    if (nullptr != limit && !limit->error().empty()) {
        facts.limit = "not available (" + limit->error() + ")";
    }
    if (0 == r.rank) {
        for (const std::string &line : header_lines(opt, facts)) {
            std::printf("%s\n", line.c_str());
        }
        std::printf("%s\n", table_head(opt).c_str());
        std::fflush(stdout);
    }
    r.counters = std::make_unique<path_counters>();
    r.before_warmup = r.counters->read();
    const outcome result = measure_all(r, limit.get(), facts.link);
    const int status = finish(r, facts, result);
    if (nullptr != limit) {
        limit->close();
    }
    return status;
}

} // namespace

} // namespace gpusm::bench

int main(int argc, char **argv)
{
    using namespace gpusm::bench;
    options opt;
    std::string error = parse_options(argc, argv, &opt);
    if (opt.help) {
        const char *rank = std::getenv("OMPI_COMM_WORLD_RANK");
        if (nullptr == rank || 0 == std::atoi(rank)) {
            std::fputs(help_text, stdout);
        }
        return 0;
    }
    if (!error.empty()) {
        error += "; see gpusm_perf --help";
    }
    std::unique_ptr<device> gpu;
    if (error.empty() && opt.needs_gpu() && !opt.late_cuda) {
        gpu = device::open(local_rank_from_environment(), &error);
    }
    (void)MPI_Init(&argc, &argv);
    const int status = run_all(opt, gpu, error);
    (void)MPI_Finalize();
    return status;
}
