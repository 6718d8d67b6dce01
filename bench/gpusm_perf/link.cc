// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// link.cc: how many bytes per second the bare driver moves at best, and which rows claim more.
#include "bench/gpusm_perf/limit.h"
#include "bench/gpusm_perf/report.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace gpusm::bench {

namespace {

constexpr int samples = 5;
constexpr std::size_t mebi = std::size_t{1} << 20;
// Copied back to back in one sample. Less where host memory, an order of magnitude slower, is one
// end; a software driver only has to show that it works.
constexpr std::size_t sample_bytes = 1024 * mebi;
constexpr std::size_t sample_host_bytes = 256 * mebi;
constexpr std::size_t sample_software_bytes = 8 * mebi;
// A cache may still hold a part of what was touched last, if everything is not much larger.
constexpr std::size_t cache_multiple = 4;

bool across(const options &opt)
{
    return is_gpu(opt.source) && is_gpu(opt.destination);
}

std::size_t copies_in_sample(const run &r, std::size_t len_bytes)
{
    const std::size_t total = r.gpu->is_software() ? sample_software_bytes
                              : across(r.opt)      ? sample_bytes
                                                   : sample_host_bytes;
    return std::max<std::size_t>(1, total / len_bytes);
}

std::vector<std::size_t> link_copies(const run &r)
{
    if (r.gpu->is_software()) {
        return {4 * mebi};
    }
    std::vector<std::size_t> sizes = {64 * mebi};
    if (r.opt.is_pairwise()) {
        sizes.push_back(256 * mebi);
    }
    const std::size_t largest = *std::max_element(r.opt.sizes.begin(), r.opt.sizes.end());
    if (largest > sizes.back()) {
        sizes.push_back(largest);
    }
    return sizes;
}

// Every rank's device.
std::vector<std::string> devices_of_ranks(const run &r)
{
    char mine[40] = "";
    std::snprintf(mine, sizeof(mine), "%s", r.gpu->uuid().c_str());
    std::vector<char> all(sizeof(mine) * static_cast<std::size_t>(r.ranks));
    (void)MPI_Allgather(mine, sizeof(mine), MPI_CHAR, all.data(), sizeof(mine), MPI_CHAR,
                        MPI_COMM_WORLD);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < all.size(); i += sizeof(mine)) {
        names.emplace_back(all.data() + i);
    }
    return names;
}

bool has_pair_on_one_device(const std::vector<std::string> &devices)
{
    const std::size_t half = devices.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
        if (devices[i] == devices[i + half]) {
            return true;
        }
    }
    return false;
}

} // namespace

bool has_link(const options &opt)
{
    if (memory_kind::managed == opt.source || memory_kind::managed == opt.destination) {
        return false;
    }
    return across(opt) || (opt.is_pairwise() && opt.uses_gpu());
}

std::size_t largest_link_copy(const run &r)
{
    const std::vector<std::size_t> sizes = link_copies(r);
    return *std::max_element(sizes.begin(), sizes.end());
}

// Bytes per second over all ranks, the best sample; this rank copies by `channels`, from `source`.
double limit_probe::best_rate(std::span<copy_channel *const> channels, std::size_t source,
                              int streams)
{
    double best = 0;
    for (std::size_t len_bytes : link_copies(r_)) {
        const std::size_t copies = copies_in_sample(r_, len_bytes);
        const pieces list(copies, copy_piece{source, 0, 0});
        for (int i = 0; i < samples * variants_; ++i) {
            (void)MPI_Barrier(MPI_COMM_WORLD);
            const double taken_s = start_and_finish(channels, i % variants_, list, len_bytes);
            const double slowest_s = slowest_of({taken_s})[0];
            const double bytes = static_cast<double>(len_bytes * copies) * streams;
            best = slowest_s > 0 ? std::max(best, bytes / slowest_s) : best;
        }
    }
    return best;
}

double limit_probe::pair_link()
{
    copy_channel *const both[] = {from_first_.get(), from_second_.get()};
    if (perf_mode::bibw == r_.opt.mode) {
        return best_rate(both, 0, 2);
    }
    const double there = best_rate({both, 1}, 0, r_.pairs());
    return r_.one_way() ? there : std::max(there, best_rate({both + 1, 1}, 0, 1));
}

