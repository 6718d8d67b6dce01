// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/reduce_kernel.h"

#include "opal/mca/common/gpusm/gpu/reduce_kernel_code.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>

namespace gpusm {

namespace {

static_assert(sizeof(reduction) == 280 && sizeof(reduce_arguments) == 312);
static_assert(offsetof(reduce_arguments, what) == 32);
static_assert(sizeof(reduce_arguments) < 4096, "what a parameter may have before CUDA 12.1");

enum entry : std::size_t { aligned, any };
constexpr std::uint16_t all_bytes = 0xffff; // of a vector
constexpr const char *entries[] = {"gpusm_reduce", "gpusm_reduce_any"};
constexpr kernel_code embedded = {"reduce", std::size(reduce_code) > 1 ? reduce_code : nullptr,
                                  reduce_ptx, entries, std::size(entries)};

// The greatest power of two up to a vector's length by which a number with these bits, and what it
// was made of by `|`, can be divided.
constexpr std::uint16_t word_bytes_of(std::uint64_t bits)
{
    bits |= reduce_vector_bytes;
    return static_cast<std::uint16_t>(bits & (~bits + 1));
}

bool are_in_range(const std::uint64_t *addresses, std::uint32_t count, std::uint64_t len_bytes)
{
    return std::all_of(addresses, addresses + count, [&](std::uint64_t each) {
        return each != 0 && len_bytes <= std::numeric_limits<std::uint64_t>::max() - each;
    });
}

} // namespace

bool reduce_is_valid(const reduction &what)
{
    const std::uint64_t each_bytes = element_bytes(what.type);
    if (!is_defined(what.op, what.type) || 0 == what.elements ||
        what.elements > std::numeric_limits<std::uint64_t>::max() / each_bytes) {
        return false;
    }
    const std::uint64_t len_bytes = what.elements * each_bytes;
    return what.source_count > 0 && what.source_count <= reduce_most_ranks &&
           what.target_count > 0 && what.target_count <= reduce_most_ranks &&
           are_in_range(what.sources, what.source_count, len_bytes) &&
           are_in_range(what.targets, what.target_count, len_bytes);
}

reduce_kernel::reduce_kernel(const driver_api &driver, unsigned blocks)
    : kernel_module(driver, embedded, reduce_slots), blocks_(blocks)
{
}

CUresult reduce_kernel::launch(CUstream stream, std::uint32_t slot, const reduction &what)
{
    if (!loaded() || slot >= slots() || !reduce_is_valid(what)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t addresses = 0; // all bits of them
    for (std::uint32_t i = 0; i < what.source_count; ++i) {
        addresses |= what.sources[i];
    }
    for (std::uint32_t i = 0; i < what.target_count; ++i) {
        addresses |= what.targets[i];
    }
    const std::uint64_t len_bytes = what.elements * element_bytes(what.type);
    reduce_arguments arguments = {};
    arguments.done = flag_of(slot);
    arguments.done_value = next_value(slot);
    arguments.slot = slot;
    arguments.vectors = len_bytes / reduce_vector_bytes;
    arguments.tail_bytes = static_cast<std::uint16_t>(len_bytes % reduce_vector_bytes);
    arguments.written = written_bytes(what.type);
    arguments.word_bytes = word_bytes_of(addresses);
    arguments.tail_word_bytes = word_bytes_of(addresses | arguments.tail_bytes);
    arguments.what = what;
    const bool is_aligned = reduce_vector_bytes == arguments.word_bytes &&
                            0 == arguments.tail_bytes && all_bytes == arguments.written;
    const std::uint64_t all_vectors = arguments.vectors + (arguments.tail_bytes > 0 ? 1 : 0);
    const std::uint64_t grid = (all_vectors + reduce_block_vectors - 1) / reduce_block_vectors;
    return launch_entry(is_aligned ? aligned : any,
                        static_cast<unsigned>(std::min<std::uint64_t>(blocks_, grid)),
                        reduce_threads, stream, slot, &arguments);
}

} // namespace gpusm
