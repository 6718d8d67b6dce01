// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_bench.cc: the ways in which gpusm copies out of another device's memory, and whether it
// takes the best one (gpu/copy_choice.h). `copy_bench --help` is the manual.
#include "bench/common/numbers.h"
#include "bench/common/buffer.h"
#include "bench/common/driver_api.h"
#include "bench/common/placed.h"
#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/gpu/copy_choice.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"

#include <getopt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::bench {

namespace {

using clock_type = std::chrono::steady_clock;

constexpr int exit_failed = 1;
constexpr int exit_usage = 2;
constexpr std::size_t most_cell_bytes = std::size_t{1} << 30;
constexpr std::chrono::seconds patience{5}; // a copy that takes longer was never started
constexpr double tolerance = 1.10;          // of the best way's time

constexpr const char *help_text = R"(usage: copy_bench [options]

Measures copies by device 0 out of the memory of device 1 (its own, when there is no other) in the
three ways that gpusm has, without MPI, and which of them gpusm takes:

  single    one cuMemcpyAsync each, then one event
  batch     one cuMemcpyBatchAsync, then one event
  kernel    one launch of the gather kernel, which sets a flag in host memory

Times are medians in microseconds from the first driver call until the processor has seen that
everything is there; "submit" is the part that the submitting calls take. Afterwards every byte is
compared for each way. A choice is good when it takes at most 10 % longer than the best way.

  --counts A,B,C copies at once, 1 to 128 (default 1,2,4,8,16,32,64,128)
  --sizes A,B,C  bytes of a copy, suffixes K M G (powers of 1024), up to 1G (default
                 8,64,512,4K,16K,64K,256K,1M,2M,4M,16M); what is more than 1 GiB in all is left out
  --iterations N of each way and cell (default 100)
  --blocks N     thread blocks of the kernel at most, 0 for no kernel (default: gpusm's)
  -h, --help     this text

status: 0 fine; 1 wrong bytes or a failing driver call; 2 bad usage, no driver, or no device that
can be used
)";

struct options {
    std::vector<int> counts;
    std::vector<std::size_t> sizes;
    int iterations = 100;
    int blocks = static_cast<int>(copy_limits{}.kernel_blocks);
    bool help = false;
};

bool set_counts(const std::string &text, options *result)
{
    result->counts.clear();
    bool good = true;
    for (const std::string &item : split(text)) {
        good = good && parse_count(item, 1, gather_most_copies, &result->counts.emplace_back());
    }
    return good;
}

bool set_sizes(const std::string &text, options *result)
{
    result->sizes.clear();
    bool good = true;
    for (const std::string &item : split(text)) {
        std::size_t &bytes = result->sizes.emplace_back();
        good = good && parse_size(item, &bytes) && 0 < bytes && bytes <= most_cell_bytes;
    }
    return good;
}

std::string parse_options(int argc, char **argv, options *result)
{
    static const option known[] = {
        {"counts", 1, nullptr, 'c'}, {"sizes", 1, nullptr, 'z'}, {"iterations", 1, nullptr, 'i'},
        {"blocks", 1, nullptr, 'b'}, {"help", 0, nullptr, 'h'},  {nullptr, 0, nullptr, 0},
    };
    (void)set_counts("1,2,4,8,16,32,64,128", result);
    (void)set_sizes("8,64,512,4K,16K,64K,256K,1M,2M,4M,16M", result);
    opterr = 0;
    for (int which; (which = getopt_long(argc, argv, ":h", known, nullptr)) != -1;) {
        const std::string value = nullptr == optarg ? "" : optarg;
        if ('?' == which || ':' == which) {
            return refusal(which, argv);
        }
        if (('c' == which && !set_counts(value, result)) ||
            ('z' == which && !set_sizes(value, result)) ||
            ('i' == which && !parse_count(value, 1, 1000000, &result->iterations)) ||
            ('b' == which && !parse_count(value, 0, 1024, &result->blocks))) {
            return "bad value '" + value + "'";
        }
        result->help = result->help || 'h' == which;
    }
    return optind < argc ? std::string("unexpected argument '") + argv[optind] + "'" : "";
}

constexpr std::array<copy_way, 3> all_ways = {copy_way::single, copy_way::batch, copy_way::kernel};

constexpr std::size_t index_of(copy_way way)
{
    return static_cast<std::size_t>(way);
}

const char *name_of(copy_way way)
{
    return copy_way::single == way ? "single" : copy_way::batch == way ? "batch" : "kernel";
}

// Copies of one size, in the forms that the driver's functions want.
struct copy_list {
    copy_list(const buffer &to, const buffer &from, const placement &at)
    {
        for (std::size_t i = 0; i < at.places; ++i) {
            destinations.push_back(address_of(to) + at.at(i));
            sources.push_back(address_of(from) + at.at(i));
            sizes.push_back(at.len_bytes);
            gathered.push_back(
                {destinations[i], sources[i], static_cast<std::uint32_t>(at.len_bytes), 0});
        }
    }
    std::vector<CUdeviceptr> destinations;
    std::vector<CUdeviceptr> sources;
    std::vector<std::size_t> sizes;
    std::vector<gather_copy> gathered;
};

// Microseconds until the calls are over, and until the end is seen, by repetition.
struct samples {
    std::vector<double> submit_us;
    std::vector<double> seen_us;
};

using way_samples = std::array<samples, all_ways.size()>; // by way

std::string us_text(double us)
{
    char text[32] = "-";
    if (us > 0) {
        std::snprintf(text, sizeof(text), us < 100 ? "%.2f" : "%.1f", us);
    }
    return text;
}

// Two devices, memory on both, and one submission of copies at a time. The driver calls are those
// of gpu/driver_executor.cc and gpu/kernel_executor.cc. Strings are empty on success.
class copy_site {
  public:
    explicit copy_site(const options &opt) : opt_(opt) {}
    ~copy_site();
    copy_site(const copy_site &) = delete;
    copy_site &operator=(const copy_site &) = delete;

