// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// main.cc: START HERE. gpusm_perf measures what messages between the ranks of one node cost, for
// every kind of memory, next to what the bare copy costs. `gpusm_perf --help` is the manual.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <dlfcn.h>

namespace gpusm::bench {

namespace {

constexpr int exit_wrong = 1;
constexpr int exit_usage = 2;
constexpr double link_tolerance = 1.05;

// Whether Open MPI tells device memory from host memory. MPIX_Query_cuda_support asks for the name
// of one component that does; this asks the one that is there.
bool accepts_device_memory(const device *gpu)
{
    using check_fn = int (*)(const void *address, int *device, std::uint64_t *flags);
    auto *table = static_cast<check_fn *>(dlsym(RTLD_DEFAULT, "opal_accelerator"));
    std::string why;
    const auto some = buffer::make(memory_kind::device, 1, gpu, &why);
    int ordinal = 0;
    std::uint64_t flags = 0;
    return nullptr == table || nullptr == some || (*table)(some->data(), &ordinal, &flags) > 0;
}

// What is missing, found out before the measurement and not after it.
std::string missing_requirement(const run &r)
{
    if (0 != r.ranks % 2) {
        return "needs an even number of ranks, not " + std::to_string(r.ranks);
    }
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
    if (perf_mode::check != r.opt.mode && r.opt.uses_gpu() && !accepts_device_memory(r.gpu)) {
        return "this Open MPI does not accept GPU buffers (its CUDA support is missing or off)";
    }
#endif
    return 0 == r.rank && !r.opt.json_path.empty() ? write_json(r, {}) : "";
}

int complain(const run &r, const std::string &sentence, int status)
{
    if (0 == r.rank) {
        (void)std::fflush(stdout);
        std::fprintf(stderr, "gpusm_perf: %s\n", sentence.c_str());
    }
    return status;
}

// All sizes. Rows are printed as they are measured. Returns the exit status, on all ranks.
int measure_all(run &r, bare_copies *copies, report *about)
{
    int status = 0;
    for (const std::size_t len_bytes : r.opt.sizes) {
        const double limit_us = nullptr != copies ? copies->limit_us(len_bytes)
                                : r.opt.limit && perf_mode::kernels == r.opt.mode
                                    ? kernels_alone_us(r)
                                    : 0;
        std::string mine;
        const rank_times times = measure(r, len_bytes, &mine);
        if (!mine.empty()) {
            mine = std::to_string(len_bytes) + " bytes, rank " + std::to_string(r.rank) +
                   ", from rank " + std::to_string(r.peer) + ", " + mine;
        }
        const std::string corruption = agree_on_error(mine);
        if (!corruption.empty()) {
            return complain(r, "CORRUPT DATA: " + corruption, exit_wrong);
        }
        const row line = make_row(r, len_bytes, times, limit_us);
        about->rows.push_back(line);
        if (0 == r.rank) {
            print_row(line);
        }
        const double link = about->link_gb_per_s;
        if (about->link_enforced && link > 0 && line.gb_per_s() > link * link_tolerance &&
            (r.opt.link_gb_per_s > 0 || !copies->fit_into_cache(len_bytes))) {
            status = complain(r,
                              "ABOVE THE LINK: " + std::to_string(len_bytes) + " bytes went at " +
                                  std::to_string(line.gb_per_s()) + " GB/s; was everything moved?",
                              exit_wrong);
        }
    }
    return status;
}

int run_measurements(run &r)
{
    const std::string error = make_buffers(r);
    if (!error.empty()) {
        return complain(r, error, exit_usage);
    }
    std::unique_ptr<bare_copies> copies;
    report about;
    about.limit = describe_limit(r.opt);
    about.link_gb_per_s = r.opt.link_gb_per_s;
    about.link_enforced = r.opt.link_gb_per_s > 0 || (nullptr != r.gpu && !r.gpu->is_software());
    if (r.opt.limit && perf_mode::kernels != r.opt.mode) {
        copies = std::make_unique<bare_copies>(r);
        if (0 == about.link_gb_per_s) {
            about.link_gb_per_s = copies->link_gb_per_s();
        }
        if (!copies->error().empty()) {
            about.limit = "not available (" + copies->error() + ")";
        }
    }
    about.devices = gather_devices(r);
    if (0 == r.rank) {
        print_header(r, about);
    }
    r.counters = std::make_unique<path_counters>();
    int status = measure_all(r, copies.get(), &about);
    about.paths = gather_paths(r);
    if (0 == r.rank) {
        print_ranks(about);
        const std::string unwritten = r.opt.json_path.empty() ? "" : write_json(r, about);
        if (!unwritten.empty()) {
            status = complain(r, unwritten, exit_usage);
        }
    }
    if (nullptr != copies) {
        copies->close();
    }
    return status;
}

// Between MPI_Init and MPI_Finalize. `no_device` says why there is none, `wrong` what is wrong with
// the command line.
int run_all(const options &opt, const device *gpu, const std::string &no_device, std::string wrong)
{
    run r;
    r.opt = opt;
    r.gpu = gpu;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &r.ranks);
    const bool checks = perf_mode::check == opt.mode;
    wrong = wrong.empty() && !checks ? no_device : wrong;
    wrong = wrong.empty() ? missing_requirement(r) : wrong;
    // Exchanges host memory only, so it works whatever is wrong with the GPU.
    wrong = agree_on_error(wrong);
    if (!wrong.empty()) {
        return complain(r, wrong, exit_usage);
    }
    r.first = r.rank < r.ranks / 2;
    r.peer = r.first ? r.rank + r.ranks / 2 : r.rank - r.ranks / 2;
    return checks ? check_everything(r, no_device) : run_measurements(r);
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
    if (!error.empty()) {
        error += "; see gpusm_perf --help";
    }
    // Before MPI_Init, because btl/smcuda of Open MPI 5.0 needs it; btl/gpusm does not.
    std::unique_ptr<device> gpu;
    std::string no_device;
    if (error.empty() && (perf_mode::check == opt.mode || opt.needs_gpu())) {
        gpu = device::open(local_rank_from_environment(), &no_device);
    }
    (void)MPI_Init(&argc, &argv);
    const int status = run_all(opt, gpu.get(), no_device, error);
    // The first rank that ends with a status makes mpirun end the others, whatever they still hold.
    (void)std::fflush(stdout);
    (void)MPI_Finalize();
    return status;
}
