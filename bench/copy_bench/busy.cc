// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// busy.cc: --busy, copies beside an application whose kernels fill the device.
#include "bench/copy_bench/measure.h"
#include "bench/copy_bench/parts.h"
#include "bench/copy_bench/spin_ptx.h"
#include "bench/copy_bench/table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

namespace {

constexpr unsigned block_threads = 1024; // as many as leave no room for another kernel beside them
constexpr unsigned spread_steps = 15;    // see spin_ptx.h

// Copies begin so long after the application's kernel was submitted, or up to phase_us later: the
// device is full by then, and no repetition meets the blocks at the moment of the one before.
constexpr double head_start_us = 150;
constexpr double phase_us = 100;

// A kernel of the application.
struct load {
    const char *name;
    double shortest_us; // time of a block
    double longest_us;
    unsigned waves; // blocks, in multiples of what the device holds; 0: no kernel
};

// Eight waves outlast the copies of busy_cells by far; so does the long one.
constexpr load loads[] = {
    {"none", 0, 0, 0},
    {"blocks of 100 us, all in step", 100, 100, 8},
    {"blocks of 50 to 150 us", 50, 150, 8},
    {"one wave of blocks of 5 ms", 5000, 5000, 1},
};

class application {
  public:
    explicit application(const workplace &at) : at_(at) {}
    // Waits until nothing runs.
    ~application();
    application(const application &) = delete;
    application &operator=(const application &) = delete;

    std::string open();
    std::string start(const load &what);
    // Nothing runs any more, or it has failed, which finish() says.
    bool is_over() const { return CUDA_ERROR_NOT_READY != at_.driver().stream_query(stream_); }
    std::string finish() const;

    // How many blocks the device holds, and what a wave of blocks of 100 us takes.
    std::string describe();

  private:
    unsigned attribute(CUdevice_attribute which, unsigned otherwise) const;

    const workplace &at_;
    CUmodule module_ = nullptr;
    CUfunction spin_ = nullptr;
    CUstream stream_ = nullptr; // of the priority that an application's streams have
    unsigned capacity_ = 1;     // blocks that run at once
    double cycles_per_us_ = 1000;
};

application::~application()
{
    if (stream_ != nullptr) {
        (void)at_.driver().stream_synchronize(stream_);
        (void)at_.driver().stream_destroy(stream_);
    }
    if (module_ != nullptr) {
        (void)at_.driver().module_unload(module_);
    }
}

unsigned application::attribute(CUdevice_attribute which, unsigned otherwise) const
{
    int value = 0;
    const CUresult result =
        at_.gpu().driver().device_get_attribute(&value, which, at_.on().ordinal);
    return CUDA_SUCCESS == result && value > 0 ? static_cast<unsigned>(value) : otherwise;
}

std::string application::open()
{
    const driver_api &driver = at_.driver();
    CUresult result = driver.module_load_data(&module_, spin_ptx, 0, nullptr, nullptr);
    if (CUDA_SUCCESS != result) {
        module_ = nullptr;
        return at_.sentence("cuModuleLoadDataEx", result);
    }
    result = driver.module_get_function(&spin_, module_, spin_name);
    if (CUDA_SUCCESS != result) {
        return at_.sentence("cuModuleGetFunction", result);
    }
    result = driver.stream_create(&stream_, CU_STREAM_NON_BLOCKING, 0);
    if (CUDA_SUCCESS != result) {
        stream_ = nullptr;
        return at_.sentence("cuStreamCreateWithPriority", result);
    }
    const unsigned threads =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, block_threads);
    capacity_ = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1) *
                std::max(1U, threads / block_threads);
    cycles_per_us_ = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000) / 1e3; // from kHz
    const std::string error = start(loads[1]); // the first launch takes longer than others
    return error.empty() ? finish() : error;
}

std::string application::start(const load &what)
{
    auto cycles = static_cast<std::uint64_t>(what.shortest_us * cycles_per_us_);
    auto spread = static_cast<std::uint64_t>((what.longest_us - what.shortest_us) / spread_steps *
                                             cycles_per_us_);
    void *parameters[] = {&cycles, &spread};
    const CUresult result = at_.driver().launch_kernel(
        spin_, capacity_ * what.waves, 1, 1, block_threads, 1, 1, 0, stream_, parameters, nullptr);
    return CUDA_SUCCESS == result ? std::string()
                                  : at_.sentence("starting the application's kernel", result);
}