    std::string open_driver();
    std::string open_memory();
    bool has(copy_way way) const
    {
        return copy_way::single == way || (copy_way::batch == way ? has_batch_ : kernel_->loaded());
    }
    std::string text() const; // who copies from where, by what
    // Repetitions of all ways in turns, and then once each with a look at every byte.
    std::string measure(const placement &at, way_samples *to);

  private:
    std::string submit(copy_way way, copy_list &copies);
    std::string wait(copy_way way);
    std::string once(copy_way way, copy_list &copies, samples *out);
    std::string check(copy_way way, copy_list &copies, const placement &at);

    const options &opt_;
    std::unique_ptr<device> here_;  // copies
    std::unique_ptr<device> there_; // has the memory
    const gpusm::driver_api *driver_ = nullptr;
    std::unique_ptr<gather_kernel> kernel_;
    std::unique_ptr<buffer> source_;
    std::unique_ptr<buffer> destination_;
    CUstream stream_ = nullptr;
    CUevent event_ = nullptr;
    bool has_batch_ = false;
};

std::string copy_site::open_driver()
{
    std::string why;
    there_ = device::open(1, &why);
    here_ = nullptr == there_ ? nullptr : device::open(0, &why);
    if (nullptr == here_) {
        return why;
    }
    driver_ = driver_load();
    if (nullptr == driver_) {
        return "the CUDA driver lacks a function that gpusm needs";
    }
    if (here_->ordinal() != there_->ordinal()) {
        why = here_->judge("cuCtxEnablePeerAccess",
                           here_->driver().ctx_enable_peer_access(there_->context(), 0));
        if (!why.empty()) {
            return "device 0 cannot read the memory of device 1: " + why;
        }
    }
    why = here_->judge("cuStreamCreate",
                       here_->driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING));
    why += here_->judge("cuEventCreate",
                        here_->driver().event_create(&event_, CU_EVENT_DISABLE_TIMING));
    kernel_ = std::make_unique<gather_kernel>(*driver_, std::max(1u, unsigned(opt_.blocks)));
    if (opt_.blocks > 0) {
        (void)kernel_->load(); // has() tells, and the log why
    }
    return why;
}

