// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/gather_kernel.cu: the device side of gather_kernel.h. Compiled to PTX by gpu/make-ptx; the
// text beside this file is what a build without nvcc uses. Keep to what sm_70 has.
//
// A copy between GPUs is bound by the time that a load takes through a link, so everything here
// is about loads in flight: a lane issues eight loads of 16 bytes before the first store, which
// makes 4 KiB per warp; and the odd bytes before and behind those are loaded with them, so that a
// small message costs one trip. No array may be indexed by what is known at run time only: it
// would lie in local memory.
#include "gather_arguments.h"
#include "kernel_end.cuh"

namespace {

using namespace gpusm;

constexpr uint32_t word_bytes = 16;
constexpr uint32_t row_words = gather_warp; // a row is one word for each lane
constexpr uint32_t row_bytes = row_words * word_bytes;
constexpr unsigned rows = 8;                // loads that a lane has in flight
constexpr unsigned shifted_rows = rows - 1; // of copy_shifted(), which loads one word more

// Loads a word when left > behind; the condition is a predicate of the one instruction, as branches
// would take the loads apart. A strong load: an ordinary one may be answered by the L1 cache of the
// multiprocessor, where a launch that still runs may have left what the peer has overwritten since.
__device__ __forceinline__ uint4 load_word(uint64_t at, int32_t left, int32_t behind)
{
    uint4 word;
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.gt.s32 wanted, %5, %6;\n\t"
                 "mov.u32 %0, 0;\n\t" // or old values would have to live until here
                 "mov.u32 %1, 0;\n\t"
                 "mov.u32 %2, 0;\n\t"
                 "mov.u32 %3, 0;\n\t"
                 "@wanted ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
                 "}"
                 : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
                 : "l"(at), "r"(left), "r"(behind));
    return word;
}

// Stores it when left > behind.
__device__ __forceinline__ void store_word(uint64_t at, uint4 word, int32_t left, int32_t behind)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.gt.s32 wanted, %5, %6;\n\t"
                 "@wanted st.global.v4.u32 [%0], {%1, %2, %3, %4};\n\t"
                 "}" ::"l"(at),
                 "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w), "r"(left), "r"(behind)
                 : "memory");
}

__device__ __forceinline__ uint32_t load_byte(uint64_t at, bool wanted)
{
    uint32_t byte;
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.u32 wanted, %2, 0;\n\t"
                 "mov.u32 %0, 0;\n\t"
                 "@wanted ld.relaxed.sys.global.u8 %0, [%1];\n\t"
                 "}"
                 : "=&r"(byte)
                 : "l"(at), "r"(static_cast<uint32_t>(wanted)));
    return byte;
}

__device__ __forceinline__ void store_byte(uint64_t at, uint32_t byte)
{
    asm volatile("st.global.u8 [%0], %1;" ::"l"(at), "r"(byte) : "memory");
}

// Copies 16-byte words between two multiples of 16. The addresses are those of this lane's first
// word; `left` is how many words there are from that one on, and below 1 for a lane that has none.
__device__ __forceinline__ void copy_aligned(uint64_t to, uint64_t from, int32_t left, int32_t lane)
{
    constexpr int32_t batch = rows * row_words;
#pragma unroll 1
    for (; left + lane >= batch; left -= batch) { // the same for all lanes
        uint4 held[rows];
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
            held[row] = load_word(from + row * row_bytes, 1, 0);
        }
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
            store_word(to + row * row_bytes, held[row], 1, 0);
        }
        to += rows * row_bytes;
        from += rows * row_bytes;
    }
    if (left + lane > 0) {
        uint4 held[rows];
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
            held[row] = load_word(from + row * row_bytes, left, row * row_words);
        }
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) {
            store_word(to + row * row_bytes, held[row], left, row * row_words);
        }
    }
}

// What follows the 32-bit word number `skip` of `low`, with `high` behind it, `bits` further on.
template <unsigned skip>
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, uint32_t bits)
{
    const uint32_t all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    return make_uint4(__funnelshift_r(all[skip], all[skip + 1], bits),
                      __funnelshift_r(all[skip + 1], all[skip + 2], bits),
                      __funnelshift_r(all[skip + 2], all[skip + 3], bits),
                      __funnelshift_r(all[skip + 3], all[skip + 4], bits));
}

