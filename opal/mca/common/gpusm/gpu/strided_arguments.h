// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/strided_arguments.h: memory with gaps, and what the strided kernel is launched with. Read by
// the device code (gpu/strided_kernel.cu), by the host and by the software CUDA driver; so it
// includes nothing but <stdint.h>, and its layout is fixed.
#ifndef GPUSM_GPU_STRIDED_ARGUMENTS_H
#define GPUSM_GPU_STRIDED_ARGUMENTS_H

#include <stdint.h>

#ifdef __CUDACC__
#define GPUSM_STRIDED_FUNCTION __host__ __device__
#else
#define GPUSM_STRIDED_FUNCTION
#endif

namespace gpusm {

enum strided_limits {
    strided_levels = 4,     // nested loops of a regular layout
    strided_most_word = 16, // bytes that one load or store moves at most
    strided_threads = 512,  // in a block
};

// A loop over blocks: so many, so far from one to the next.
struct strided_level {
    uint64_t count;
    int64_t stride;
};

// A block of an irregular layout: its place, from the element's address, and how many packed bytes
// of the element come before it. It is as long as there are until the next one's.
struct strided_block {
    int64_t offset;
    uint64_t before;
};

// Where the packed bytes of elements of a datatype lie. Elements follow each other by `extent`
// bytes. In each there are, if `blocks` is 0, blocks of block_bytes in `levels` nested loops, the
// innermost first; else block_count blocks that are listed at `blocks`, by `before`, in memory that
// the device reads. No packed byte is in two blocks.
struct strided_layout {
    uint64_t element_bytes; // packed bytes of one element; > 0
    int64_t extent;
    uint64_t blocks;      // device address of strided_block[block_count], or 0
    uint32_t block_count; // of a list
    uint32_t levels;      // else: <= strided_levels; 0: one block
    uint64_t block_bytes;
    int64_t first; // place of the first block, from the element's address
    struct strided_level level[strided_levels];
};

// Elements at an address, of which the packed bytes from `begin` on are meant.
struct strided_side {
    uint64_t address;
    uint64_t begin;
    struct strided_layout layout;
};

// One copy: the packed bytes of one side become those of the other, in packed order.
struct strided_copy {
    struct strided_side source;
    struct strided_side destination;
    uint64_t len_bytes;  // > 0
    uint32_t word_bytes; // a power of two up to strided_most_word by which both sides' addresses of
                         // every block, lengths of blocks, `begin`s and len_bytes can be divided
    uint32_t unused;
};

// Memory without gaps, as a side.
inline struct strided_side strided_contiguous(uint64_t address, uint64_t len_bytes)
{
    struct strided_side side = {};
    side.address = address;
    side.layout.element_bytes = len_bytes;
    side.layout.extent = static_cast<int64_t>(len_bytes);
    side.layout.block_bytes = len_bytes;
    return side;
}

} // namespace gpusm

#endif