std::string copy_site::open_memory()
{
    std::size_t room = 0;
    for (const int copies : opt_.counts) {
        for (const std::size_t size : opt_.sizes) {
            const auto places = static_cast<std::size_t>(copies);
            room = places * size > most_cell_bytes ? room
                                                   : std::max(room, placement{size, places}.end());
        }
    }
    if (0 == room) {
        return "every combination of --counts and --sizes is more than 1 GiB";
    }
    std::string why = there_->make_current();
    source_ = buffer::make(memory_kind::device, room, there_.get(), &why);
    why += here_->make_current();
    destination_ = buffer::make(memory_kind::device, room, here_.get(), &why);
    if (why.empty()) {
        copy_list some(*destination_, *source_, {1, 2});
        has_batch_ = submit(copy_way::batch, some).empty();
        why = here_->judge("cuStreamSynchronize", here_->driver().stream_synchronize(stream_));
    }
    return why;
}

copy_site::~copy_site()
{
    if (nullptr != kernel_) {
        // A flag may be seen a moment before its kernel is over.
        (void)here_->driver().stream_synchronize(stream_);
        kernel_->unload();
    }
}

std::string copy_site::text() const
{
    return here_->text() + ", copies from " + there_->text() +
           "; blocks of the kernel: " + std::to_string(has(copy_way::kernel) ? opt_.blocks : 0) +
           "; batch: " + (has_batch_ ? "cuMemcpyBatchAsync" : "none");
}

std::string copy_site::submit(copy_way way, copy_list &copies)
{
    CUresult result = CUDA_SUCCESS;
    if (copy_way::kernel == way) {
        result = kernel_->launch(stream_, 0, copies.gathered.data(),
                                 static_cast<std::uint32_t>(copies.gathered.size()));
        return here_->judge("launching the gather kernel", result);
    }
    if (copy_way::batch == way) {
        result = driver_->copy_batch(copies.destinations.data(), copies.sources.data(),
                                     copies.sizes.data(), copies.sizes.size(), stream_);
    } else {
        for (std::size_t i = 0; i < copies.sizes.size() && CUDA_SUCCESS == result; ++i) {
            result = driver_->memcpy_async(copies.destinations[i], copies.sources[i],
                                           copies.sizes[i], stream_);
        }
    }
    result = CUDA_SUCCESS == result ? driver_->event_record(event_, stream_) : result;
    return here_->judge(name_of(way), result);
}

// Returns when the processor sees that all copies are done, or that they never will be.
std::string copy_site::wait(copy_way way)
{
    const auto late = clock_type::now() + patience;
    CUresult result = CUDA_ERROR_NOT_READY;
    for (unsigned looks = 1; CUDA_ERROR_NOT_READY == result; ++looks) {
        result = copy_way::kernel != way ? driver_->event_query(event_)
                 : kernel_->finished(0)  ? CUDA_SUCCESS
                                         : CUDA_ERROR_NOT_READY;
        if (CUDA_ERROR_NOT_READY == result && 0 == looks % 1024 && clock_type::now() > late) {
            result = CUDA_ERROR_LAUNCH_TIMEOUT;
        }
    }
    return here_->judge((std::string("waiting for copies, ") + name_of(way)).c_str(), result);
}

std::string copy_site::once(copy_way way, copy_list &copies, samples *out)
{
    const auto us_since = [](clock_type::time_point begin) {
        return std::chrono::duration<double, std::micro>(clock_type::now() - begin).count();
    };
    const auto begin = clock_type::now();
    std::string error = submit(way, copies);
    out->submit_us.push_back(us_since(begin));
    if (error.empty()) {
        error = wait(way);
    }
    out->seen_us.push_back(us_since(begin));
    return error;
}

std::string copy_site::check(copy_way way, copy_list &copies, const placement &at)
{
    std::vector<placed_message> expected;
    for (std::size_t i = 0; i < at.places; ++i) {
        expected.push_back({at.at(i), at.len_bytes, i + 1});
    }
    std::string error = there_->make_current();
    error += fill_placed(*source_, at.end(), expected) + here_->make_current();
    error += error.empty() ? destination_->poison(0, at.end()) : "";
    samples unused;
    error += error.empty() ? once(way, copies, &unused) : "";
    error += error.empty() ? compare_placed(*destination_, at.end(), expected, "copy") : "";
    return error.empty() ? error
                         : std::to_string(at.places) + " x " + size_text(at.len_bytes) + ", " +
                               name_of(way) + ": " + error;
}

