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
// An array that is indexed at run time would lie in the local memory of a device.
#ifdef __CUDA_ARCH__
#define GPUSM_STRIDED_UNROLL _Pragma("unroll")
#define GPUSM_STRIDED_LOOP _Pragma("unroll 1")
#else
#define GPUSM_STRIDED_UNROLL
#define GPUSM_STRIDED_LOOP
#endif

namespace gpusm {

enum strided_limits {
    strided_levels = 4,     // nested loops of a regular layout
    strided_most_word = 16, // bytes that one load or store moves at most
    strided_threads = 512,  // in a block
    // Words of a thread that are in flight together: the loads of a long copy hide each other's
    // time, and a short copy is over sooner when its words are found by more threads.
    strided_short_rows = 1,
    strided_long_rows = 4,
    strided_wide_rows = 2,
    strided_few_copies = 3,    // of the kernels *_few: a smaller parameter to hand over
    strided_most_copies = 14,  // of the other kernels: the parameter stays below 4 KiB
    strided_slots = 65,        // launches in flight at most
    strided_narrow_shift = 31, // log2 of the most `begin` + len_bytes of all but gpusm_strided_wide
};

// A loop over blocks: so many, so far from one to the next.
struct strided_level {
    uint64_t count;
    int64_t stride;
};

// A block of an irregular layout: its place, from the element's address, and how many packed bytes
// of the element come before it. It is as long as there are until the next one's.
struct alignas(16) strided_block {
    int64_t offset;
    uint64_t before;
};

// Where the packed bytes of elements of a datatype lie. Elements follow each other by `extent`
// bytes. In each there are, if `blocks` is 0, blocks of block_bytes in `levels` nested loops, the
// innermost first; else block_count blocks that are listed at `blocks`, by `before`, in memory that
// the device reads. No packed byte is in two blocks. Behind a list lies its guide, so that a block
// is found by a few loads: a uint32_t for every 2^guide_shift packed bytes of an element, which is
// the index of the block with the first of them, and one more, of the last block.
struct strided_layout {
    uint64_t element_bytes; // packed bytes of one element; > 0
    int64_t extent;
    uint64_t blocks;      // device address of strided_block[block_count], or 0
    uint32_t block_count; // of a list
    uint16_t guide_shift; // of a list: what strided_add_guide() says
    uint16_t levels;      // else: <= strided_levels; 0: one block
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

// What a launch carries out. `first_chunk`: how many chunks the copies before it have.
struct strided_work {
    struct strided_copy copy;
    uint32_t first_chunk;
    uint32_t unused;
};

// The parameter of a launch. Work is dealt out in chunks of as many words of one copy for each
// thread of a block as the kernel has rows, the last one shorter; each block takes every n-th
// chunk, n being the number of blocks. The two structs differ in their length only, so that one may
// be passed where the shorter is read.
template <unsigned max_copies> struct strided_arguments {
    uint64_t done;       // device address of a uint32_t in host memory, written last of all
    uint32_t done_value; // with this
    uint32_t slot;       // index of the device-side counter of finished blocks; 0 before and after
    uint32_t copies;     // <= max_copies
    uint32_t chunks;     // of all copies
    struct strided_work work[max_copies];
};

// How many chunks a copy has, of a kernel of so many rows.
inline uint64_t strided_chunks_of(const struct strided_copy &copy, uint32_t rows)
{
    const uint64_t chunk_bytes = uint64_t{strided_threads} * rows * copy.word_bytes;
    return (copy.len_bytes + chunk_bytes - 1) / chunk_bytes;
}

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

// --- where a packed byte lies. Divisions are made only where a side has more than one element,
// --- block or turn of a loop.

// A packed byte's place, and how many packed bytes from it on lie one behind the other, up to the
// end of its block at most.
struct strided_place {
    uint64_t address;
    uint64_t together;
};

// What a list and its guide say. The list may be in memory that was another list when a launch that
// still runs has read it, so no load may be answered by the L1 cache. While a launch runs its lists
// stay as they are; so the loads are not volatile, and one whose answer nobody uses is left out.
GPUSM_STRIDED_FUNCTION inline uint64_t strided_before(const struct strided_layout &layout,
                                                      uint32_t nth)
{
    const struct strided_block *block =
        reinterpret_cast<const struct strided_block *>(layout.blocks);
#ifdef __CUDA_ARCH__
    uint64_t before;
    asm("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(before) : "l"(&block[nth].before));
    return before;
#else
    return block[nth].before;
#endif
}

GPUSM_STRIDED_FUNCTION inline struct strided_block
strided_block_of(const struct strided_layout &layout, uint32_t nth)
{
    const struct strided_block *block =
        reinterpret_cast<const struct strided_block *>(layout.blocks);
#ifdef __CUDA_ARCH__
    struct strided_block read;
    asm("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
        : "=l"(read.offset), "=l"(read.before)
        : "l"(&block[nth]));
    return read;
#else
    return block[nth];
#endif
}

GPUSM_STRIDED_FUNCTION inline uint32_t strided_guide(const struct strided_layout &layout,
                                                     uint32_t nth)
{
    const uint64_t address = layout.blocks +
                             uint64_t{layout.block_count} * sizeof(struct strided_block) +
                             uint64_t{nth} * sizeof(uint32_t);
    uint32_t found;
#ifdef __CUDA_ARCH__
    asm("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(address));
#else
    // On the host the guide lies in an array of blocks.
    __builtin_memcpy(&found, reinterpret_cast<const void *>(address), sizeof(found));
#endif
    return found;
}

// The blocks of a list in which packed bytes of an element lie: the last ones that do not begin
// behind them. All are looked for in step, so that their loads are in flight together.
template <unsigned words, typename index>
GPUSM_STRIDED_FUNCTION inline void strided_find(const struct strided_layout &layout,
                                                const index (&rest)[words],
                                                uint32_t (&found)[words])
{
    // Each is `found` or one of the `behind` blocks behind it.
    uint32_t behind = 0;
    GPUSM_STRIDED_UNROLL
    for (unsigned i = 0; i < words; ++i) {
        const uint32_t nth =
            static_cast<uint32_t>(static_cast<uint64_t>(rest[i]) >> layout.guide_shift);
        found[i] = strided_guide(layout, nth);
        const uint32_t until = strided_guide(layout, nth + 1) - found[i];
        behind = until > behind ? until : behind;
    }
    GPUSM_STRIDED_LOOP
    for (; behind > 0; behind /= 2) {
        const uint32_t step = behind - behind / 2;
        GPUSM_STRIDED_UNROLL
        for (unsigned i = 0; i < words; ++i) {
            const uint32_t next = found[i] + step;
            const uint32_t looked = next < layout.block_count ? next : found[i];
            found[i] = strided_before(layout, looked) <= rest[i] ? looked : found[i];
        }
    }
}

// The places of the packed bytes `at`, counted from `begin` on. `index` holds twice the greatest
// sum of `begin` and one of them.
template <unsigned words, typename index>
GPUSM_STRIDED_FUNCTION inline void strided_places(const struct strided_side &side,
                                                  const index (&at)[words],
                                                  struct strided_place (&place)[words])
{
    const struct strided_layout &layout = side.layout;
    const index element_bytes = static_cast<index>(layout.element_bytes);
    index rest[words]; // packed bytes before it in its element, then in its block
    GPUSM_STRIDED_UNROLL
    for (unsigned i = 0; i < words; ++i) {
        rest[i] = static_cast<index>(side.begin) + at[i];
        place[i].address = side.address;
        if (rest[i] >= element_bytes) {
            const index element = rest[i] / element_bytes;
            rest[i] -= element * element_bytes;
            place[i].address += element * static_cast<uint64_t>(layout.extent);
        }
    }
    if (layout.blocks != 0) {
        uint32_t found[words];
        strided_find(layout, rest, found);
        GPUSM_STRIDED_UNROLL
        for (unsigned i = 0; i < words; ++i) {
            const struct strided_block block = strided_block_of(layout, found[i]);
            const uint64_t end = found[i] + 1 < layout.block_count
                                     ? strided_before(layout, found[i] + 1)
                                     : layout.element_bytes;
            place[i].address += static_cast<uint64_t>(block.offset) + rest[i] - block.before;
            place[i].together = end - rest[i];
        }
        return;
    }
    index block[words];
    const index block_bytes = static_cast<index>(layout.block_bytes);
    GPUSM_STRIDED_UNROLL
    for (unsigned i = 0; i < words; ++i) {
        block[i] = layout.levels > 0 ? rest[i] / block_bytes : 0;
        rest[i] -= block[i] * block_bytes;
        place[i].address += static_cast<uint64_t>(layout.first) + rest[i];
        place[i].together = layout.block_bytes - rest[i];
    }
    GPUSM_STRIDED_LOOP
    for (uint32_t level = 0; level < layout.levels; ++level) {
        const index count = static_cast<index>(layout.level[level].count);
        const uint64_t stride = static_cast<uint64_t>(layout.level[level].stride);
        GPUSM_STRIDED_UNROLL
        for (unsigned i = 0; i < words; ++i) {
            const index outer = level + 1 < layout.levels ? block[i] / count : 0;
            place[i].address += (block[i] - outer * count) * stride;
            block[i] = outer;
        }
    }
}

GPUSM_STRIDED_FUNCTION inline struct strided_place strided_place_of(const struct strided_side &side,
                                                                    uint64_t at)
{
    const uint64_t only[1] = {at};
    struct strided_place place[1];
    strided_places(side, only, place);
    return place[0];
}

GPUSM_STRIDED_FUNCTION inline uint64_t strided_address(const struct strided_side &side, uint64_t at)
{
    return strided_place_of(side, at).address;
}

} // namespace gpusm

#endif
