// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// signals.cc: --signals, one small copy and how the processor learns that it is done.
#include "bench/copy_bench/measure.h"
#include "bench/copy_bench/parts.h"
#include "bench/copy_bench/table.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <string>

namespace gpusm::copy_bench {

namespace {

constexpr cell small_copy{1, 8};

// Not in gpusm's table of driver functions, because gpusm does not call it.
using write_value_fn = CUresult(CUDAAPI *)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

write_value_fn find_write_value()
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (nullptr == library) {
        return nullptr;
    }
    // Before CUDA 11.7 there was the second name only, and it needed a switch of the kernel module.
    void *found = dlsym(library, "cuStreamWriteValue32_v2");
    if (nullptr == found) {
        found = dlsym(library, "cuStreamWriteValue32");
    }
    (void)dlclose(library); // it stays loaded: gpusm holds it
    return reinterpret_cast<write_value_fn>(found);
}

// A word in host memory that the device writes.
class word {
  public:
    explicit word(const driver_api &driver) : memory_(driver, sizeof(std::atomic<cuuint32_t>))
    {
        if (exists()) {
            new (memory_.data()) std::atomic<cuuint32_t>(0);
        }
    }
    bool exists() const { return memory_.data() != nullptr; }
    cuuint32_t next() { return ++last_; } // to be written now
    CUdeviceptr on_device() const { return memory_.on_device(); }
    bool is_written() const
    {
        return static_cast<std::atomic<cuuint32_t> *>(memory_.data())
                   ->load(std::memory_order_acquire) == last_;
    }

  private:
    static_assert(std::atomic<cuuint32_t>::is_always_lock_free);
    pinned_memory memory_;
    cuuint32_t last_ = 0;
};

// Prints rows as they are measured.
class signal_rows {
  public:
    signal_rows(const options &opt, workplace &at, submitter &by)
        : opt_(opt), at_(at), driver_(at.driver()), by_(by), copies_(at, small_copy),
          word_(driver_), out_(opt.markdown, {"what", "submit us", "until seen us"}, label_width)
    {
    }

    std::string print();

  private:
    static constexpr std::size_t label_width = 50;

    std::string row(const char *what, bool copies, const repetition &once);
    std::string by_way(copy_way way, sample *out) { return submit_once(by_, way, copies_, out); }
    // One driver call, its time alone; what it started is over when this returns.
    template <class call> std::string alone(call one, sample *out);
    std::string written(bool copies, sample *out);
    std::string empty_event(sample *out);
    std::string query(sample *out);
    CUresult copy()
    {
        return driver_.memcpy_async(copies_.destinations[0], copies_.sources[0], copies_.sizes[0],
                                    by_.stream());
    }
    CUresult write_word() { return write_value_(by_.stream(), word_.on_device(), word_.next(), 0); }
    CUresult wait_for_event()
    {
        return wait_until([&] { return driver_.event_query(by_.event()); });
    }
    std::string explain(const char *what, CUresult result) const
    {
        return CUDA_SUCCESS == result ? std::string() : at_.sentence(what, result);
    }