std::string copy_site::measure(const placement &at, way_samples *to)
{
    copy_list copies(*destination_, *source_, at);
    std::string error;
    // The ways take turns, so that a drift meets all of them. The first turn does not count.
    way_samples first;
    for (int i = -1; i < opt_.iterations; ++i) {
        for (const copy_way way : all_ways) {
            samples *out = &(i < 0 ? first : *to)[index_of(way)];
            error = has(way) && error.empty() ? once(way, copies, out) : error;
        }
    }
    for (const copy_way way : all_ways) {
        error = has(way) && error.empty() ? check(way, copies, at) : error;
    }
    return error;
}

std::string print_table(const options &opt, copy_site &site)
{
    int cells = 0;
    int good = 0;
    double worst = 0; // time of the choice / time of the best way
    std::printf("copy_bench: %s\n\n", site.text().c_str());
    std::puts("| copies | size | single us | batch us | kernel us | choice | best | good | GB/s |"
              " submit single | submit batch | submit kernel |\n"
              "| ---: | ---: | ---: | ---: | ---: | --- | --- | --- | ---: | ---: | ---: | ---: |");
    for (const std::size_t len_bytes : opt.sizes) {
        for (const int copies : opt.counts) {
            const placement at{len_bytes, static_cast<std::size_t>(copies)};
            if (at.places * len_bytes > most_cell_bytes) {
                continue;
            }
            way_samples measured;
            const std::string error = site.measure(at, &measured);
            if (!error.empty()) {
                return error;
            }
            copy_ways usable;
            for (const copy_way way : all_ways) {
                usable = usable.with(way, site.has(way));
            }
            const copy_way choice =
                way_for(unsigned(copies), kind_of(len_bytes, true, false, false, copy_limits{}),
                        false, usable);
            std::array<double, 3> seen{};
            std::array<double, 3> submit{};
            copy_way best = copy_way::single;
            for (const copy_way way : all_ways) {
                const auto i = index_of(way);
                seen[i] = median_of(measured[i].seen_us);
                submit[i] = median_of(measured[i].submit_us);
                best = seen[i] > 0 && seen[i] < seen[index_of(best)] ? way : best;
            }
            const double chosen_us = seen[index_of(choice)];
            const double ratio = chosen_us / seen[index_of(best)];
            std::printf("| %d | %s | %s | %s | %s | %s | %s | %s | %.4g | %s | %s | %s |\n", copies,
                        size_text(len_bytes).c_str(), us_text(seen[0]).c_str(),
                        us_text(seen[1]).c_str(), us_text(seen[2]).c_str(), name_of(choice),
                        name_of(best), ratio <= tolerance ? "yes" : "no",
                        static_cast<double>(at.places * len_bytes) / chosen_us / 1e3,
                        us_text(submit[0]).c_str(), us_text(submit[1]).c_str(),
                        us_text(submit[2]).c_str());
            (void)std::fflush(stdout);
            ++cells;
            good += ratio <= tolerance ? 1 : 0;
            worst = std::max(worst, ratio);
        }
    }
    std::printf("\ngpusm's choice is good in %d of %d cells, and takes at most %.2f times as long "
                "as the best "
                "way. Every byte was right.\n",
                good, cells, worst);
    return {};
}

int run(int argc, char **argv)
{
    options opt;
    int status = exit_usage;
    std::string error = parse_options(argc, argv, &opt);
    if (error.empty() && opt.help) {
        std::fputs(help_text, stdout);
        return 0;
    }
    log_install([](log_level, const char *line) { std::fprintf(stderr, "# %s\n", line); },
                log_level::info);
    copy_site site(opt);
    error = error.empty() ? site.open_driver() : error + "; see --help";
    error = error.empty() ? site.open_memory() : error;
    if (error.empty()) {
        status = exit_failed;
        error = print_table(opt, site);
    }
    if (!error.empty()) {
        (void)std::fflush(stdout);
        std::fprintf(stderr, "copy_bench: %s\n", error.c_str());
    }
    return error.empty() ? 0 : status;
}

} // namespace

} // namespace gpusm::bench

int main(int argc, char **argv)
{
    return gpusm::bench::run(argc, argv);
}
