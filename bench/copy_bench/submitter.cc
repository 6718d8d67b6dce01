// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// submitter.cc: the three ways.
#include "bench/copy_bench/submitter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gpusm::copy_bench {

namespace {

constexpr std::uint32_t slot = 0; // of the kernel, as there is one submission at a time

} // namespace

const char *name_of(copy_way way)
{
    switch (way) {
    case copy_way::single:
        return "single";
    case copy_way::batch:
        return "batch";
    case copy_way::kernel:
        return "kernel";
    case copy_way::count:
        break;
    }
    return "?";
}

copy_list::copy_list(const workplace &at, const cell &of)
{
    for (std::size_t i = 0; i < of.copies; ++i) {
        destinations.push_back(at.destination() + i * of.stride());
        sources.push_back(at.source() + i * of.stride());
        sizes.push_back(of.len_bytes);
        gathered.push_back(
            {destinations[i], sources[i], static_cast<std::uint32_t>(of.len_bytes), 0});
    }
}

submitter::submitter(const workplace &at, unsigned blocks)
    : at_(at), driver_(at.driver()), stream_(at.on().stream),
      kernel_(at.driver(), std::max(blocks, 1U)), wants_kernel_(blocks > 0)
{
}

submitter::~submitter()
{
    if (event_ != nullptr) {
        (void)driver_.event_destroy(event_);
    }
    if (kernel_stream_ != nullptr) {
        // A flag may be seen a moment before its kernel is over.
        (void)driver_.stream_synchronize(kernel_stream_);
    }
    kernel_.unload();
    if (kernel_stream_ != nullptr) {
        (void)driver_.stream_destroy(kernel_stream_);
    }
}

std::string submitter::open()
{
    CUresult result = driver_.event_create(&event_, CU_EVENT_DISABLE_TIMING);
    if (CUDA_SUCCESS != result) {
        event_ = nullptr;
        return at_.sentence("cuEventCreate", result);
    }
    result = make_stream(driver_, &kernel_stream_);
    if (CUDA_SUCCESS != result) {
        kernel_stream_ = nullptr;
        return at_.sentence("cuStreamCreateWithPriority", result);
    }
    if (wants_kernel_) {
        (void)kernel_.load(); // has() tells, and the log why
    }
    copy_list some(at_, {2, 8});
    result = submit_batch(some);
    has_batch_ = CUDA_SUCCESS == result;
    if (CUDA_ERROR_NOT_SUPPORTED == result) {
        return {};
    }
    return has_batch_ ? wait(copy_way::batch) : at_.sentence("cuMemcpyBatchAsync", result);
}

bool submitter::has(copy_way way) const
{
    switch (way) {
    case copy_way::batch:
        return has_batch_;
    case copy_way::kernel:
        return kernel_.loaded();
    case copy_way::single:
    case copy_way::count:
        break;
    }
    return true;
}

CUresult submitter::submit_singly(const copy_list &copies)
{
    CUresult result = CUDA_SUCCESS;
    for (std::size_t i = 0; i < copies.sizes.size() && CUDA_SUCCESS == result; ++i) {
        result = driver_.memcpy_async(copies.destinations[i], copies.sources[i], copies.sizes[i],
                                      stream_);
    }
    return CUDA_SUCCESS == result ? driver_.event_record(event_, stream_) : result;
}

CUresult submitter::submit_batch(copy_list &copies)
{
    const CUresult result = driver_.copy_batch(copies.destinations.data(), copies.sources.data(),
                                               copies.sizes.data(), copies.sizes.size(), stream_);
    return CUDA_SUCCESS == result ? driver_.event_record(event_, stream_) : result;
}

std::string submitter::submit(copy_way way, copy_list &copies)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    switch (way) {
    case copy_way::single:
        result = submit_singly(copies);
        break;
    case copy_way::batch:
        result = submit_batch(copies);
        break;
    case copy_way::kernel:
        result = kernel_.launch(kernel_stream_, slot, copies.gathered.data(),
                                static_cast<std::uint32_t>(copies.gathered.size()));
        break;
    case copy_way::count:
        break;
    }
    return CUDA_SUCCESS == result
               ? std::string()
               : at_.sentence(std::string("starting copies, ") + name_of(way), result);
}

std::string submitter::wait(copy_way way)
{
    const CUresult result =
        copy_way::kernel == way
            ? wait_for_flag(driver_, kernel_stream_, [&] { return kernel_.finished(slot); })
            : wait_until([&] { return driver_.event_query(event_); });
    return CUDA_SUCCESS == result
               ? std::string()
               : at_.sentence(std::string("waiting for copies, ") + name_of(way), result);
}

} // namespace gpusm::copy_bench
