// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/gather_arguments.h: what the gather kernel is launched with. Read by the device code
// (gpu/gather_kernel.cu), by the host (gpu/gather_kernel.cc) and by the software CUDA driver; so
// it includes nothing but <stdint.h>, and its layout is fixed.
//
// The descriptors travel as the kernel's parameter, not in pinned host memory: the driver puts
// parameters into the device's constant bank, where a kernel finds them without a read over the
// bus, which would cost more than a microsecond before the first byte moves.
#ifndef GPUSM_GPU_GATHER_ARGUMENTS_H
#define GPUSM_GPU_GATHER_ARGUMENTS_H

#include <stdint.h>

#ifdef __CUDACC__
#define GPUSM_HOST_AND_DEVICE __host__ __device__
#else
#define GPUSM_HOST_AND_DEVICE
#endif

namespace gpusm {

// One copy. Any alignment; the bytes do not overlap.
struct gather_copy {
    uint64_t destination; // device addresses in the context of the launch
    uint64_t source;
    uint32_t len_bytes;   // > 0
    uint32_t first_piece; // how many pieces the copies before this one have
};

// Work is dealt out in pieces of 2^piece_shift bytes of one copy, its first and last shorter (see
// gather_piece); each warp takes every n-th piece, n being the number of warps in the grid. The
// two structs differ in their length only, so that one may be passed where the shorter is read.
template <unsigned max_copies> struct gather_arguments {
    uint64_t done;        // device address of a uint32_t in host memory, written last of all
    uint32_t done_value;  // with this
    uint32_t slot;        // index of the device-side counter of finished blocks; 0 before and after
    uint32_t copies;      // <= max_copies
    uint32_t pieces;      // of all copies
    uint32_t piece_shift; // log2 of the bytes in a piece
    uint32_t unused;
    struct gather_copy copy[max_copies];
};

enum gather_limits {
    gather_few_copies = 32,    // of the kernel gpusm_gather_few: a smaller parameter to hand over
    gather_most_copies = 128,  // of the kernel gpusm_gather: the parameter stays below 4 KiB
    gather_slots = 64,         // launches in flight at most
    gather_threads = 512,      // in a block
    gather_warp = 32,          // threads in a warp
    gather_most_len = 1 << 30, // bytes in one copy
    gather_least_piece_shift = 11, // 2 KiB: four 16-byte words for each lane of a warp
    gather_most_piece_shift = 16,  // 64 KiB
    gather_alignment = 128,        // where pieces begin: a line of the device's caches
};

// A piece is the bytes [begin, end) of its copy. All pieces but the first begin at a destination
// that is a multiple of gather_alignment, because the first is shorter by what the destination of
// the copy is beyond such a place.
struct gather_piece {
    uint32_t begin;
    uint32_t end;
};

GPUSM_HOST_AND_DEVICE inline struct gather_piece
gather_piece_of(uint64_t destination, uint32_t len_bytes, uint32_t nth, uint32_t piece_shift)
{
    const uint32_t beyond = static_cast<uint32_t>(destination) % gather_alignment;
    const uint32_t begin = nth << piece_shift;
    const uint32_t end = begin + (1U << piece_shift) - beyond;
    return {0 == nth ? 0 : begin - beyond, end < len_bytes ? end : len_bytes};
}

// How many pieces a copy has.
GPUSM_HOST_AND_DEVICE inline uint32_t gather_pieces_of(uint64_t destination, uint32_t len_bytes,
                                                       uint32_t piece_shift)
{
    const uint32_t beyond = static_cast<uint32_t>(destination) % gather_alignment;
    return (beyond + len_bytes + (1U << piece_shift) - 1) >> piece_shift;
}

} // namespace gpusm

#endif
