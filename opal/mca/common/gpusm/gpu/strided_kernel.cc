// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/strided_kernel.h"

#include "opal/mca/common/gpusm/gpu/strided.h"
#include "opal/mca/common/gpusm/gpu/strided_kernel_code.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>

namespace gpusm {

namespace {

// All kernels are handed the longer struct, of which one reads the beginning only.
using few_arguments = strided_arguments<strided_few_copies>;
using most_arguments = strided_arguments<strided_most_copies>;
static_assert(offsetof(few_arguments, work) == 24 && offsetof(most_arguments, work) == 24);
static_assert(sizeof(strided_copy) == 272 && sizeof(strided_work) == 280);
static_assert(sizeof(most_arguments) < 4096, "what a parameter may have before CUDA 12.1");

enum entry : std::size_t { short_few, short_most, long_few, long_most, wide };
constexpr const char *entries[] = {"gpusm_strided_short_few", "gpusm_strided_short",
                                   "gpusm_strided_long_few", "gpusm_strided_long",
                                   "gpusm_strided_wide"};
constexpr kernel_code embedded = {"strided", std::size(strided_code) > 1 ? strided_code : nullptr,
                                  strided_ptx, entries, std::size(entries)};

// Its indices fit into 32 bits, those of words behind the end included.
bool is_narrow(const strided_copy &copy)
{
    constexpr std::uint64_t limit = 1ULL << strided_narrow_shift;
    return copy.source.begin <= limit && copy.destination.begin <= limit &&
           copy.len_bytes <= limit - std::max(copy.source.begin, copy.destination.begin);
}

} // namespace

strided_kernel::strided_kernel(const driver_api &driver, unsigned blocks)
    : kernel_module(driver, embedded, strided_slots), blocks_(blocks)
{
}

CUresult strided_kernel::launch(CUstream stream, std::uint32_t slot,
                                const strided_copy *const *copies, std::uint32_t count)
{
    bool in_range = loaded() && slot < slots() && count > 0 && count <= strided_most_copies;
    bool narrow = true;
    std::uint64_t short_chunks = 0;
    for (std::uint32_t i = 0; in_range && i < count; ++i) {
        in_range = strided_is_valid(*copies[i]);
        if (in_range) {
            const strided_copy &copy = arguments_.work[i].copy = strided_prepared(*copies[i]);
            narrow = narrow && is_narrow(copy);
            short_chunks += strided_chunks_of(copy, strided_short_rows);
        }
    }
    // Short is what each thread has a word of at most.
    const bool is_few = count <= strided_few_copies;
    const bool is_short = narrow && short_chunks <= blocks_;
    const std::uint32_t rows = is_short ? strided_short_rows
                               : narrow ? strided_long_rows
                                        : strided_wide_rows;
    std::uint64_t chunks = 0;
    for (std::uint32_t i = 0; in_range && i < count; ++i) {
        strided_work &work = arguments_.work[i];
        work.first_chunk = static_cast<std::uint32_t>(chunks);
        chunks += strided_chunks_of(work.copy, rows);
        in_range = chunks <= std::numeric_limits<std::int32_t>::max();
    }
    if (!in_range) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    arguments_.done = flag_of(slot);
    arguments_.done_value = next_value(slot);
    arguments_.slot = slot;
    arguments_.copies = count;
    arguments_.chunks = static_cast<std::uint32_t>(chunks);
    const unsigned grid = std::min(blocks_, arguments_.chunks);
    const entry kernel = is_short  ? is_few ? short_few : short_most
                         : !narrow ? wide
                         : is_few  ? long_few
                                   : long_most;
    return launch_entry(kernel, grid, strided_threads, stream, slot, &arguments_);
}

} // namespace gpusm
