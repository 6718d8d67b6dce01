// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/pages.h"
#include "opal/mca/common/gpusm/gpu/gather_kernel_code.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <utility>

namespace gpusm {

namespace {

// Both kernels are handed the longer struct, of which one reads the beginning only.
using few_arguments = gather_arguments<gather_few_copies>;
using most_arguments = gather_arguments<gather_most_copies>;
static_assert(offsetof(few_arguments, copy) == 32 && offsetof(most_arguments, copy) == 32);
static_assert(sizeof(gather_copy) == 24 && sizeof(few_arguments) == 32 + 32 * sizeof(gather_copy));
static_assert(sizeof(most_arguments) < 4096, "what a parameter may have before CUDA 12.1");
static_assert(1U << gather_least_piece_shift > gather_alignment, "or a first piece has no bytes");

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

bool gather_kernel::can(const char *what, CUresult result, const char *said) const
{
    if (CUDA_SUCCESS != result) {
        log_line(log_level::info, "the gather kernel cannot be used: %s failed: %s%s%s", what,
                 driver_.error_name(result), '\0' == said[0] ? "" : ": ", said);
    }
    return CUDA_SUCCESS == result;
}

// The flags live in memory of ours that the driver is told about: what the driver gives goes with
// its context, which the program may destroy while we still look at a flag.
bool gather_kernel::make_flags()
{
    const std::size_t flags_bytes = in_system_pages(gather_slots * sizeof(flag));
    void *memory = std::aligned_alloc(system_page_bytes(), flags_bytes);
    if (nullptr == memory ||
        !can("cuMemHostRegister", driver_.mem_host_register(memory, flags_bytes,
                                                            CU_MEMHOSTREGISTER_PORTABLE |
                                                                CU_MEMHOSTREGISTER_DEVICEMAP))) {
        std::free(memory);
        return false;
    }
    flags_ = static_cast<flag *>(memory);
    for (std::uint32_t slot = 0; slot < gather_slots; ++slot) {
        std::construct_at(&flags_[slot])->done.store(launches_[slot], std::memory_order_relaxed);
    }
    return can("cuMemHostGetDevicePointer",
               driver_.mem_host_get_device_pointer(&device_flags_, memory, 0));
}

// The module and its two functions. A driver that loads lazily does so when it is asked for a
// function, and may then wait for the context to be idle: here, not at the first launch.
bool gather_kernel::load_module()
{
    char said[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {said, reinterpret_cast<void *>(sizeof(said) - 1)};
    CUmodule module = nullptr;
    // Compiled code is loaded in a tenth of a millisecond. None of it is for a GPU that nvcc did
    // not know, and a driver may be too old to read it.
    constexpr bool has_code = std::size(gather_code) > 1;
    if (!has_code ||
        CUDA_SUCCESS != driver_.module_load_data(&module, gather_code, 0, nullptr, nullptr)) {
        if (!can("cuModuleLoadDataEx",
                 driver_.module_load_data(&module, gather_ptx, 2, options, values), said)) {
            return false;
        }
        log_line(log_level::info, "the driver has compiled the gather kernel for this GPU");
    }
    module_ = module;
    return can("cuModuleGetFunction",
               driver_.module_get_function(&few_, module_, "gpusm_gather_few")) &&
           can("cuModuleGetFunction", driver_.module_get_function(&most_, module_, "gpusm_gather"));
}

bool gather_kernel::load()
{
    if (!loaded() && !(make_flags() && load_module())) {
        unload();
    }
    return loaded();
}

void gather_kernel::unload(bool context_lives)
{
    if (context_lives && module_ != nullptr) {
        (void)driver_.report("cuModuleUnload", driver_.module_unload(module_));
    }
    if (context_lives && flags_ != nullptr) {
        (void)driver_.report("cuMemHostUnregister", driver_.mem_host_unregister(flags_));
    }
    module_ = nullptr;
    std::free(std::exchange(flags_, nullptr));
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
    arguments_.done = device_flags_ + slot * sizeof(flag);
    arguments_.done_value = launches_[slot] + 1;
    arguments_.slot = slot;
    arguments_.copies = count;
    arguments_.pieces = pieces;
    arguments_.piece_shift = shift;
    const unsigned grid = std::min(blocks_, (pieces + warps - 1) / warps);
    void *parameters[] = {&arguments_};
    const CUresult result =
        driver_.launch_kernel(count <= gather_few_copies ? few_ : most_, grid, 1, 1, gather_threads,
                              1, 1, 0, stream, parameters, nullptr);
    launches_[slot] += CUDA_SUCCESS == result ? 1 : 0;
    return result;
}

} // namespace gpusm
