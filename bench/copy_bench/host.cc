// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// host.cc: --host, copies between the device and registered host memory, by what the processor has
// done to that memory just before. A transport's staging memory has always just been written or
// read, and its lines are in a cache.
#include "bench/copy_bench/measure.h"
#include "bench/copy_bench/parts.h"
#include "bench/copy_bench/table.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gpusm::copy_bench {

namespace {

enum class way_over { in, out };

struct situation {
    const char *name;
    way_over direction;
    bool in_cache; // else in memory
};

constexpr situation situations[] = {
    {"into the device, at rest", way_over::in, false},
    {"into the device, just written", way_over::in, true},
    {"out of the device, at rest", way_over::out, false},
    {"out of the device, just read", way_over::out, true},
};

// False: this processor has no such instruction for programs.
bool put_to_rest([[maybe_unused]] const unsigned char *at, [[maybe_unused]] std::size_t len_bytes)
{
#if defined(__x86_64__)
    constexpr std::size_t line = 64;
    for (std::size_t i = 0; i < len_bytes; i += line) {
        _mm_clflush(at + i);
    }
    _mm_mfence();
    return true;
#else
    return false;
#endif
}

// Registered host memory in the place of a cell's source, and a copy of what is in that.
class host_side {
  public:
    host_side(const workplace &at, const cell &of)
        : at_(at), of_(of), shared_(at.driver(), of.room_bytes()), bytes_(of.room_bytes())
    {
    }

    // Empty, or a sentence.
    std::string open()
    {
        if (nullptr == shared_.data()) {
            return "--host: no page-locked memory";
        }
        const CUresult result =
            at_.driver().memcpy_async(shared_.on_device(), at_.source(), bytes_.size(), stream());
        const CUresult ended =
            CUDA_SUCCESS == result ? at_.driver().stream_synchronize(stream()) : result;
        std::memcpy(bytes_.data(), shared_.data(), bytes_.size());
        return CUDA_SUCCESS == ended ? std::string() : at_.sentence("--host: the bytes", ended);
    }

    copy_list copies(way_over direction) const
    {
        copy_list list(at_, of_);
        for (std::size_t i = 0; i < of_.copies; ++i) {
            const CUdeviceptr here = shared_.on_device() + i * of_.stride();
            const CUdeviceptr there = at_.destination() + i * of_.stride();
            list.sources[i] = list.gathered[i].source = way_over::in == direction ? here : there;
            list.destinations[i] = list.gathered[i].destination =
                way_over::in == direction ? there : here;
        }
        return list;
    }

    // Before each copy.
    bool prepare(const situation &as)
    {
        unsigned char *shared = static_cast<unsigned char *>(shared_.data());
        if (way_over::in == as.direction) {
            std::memcpy(shared, bytes_.data(), bytes_.size());
        } else {
            std::memcpy(scratch_.data(), shared, bytes_.size());
        }
        return as.in_cache || put_to_rest(shared, bytes_.size());
    }

    void poison() { std::memset(shared_.data(), 0xa5, bytes_.size()); }
    bool is_right() const
    {
        for (std::size_t i = 0; i < of_.copies; ++i) {
            const std::size_t place = i * of_.stride();
            if (0 != std::memcmp(static_cast<const unsigned char *>(shared_.data()) + place,
                                 bytes_.data() + place, of_.len_bytes)) {
                return false;
            }
        }
        return true;
    }

  private:
    CUstream stream() const { return at_.on().stream; }

    const workplace &at_;
    const cell of_;
    const pinned_memory shared_;
    std::vector<unsigned char> bytes_;
    std::vector<unsigned char> scratch_ = std::vector<unsigned char>(bytes_.size());
};

// What the situation's copies take by each way; checks the bytes afterwards.
std::string measure_host(const options &opt, workplace &at, submitter &by, const cell &of,
                         const situation &as, samples_by_way *to)
{
    host_side host(at, of);
    std::string error = host.open();
    copy_list copies = host.copies(as.direction);
    for (const copy_way way : all_ways) {
        if (!error.empty() || !by.has(way)) {
            continue;
        }
        const repetition once = [&](sample *out) {
            return host.prepare(as) ? submit_once(by, way, copies, out)
                                    : std::string("--host: this processor flushes no lines");
        };
        // Into the device first: it is what comes out of it that is checked then.
        error = check_bytes(at, of, std::string("host, ") + name_of(way), [&](sample *out) {
            copy_list in = host.copies(way_over::in);
            return submit_once(by, way, in, out);
        });
        if (error.empty()) {
            error = repeat(once, least_repetitions, opt.seconds, &(*to)[index_of(way)]);
        }
        sample unused;
        host.poison();
        copy_list out = host.copies(way_over::out);
        if (error.empty()) {
            error = submit_once(by, way, out, &unused);
        }
        if (error.empty() && !host.is_right()) {
            error = std::string("host, ") + name_of(way) + ": wrong bytes out of the device";
        }
    }
    return error;
}

} // namespace

std::string print_host(const options &opt, workplace &at, submitter &by)
{
    print_title(opt.markdown, "registered host memory, by what was done to it just before");
    const table out(opt.markdown,
                    {"situation", "copies", "size", "single us", "batch us", "kernel us"}, 30);
    for (const situation &as : situations) {
        for (const cell &of : host_cells) {
            samples_by_way measured;
            const std::string error = measure_host(opt, at, by, of, as, &measured);
            if (!error.empty()) {
                return error;
            }
            std::vector<std::string> row = {as.name, std::to_string(of.copies),
                                            size_text(of.len_bytes)};
            for (const copy_way way : all_ways) {
                row.push_back(us_text(measured[index_of(way)].median_of(&sample::seen_us)));
            }
            out.row(row);
        }
    }
    return {};
}

} // namespace gpusm::copy_bench