    const options &opt_;
    workplace &at_;
    const driver_api &driver_;
    submitter &by_;
    copy_list copies_;
    word word_;
    table out_;
    const write_value_fn write_value_ = find_write_value();
};

std::string signal_rows::row(const char *what, bool copies, const repetition &once)
{
    samples measured;
    std::string error = repeat(once, least_repetitions, opt_.seconds, &measured);
    if (error.empty() && copies) {
        error = check_bytes(at_, small_copy, what, once);
    }
    if (error.empty()) {
        out_.row({what, us_text(measured.median_of(&sample::submit_us)),
                  us_text(measured.median_of(&sample::seen_us))});
    }
    return error;
}

std::string signal_rows::written(bool copies, sample *out)
{
    const auto begin = clock_type::now();
    CUresult result = copies ? copy() : CUDA_SUCCESS;
    if (CUDA_SUCCESS == result) {
        result = write_word();
    }
    const auto submitted = clock_type::now();
    if (CUDA_SUCCESS == result) {
        result = wait_for_flag(driver_, by_.stream(), [&] { return word_.is_written(); });
    }
    out->seen_us = us_between(begin, clock_type::now());
    out->submit_us = us_between(begin, submitted);
    return explain("cuStreamWriteValue32", result);
}

std::string signal_rows::empty_event(sample *out)
{
    const auto begin = clock_type::now();
    CUresult result = driver_.event_record(by_.event(), by_.stream());
    const auto submitted = clock_type::now();
    if (CUDA_SUCCESS == result) {
        result = wait_for_event();
    }
    out->seen_us = us_between(begin, clock_type::now());
    out->submit_us = us_between(begin, submitted);
    return explain("an event on an empty stream", result);
}

std::string signal_rows::query(sample *out)
{
    CUresult result = copy();
    if (CUDA_SUCCESS == result) {
        result = driver_.event_record(by_.event(), by_.stream());
    }
    if (CUDA_SUCCESS == result) {
        const auto begin = clock_type::now();
        result = driver_.event_query(by_.event());
        out->submit_us = us_between(begin, clock_type::now());
    }
    if (CUDA_ERROR_NOT_READY == result) {
        result = wait_for_event();
    }
    return explain("cuEventQuery", result);
}

template <class call> std::string signal_rows::alone(call one, sample *out)
{
    const auto begin = clock_type::now();
    CUresult result = one();
    out->submit_us = us_between(begin, clock_type::now());
    if (CUDA_SUCCESS == result) {
        result = driver_.stream_synchronize(by_.stream());
    }
    return explain("one driver call", result);
}

std::string signal_rows::print()
{
    const bool has_words = word_.exists() && write_value_ != nullptr;
    const bool has_kernel = by_.has(copy_way::kernel);
    struct line {
        const char *what;
        bool copies; // the bytes of the copy are compared afterwards
        bool is_possible;
        repetition once;
    };
    const line lines[] = {
        {"copy: event, cuEventQuery", true, true,
         [&](sample *out) { return by_way(copy_way::single, out); }},
        {"copy: cuStreamWriteValue32, word in host memory", true, has_words,
         [&](sample *out) { return written(true, out); }},
        {"copy: gather kernel, its flag", true, has_kernel,
         [&](sample *out) { return by_way(copy_way::kernel, out); }},
        {"no copy: event, cuEventQuery", false, true,
         [&](sample *out) { return empty_event(out); }},
        {"no copy: cuStreamWriteValue32, word in host memory", false, has_words,
         [&](sample *out) { return written(false, out); }},
        {"call alone: cuLaunchKernel of the gather kernel", false, has_kernel,
         [&](sample *out) {
             std::string error = by_way(copy_way::kernel, out);
             out->seen_us = -1;
             return error;
         }},
        {"call alone: cuMemcpyAsync", false, true,
         [&](sample *out) { return alone([&] { return copy(); }, out); }},
        {"call alone: cuEventRecord", false, true,
         [&](sample *out) {
             return alone([&] { return driver_.event_record(by_.event(), by_.stream()); }, out);
         }},
        {"call alone: cuEventQuery, a copy under way", false, true,
         [&](sample *out) { return query(out); }},
        {"call alone: cuStreamWriteValue32", false, has_words,
         [&](sample *out) { return alone([&] { return write_word(); }, out); }},
    };
    for (const line &each : lines) {
        const std::string error =
            each.is_possible ? row(each.what, each.copies, each.once) : std::string();
        if (!error.empty()) {
            return error;
        }
    }
    return {};
}

} // namespace

std::string print_signals(const options &opt, workplace &at, submitter &by)
{
    print_title(opt.markdown,
                "one copy of 8 bytes: how its end is noticed, and driver calls alone");
    return signal_rows(opt, at, by).print();
}

} // namespace gpusm::copy_bench