// The device of rank 0 takes from each other device what the ranks on the two have for each other.
// The pair of devices that needs the longest is the link.
double limit_probe::all_to_all_link(const std::vector<std::string> &devices, double *crossing)
{
    auto ranks_on = [&](const std::string &device) {
        return static_cast<double>(std::count(devices.begin(), devices.end(), device));
    };
    const double here = ranks_on(devices[0]);
    copy_channel *const mine = 0 == r_.rank ? from_first_.get() : nullptr;
    double chosen = 0;
    for (std::size_t i = 1; i < devices.size(); ++i) {
        const bool seen = devices.begin() + static_cast<std::ptrdiff_t>(i) !=
                          std::find(devices.begin(), devices.end(), devices[i]);
        if (seen || devices[i] == devices[0]) {
            continue;
        }
        const double rate = best_rate({&mine, 1}, i, 1);
        const double blocks = here * ranks_on(devices[i]);
        if (rate > 0 && (0 == chosen || blocks / rate > *crossing / chosen)) {
            chosen = rate;
            *crossing = blocks;
        }
    }
    if (here < static_cast<double>(devices.size())) {
        return chosen;
    }
    *crossing = here * here;
    return best_rate({&mine, 1}, 0, 1);
}

link_figure limit_probe::measure_link()
{
    link_figure link;
    if (!error_.empty() || !has_link(r_.opt)) {
        return link;
    }
    const std::vector<std::string> devices = devices_of_ranks(r_);
    bool inside = false; // one device
    double rate = 0;
    if (r_.opt.is_pairwise()) {
        inside = across(r_.opt) && has_pair_on_one_device(devices);
        rate = pair_link();
    } else {
        inside = std::count(devices.begin(), devices.end(), devices[0]) == r_.ranks;
        rate = all_to_all_link(devices, &link.crossing);
    }
    error_ = agree_on_error(failure_, MPI_COMM_WORLD);
    if (!error_.empty()) {
        return link;
    }
    link.bytes_per_s = rate * r_.opt.link_scale;
    const bool scaled = 1 != r_.opt.link_scale; // then every row counts
    link.least_bytes = inside && !scaled ? cache_multiple * r_.gpu->l2_cache_bytes() : 0;
    link.enforced = scaled || !r_.gpu->is_software();
    char text[200];
    std::snprintf(text, sizeof(text), "%.4g GB/s, the bare driver at its best, %s%s%s%s",
                  link.bytes_per_s / 1e9,
                  inside           ? "within a device"
                  : across(r_.opt) ? "between two devices"
                                   : "between device and host",
                  perf_mode::bibw == r_.opt.mode ? ", both ways at once" : "",
                  perf_mode::mbw_mr == r_.opt.mode ? ", all pairs at once" : "",
                  scaled ? ", scaled" : "");
    link.text = text;
    if (!link.enforced) {
        link.text += "; not held against a software driver";
    }
    return link;
}

std::string above_link(const run &r, const link_figure &link, const row &line)
{
    const placement places = r.places_for(line.len_bytes);
    const std::size_t touched = 2 * places.places * line.len_bytes;
    if (0 == line.len_bytes || !link.enforced || link.bytes_per_s <= 0 ||
        touched < link.least_bytes) {
        return {};
    }
    const double rate = r.opt.is_bandwidth() ? line.measured.bytes_per_s
                                             : static_cast<double>(line.len_bytes) * link.crossing /
                                                   (line.measured.latency_us / 1e6);
    if (rate <= link_figure::tolerance * link.bytes_per_s) {
        return {};
    }
    char text[200];
    std::snprintf(text, sizeof(text),
                  "ABOVE THE LINK: %zu bytes went at %.6g GB/s, but the bare driver moves no more "
                  "than %.6g GB/s; was everything moved?",
                  line.len_bytes, rate / 1e9, link.bytes_per_s / 1e9);
    return text;
}

} // namespace gpusm::bench
