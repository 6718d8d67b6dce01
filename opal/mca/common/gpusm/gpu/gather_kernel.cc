// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"

#include "opal/mca/common/gpusm/gpu/gather_kernel_code.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace gpusm {

namespace {

// Both kernels are handed the longer struct, of which one reads the beginning only.
using few_arguments = gather_arguments<gather_few_copies>;
using most_arguments = gather_arguments<gather_most_copies>;
static_assert(offsetof(few_arguments, copy) == 32 && offsetof(most_arguments, copy) == 32);
static_assert(sizeof(gather_copy) == 24 && sizeof(few_arguments) == 32 + 32 * sizeof(gather_copy));
static_assert(sizeof(most_arguments) < 4096, "what a parameter may have before CUDA 12.1");
static_assert(1U << gather_least_piece_shift > gather_alignment, "or a first piece has no bytes");

constexpr const char *entries[] = {"gpusm_gather_few", "gpusm_gather"};
constexpr kernel_code embedded = {"gather", std::size(gather_code) > 1 ? gather_code : nullptr,
                                  gather_ptx, entries, std::size(entries)};

// The greatest piece that leaves two for each warp, so that a late warp delays the end by half of
// its work at most; within the limits.
std::uint32_t piece_shift_for(std::uint64_t bytes, std::uint64_t warps)
{
    std::uint32_t shift = gather_most_piece_shift;
    while (shift > gather_least_piece_shift && bytes >> shift < 2 * warps) {
        --shift;
    }
    return shift;
}

} // namespace

gather_kernel::gather_kernel(const driver_api &driver, unsigned blocks, void *flags)
    : kernel_module(driver, embedded, gather_slots, flags), blocks_(blocks)
{
}

CUresult gather_kernel::launch(CUstream stream, std::uint32_t slot, const gather_copy *copies,
                               std::uint32_t count)
{
    bool in_range = loaded() && slot < gather_slots && count > 0 && count <= gather_most_copies;
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; in_range && i < count; ++i) {
        in_range = copies[i].len_bytes > 0 && copies[i].len_bytes <= gather_most_len;
        bytes += copies[i].len_bytes;
    }
    if (!in_range) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    constexpr std::uint32_t warps = gather_threads / gather_warp; // in a block
    const std::uint32_t shift = piece_shift_for(bytes, std::uint64_t{blocks_} * warps);
    std::uint32_t pieces = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        const gather_copy &each = copies[i];
        arguments_.copy[i] = {each.destination, each.source, each.len_bytes, pieces};
        pieces += gather_pieces_of(each.destination, each.len_bytes, shift);
    }
    arguments_.done = flag_of(slot);
    arguments_.done_value = next_value(slot);
    arguments_.slot = slot;
    arguments_.copies = count;
    arguments_.pieces = pieces;
    arguments_.piece_shift = shift;
    const unsigned grid = std::min(blocks_, (pieces + warps - 1) / warps);
    return launch_entry(count <= gather_few_copies ? 0 : 1, grid, gather_threads, stream, slot,
                        &arguments_);
}

} // namespace gpusm