std::string application::finish() const
{
    const CUresult result = at_.driver().stream_synchronize(stream_);
    return CUDA_SUCCESS == result ? std::string()
                                  : at_.sentence("the application's kernel", result);
}

std::string application::describe()
{
    const load one_wave = {"", 100, 100, 1};
    const auto begin = clock_type::now();
    std::string error = start(one_wave);
    if (error.empty()) {
        error = finish();
    }
    char text[160];
    std::snprintf(text, sizeof(text),
                  "the device holds %u blocks of %u threads; one wave of 100 us takes %.0f us from "
                  "its launch until the host knows",
                  capacity_, block_threads, us_between(begin, clock_type::now()));
    return error.empty() ? text : error;
}

// Copies beside one kernel of the application.
class meeting {
  public:
    meeting(application &beside, const load &what, submitter &by, copy_list &copies)
        : beside_(beside), what_(what), by_(by), copies_(copies)
    {
    }

    std::string once(copy_way way, sample *out);
    int ended_first() const { return ended_first_; } // times that the application did

  private:
    application &beside_;
    const load &what_;
    submitter &by_;
    copy_list &copies_;
    int times_ = 0;
    int ended_first_ = 0;
};

std::string meeting::once(copy_way way, sample *out)
{
    if (0 == what_.waves) {
        return submit_once(by_, way, copies_, out);
    }
    std::string error = beside_.start(what_);
    if (!error.empty()) {
        return error;
    }
    const double pause_us = head_start_us + phase_us * (times_++ * 37 % 100) / 100;
    for (const auto begin = clock_type::now(); us_between(begin, clock_type::now()) < pause_us;) {
    }
    error = submit_once(by_, way, copies_, out);
    ended_first_ += beside_.is_over() ? 1 : 0;
    const std::string failed = beside_.finish();
    return error.empty() ? failed : error;
}

std::string print_row(workplace &at, application &beside, const load &what, submitter &by,
                      const cell &of, const table &out)
{
    copy_list copies(at, of);
    std::vector<std::string> medians;
    std::vector<std::string> longest;
    std::vector<std::string> ended_first;
    for (const copy_way way : all_ways) {
        samples measured;
        std::string error;
        meeting both(beside, what, by, copies);
        const repetition once = [&](sample *into) { return both.once(way, into); };
        if (by.has(way)) {
            error = repeat(once, least_repetitions, 0, &measured);
        }
        const int times = both.ended_first();
        if (error.empty() && by.has(way)) {
            error = check_bytes(at, of, name_of(way) + std::string(", application: ") + what.name,
                                once);
        }
        if (!error.empty()) {
            return error;
        }
        medians.push_back(us_text(measured.median_of(&sample::seen_us)));
        longest.push_back(us_text(measured.longest_of(&sample::seen_us)));
        ended_first.push_back(by.has(way) && what.waves > 0
                                  ? std::to_string(times) + "/" +
                                        std::to_string(measured.all.size() + 1)
                                  : "-");
    }
    std::vector<std::string> row = {what.name, std::to_string(of.copies), size_text(of.len_bytes)};
    for (const auto &part : {medians, longest, ended_first}) {
        row.insert(row.end(), part.begin(), part.end());
    }
    out.row(row);
    return {};
}

} // namespace

std::string print_busy(const options &opt, workplace &at, submitter &by)
{
    application beside(at);
    std::string error = beside.open();
    if (!error.empty()) {
        return error;
    }
    print_title(opt.markdown, "copies beside an application's kernels");
    constexpr std::size_t label_width = 30;
    const table out(opt.markdown,
                    {"application", "copies", "size", "single us", "batch us", "kernel us",
                     "longest single", "longest batch", "longest kernel", "ended first: single",
                     "batch", "kernel"},
                    label_width);
    for (const cell &of : busy_cells) {
        for (const load &what : loads) {
            error = print_row(at, beside, what, by, of, out);
            if (!error.empty()) {
                return error;
            }
        }
    }
    print_remark(opt.markdown, beside.describe());
    return {};
}

} // namespace gpusm::copy_bench
