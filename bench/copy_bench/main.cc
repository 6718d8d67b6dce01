// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// main.cc: START HERE. copy_bench measures the ways in which gpusm copies out of a peer GPU's
// memory, and whether it takes the best one. `copy_bench --help` is the manual.
#include "bench/copy_bench/options.h"
#include "bench/copy_bench/parts.h"
#include "bench/copy_bench/table.h"
#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>

namespace gpusm::copy_bench {

namespace {

constexpr int exit_failed = 1;
constexpr int exit_usage = 2;

int complain(const std::string &sentence, int status)
{
    (void)std::fflush(stdout);
    std::fprintf(stderr, "copy_bench: %s\n", sentence.c_str());
    return status;
}

std::string last_remark; // of gpusm's code; after a kernel was refused: why

void take_log_line(log_level level, const char *line)
{
    if (log_level::info == level) {
        last_remark = line;
    } else {
        std::fprintf(stderr, "copy_bench: %s\n", line);
    }
}

void print_header(const options &opt, const workplace &at, const submitter &by)
{
    if (opt.markdown) {
        std::puts("```");
    }
    std::printf("# copy_bench, %s\n", at.describe().c_str());
    std::string kernel = "at most " + std::to_string(opt.blocks) + " blocks";
    if (!by.has(copy_way::kernel)) {
        kernel = 0 == opt.blocks ? "none" : "none; " + last_remark;
    }
    std::printf("# kernel: %s\n", kernel.c_str());
    std::printf("# batch: %s\n", by.has(copy_way::batch) ? "cuMemcpyBatchAsync" : "none");
    if (opt.markdown) {
        std::puts("```");
    }
}

std::string print_parts(const options &opt, workplace &at, submitter &by)
{
    std::string error;
    if (opt.cells) {
        error = print_cells(opt, at, by);
    }
    if (opt.signals && error.empty()) {
        error = print_signals(opt, at, by);
    }
    if (opt.grid && error.empty()) {
        error = print_grid(opt, at);
    }
    if (opt.host && error.empty()) {
        error = print_host(opt, at, by);
    }
    if (opt.busy && error.empty()) {
        error = print_busy(opt, at, by);
    }
    return error;
}

int measure(const options &opt)
{
    log_install(take_log_line, log_level::info);
    std::string why;
    const auto at = workplace::open(opt.same_gpu, room_for(opt), &why);
    if (nullptr == at) {
        return complain(why, exit_usage);
    }
    submitter by(*at, opt.blocks);
    why = by.open();
    if (!why.empty()) {
        return complain(why, exit_failed);
    }
    print_header(opt, *at, by);
    why = print_parts(opt, *at, by);
    if (!why.empty()) {
        return complain(why, exit_failed);
    }
    print_remark(opt.markdown, "every byte of every cell was right, in each way that there is");
    return 0;
}

} // namespace

std::size_t room_for(const options &opt)
{
    std::size_t most = cell{2, 8}.room_bytes(); // of the signals, and of what is tried first
    const auto make_room = [&](const cell &of) { most = std::max(most, of.room_bytes()); };
    if (opt.cells) {
        for (const std::uint32_t copies : opt.counts) {
            for (const std::size_t len_bytes : opt.sizes) {
                if (copies * len_bytes <= most_cell_bytes) {
                    make_room({copies, len_bytes});
                }
            }
        }
    }
    if (opt.grid) {
        std::for_each(std::begin(grid_cells), std::end(grid_cells), make_room);
    }
    if (opt.host) {
        std::for_each(std::begin(host_cells), std::end(host_cells), make_room);
    }
    if (opt.busy) {
        std::for_each(std::begin(busy_cells), std::end(busy_cells), make_room);
    }
    return most;
}

} // namespace gpusm::copy_bench

int main(int argc, char **argv)
{
    gpusm::copy_bench::options opt;
    const std::string wrong = gpusm::copy_bench::parse_options(argc, argv, &opt);
    if (!wrong.empty()) {
        std::fprintf(stderr, "copy_bench: %s; see --help\n", wrong.c_str());
        return 2;
    }
    if (opt.help) {
        std::fputs(gpusm::copy_bench::help_text, stdout);
        return 0;
    }
    return gpusm::copy_bench::measure(opt);
}