// The same from 4 * skip + bits / 8 bytes behind the multiple of 16 that is `from`; more than 0
// bytes, so that the source words read, one more than are written, all hold some of the source.
// Each lane loads one of them per row, and has the next one from its `giver`, the lane behind it:
// the last lane from the first one's next row. The lane's own number, which is one less, would be
// a register too much.
template <unsigned skip>
__device__ __forceinline__ void copy_shifted(uint64_t to, uint64_t from, uint32_t bits,
                                             int32_t left, int32_t giver)
{
    constexpr int32_t batch = shifted_rows * row_words;
#pragma unroll 1
    for (; left + giver > 1; left -= batch) { // the same for all lanes
        uint4 held[shifted_rows + 1];
#pragma unroll
        for (unsigned row = 0; row < shifted_rows; ++row) {
            held[row] = load_word(from + row * row_bytes, left + 1, row * row_words);
        }
        held[shifted_rows] =
            load_word(from + shifted_rows * row_bytes, 1 == giver ? left + 1 : 0, batch);
#pragma unroll
        for (unsigned row = 0; row < shifted_rows; ++row) {
            uint4 next;
            next.x = __shfl_sync(~0U, 1 == giver ? held[row + 1].x : held[row].x, giver);
            if constexpr (skip >= 1) {
                next.y = __shfl_sync(~0U, 1 == giver ? held[row + 1].y : held[row].y, giver);
            }
            if constexpr (skip >= 2) {
                next.z = __shfl_sync(~0U, 1 == giver ? held[row + 1].z : held[row].z, giver);
            }
            if constexpr (skip >= 3) {
                next.w = __shfl_sync(~0U, 1 == giver ? held[row + 1].w : held[row].w, giver);
            }
            store_word(to + row * row_bytes, shifted<skip>(held[row], next, bits), left,
                       row * row_words);
        }
        to += shifted_rows * row_bytes;
        from += shifted_rows * row_bytes;
    }
}

// One piece by one warp.
__device__ __forceinline__ void copy_piece(uint64_t to, uint64_t from, uint32_t len_bytes,
                                           uint32_t lane)
{
    uint32_t head = -static_cast<uint32_t>(to) % word_bytes;
    head = head < len_bytes ? head : len_bytes;
    const uint32_t words = (len_bytes - head) / word_bytes;
    const uint32_t tail = (len_bytes - head) % word_bytes;
    // The bytes before the words are for the first lanes, the ones behind them for the last.
    const bool has_byte = lane < word_bytes ? lane < head : lane - word_bytes < tail;
    const uint32_t byte_at = lane < word_bytes ? lane : len_bytes - tail + lane - word_bytes;
    const uint32_t byte = load_byte(from + byte_at, has_byte);
    if (words > 0) {
        from += head;
        const uint32_t beyond = static_cast<uint32_t>(from) % word_bytes;
        const uint64_t first_from = from - beyond + lane * word_bytes;
        const uint64_t first_to = to + head + lane * word_bytes;
        const int32_t left = static_cast<int32_t>(words - lane);
        const int32_t giver = static_cast<int32_t>(lane) + 1; // modulo the size of a warp
        const uint32_t bits = beyond % 4 * 8;
        if (0 == beyond) {
            copy_aligned(first_to, first_from, left, lane);
        } else if (beyond < 4) {
            copy_shifted<0>(first_to, first_from, bits, left, giver);
        } else if (beyond < 8) {
            copy_shifted<1>(first_to, first_from, bits, left, giver);
        } else if (beyond < 12) {
            copy_shifted<2>(first_to, first_from, bits, left, giver);
        } else {
            copy_shifted<3>(first_to, first_from, bits, left, giver);
        }
    }
    if (has_byte) {
        store_byte(to + byte_at, byte);
    }
}

} // namespace

// Blocks of each slot's launch that have finished. Has a name of its own because the compiler
// would make one that depends on where this file lies.
extern "C" {
__device__ unsigned gpusm_gather_finished[gpusm::gather_slots];
}

namespace {

template <unsigned max_copies>
__device__ __forceinline__ void gather(const gather_arguments<max_copies> &arguments)
{
    const uint32_t lane = threadIdx.x % gather_warp;
    // Neighbouring pieces go to different multiprocessors: each has a share of the links.
    const uint32_t warp = blockIdx.x + threadIdx.x / gather_warp * gridDim.x;
    const uint32_t warps = gridDim.x * (gather_threads / gather_warp);
#pragma unroll 1
    for (uint32_t piece = warp; piece < arguments.pieces; piece += warps) {
        uint32_t found = 0; // the last copy whose first piece is not behind this one
#pragma unroll 1
        for (uint32_t above = arguments.copies; above - found > 1;) {
            const uint32_t middle = (found + above) / 2;
            if (arguments.copy[middle].first_piece <= piece) {
                found = middle;
            } else {
                above = middle;
            }
        }
        const uint64_t to = arguments.copy[found].destination;
        const gather_piece part =
            gather_piece_of(to, arguments.copy[found].len_bytes,
                            piece - arguments.copy[found].first_piece, arguments.piece_shift);
        copy_piece(to + part.begin, arguments.copy[found].source + part.begin,
                   part.end - part.begin, lane);
    }
    tell_end(arguments, gpusm_gather_finished);
}

} // namespace

// Two blocks fit on a multiprocessor, so that a launch finds room beside the program's own.
extern "C" __global__ void __launch_bounds__(gather_threads, 2)
    gpusm_gather_few(const __grid_constant__ gather_arguments<gather_few_copies> arguments)
{
    gather(arguments);
}

extern "C" __global__ void __launch_bounds__(gather_threads, 2)
    gpusm_gather(const __grid_constant__ gather_arguments<gather_most_copies> arguments)
{
    gather(arguments);
}
