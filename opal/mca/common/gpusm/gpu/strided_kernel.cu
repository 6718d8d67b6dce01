// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/strided_kernel.cu: the device side of strided_kernel.h. Compiled to PTX by gpu/make-ptx; the
// text beside this file is what a build without nvcc uses. Keep to what sm_70 has.
//
// What a copy of small blocks is bound by is the time that a load takes through a link, so a thread
// finds the places of several words and issues their loads before the first store.
// Neighbouring threads have neighbouring words, so that a warp's loads of one block are one
// transaction.
#include "kernel_end.cuh"
#include "strided_arguments.h"

namespace {

using namespace gpusm;

// A word of a copy, in as many of these registers as it needs. Loads and stores happen when they
// are `wanted`; the condition is a predicate of the one instruction, as branches would take the
// loads apart. Loads are strong: an ordinary one may be answered by the L1 cache of the
// multiprocessor, where a launch that still runs may have left what the peer has overwritten since.
template <unsigned bytes>
__device__ __forceinline__ void load(uint4 &word, uint64_t at, bool wanted);
template <unsigned bytes>
__device__ __forceinline__ void store(uint64_t at, const uint4 &word, bool wanted);

template <> __device__ __forceinline__ void load<16>(uint4 &word, uint64_t at, bool wanted)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.u32 wanted, %5, 0;\n\t"
                 "mov.u32 %0, 0;\n\t" // or old values would have to live until here
                 "mov.u32 %1, 0;\n\t"
                 "mov.u32 %2, 0;\n\t"
                 "mov.u32 %3, 0;\n\t"
                 "@wanted ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
                 "}"
                 : "=&r"(word.x), "=&r"(word.y), "=&r"(word.z), "=&r"(word.w)
                 : "l"(at), "r"(static_cast<uint32_t>(wanted)));
}

template <> __device__ __forceinline__ void store<16>(uint64_t at, const uint4 &word, bool wanted)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.u32 wanted, %5, 0;\n\t"
                 "@wanted st.global.v4.u32 [%0], {%1, %2, %3, %4};\n\t"
                 "}" ::"l"(at),
                 "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w),
                 "r"(static_cast<uint32_t>(wanted))
                 : "memory");
}

template <> __device__ __forceinline__ void load<8>(uint4 &word, uint64_t at, bool wanted)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.u32 wanted, %3, 0;\n\t"
                 "mov.u32 %0, 0;\n\t"
                 "mov.u32 %1, 0;\n\t"
                 "@wanted ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];\n\t"
                 "}"
                 : "=&r"(word.x), "=&r"(word.y)
                 : "l"(at), "r"(static_cast<uint32_t>(wanted)));
}

template <> __device__ __forceinline__ void store<8>(uint64_t at, const uint4 &word, bool wanted)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.u32 wanted, %3, 0;\n\t"
                 "@wanted st.global.v2.u32 [%0], {%1, %2};\n\t"
                 "}" ::"l"(at),
                 "r"(word.x), "r"(word.y), "r"(static_cast<uint32_t>(wanted))
                 : "memory");
}

// The others are one register, or the low part of it.
#define GPUSM_WORD(bytes, type)                                                                    \
    template <>                                                                                    \
    __device__ __forceinline__ void load<bytes>(uint4 & word, uint64_t at, bool wanted)            \
    {                                                                                              \
        asm volatile("{\n\t"                                                                       \
                     ".reg .pred wanted;\n\t"                                                      \
                     "setp.ne.u32 wanted, %2, 0;\n\t"                                              \
                     "mov.u32 %0, 0;\n\t"                                                          \
                     "@wanted ld.relaxed.sys.global." type " %0, [%1];\n\t"                        \
                     "}"                                                                           \
                     : "=&r"(word.x)                                                               \
                     : "l"(at), "r"(static_cast<uint32_t>(wanted)));                               \
    }                                                                                              \
    template <>                                                                                    \
    __device__ __forceinline__ void store<bytes>(uint64_t at, const uint4 &word, bool wanted)      \
    {                                                                                              \
        asm volatile("{\n\t"                                                                       \
                     ".reg .pred wanted;\n\t"                                                      \
                     "setp.ne.u32 wanted, %2, 0;\n\t"                                              \
                     "@wanted st.global." type " [%0], %1;\n\t"                                    \
                     "}" ::"l"(at),                                                                \
                     "r"(word.x), "r"(static_cast<uint32_t>(wanted))                               \
                     : "memory");                                                                  \
    }
GPUSM_WORD(4, "u32")
GPUSM_WORD(2, "u16")
GPUSM_WORD(1, "u8")
#undef GPUSM_WORD

// Words of a thread that are in flight together.
template <unsigned rows> struct row_places {
    strided_place place[rows];
    uint32_t wanted; // a bit for each
};

template <unsigned bytes, unsigned rows>
__device__ __forceinline__ void load_rows(uint4 (&held)[rows], const row_places<rows> &from)
{
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) {
        load<bytes>(held[row], from.place[row].address, (from.wanted >> row & 1) != 0);
    }
}

template <unsigned bytes, unsigned rows>
__device__ __forceinline__ void store_rows(const row_places<rows> &to, const uint4 (&held)[rows])
{
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) {
        store<bytes>(to.place[row].address, held[row], (to.wanted >> row & 1) != 0);
    }
}

// `rows` words of each thread of a block, the first thread's first one being the word `first`.
// Where they go to is found while they are on their way. `index`: see strided_places().
template <unsigned rows, typename index>
__device__ __forceinline__ void copy_rows(const strided_copy &copy, index first)
{
    const uint32_t word_bytes = copy.word_bytes;
    const index len_bytes = static_cast<index>(copy.len_bytes);
    index at[rows];
    row_places<rows> places;
    places.wanted = 0;
#pragma unroll
    for (unsigned row = 0; row < rows; ++row) {
        at[row] = (first + threadIdx.x + row * strided_threads) * word_bytes;
        places.wanted |= at[row] < len_bytes ? 1U << row : 0;
    }
    if (0 == places.wanted) {
        return;
    }
    uint4 held[rows];
    strided_places(copy.source, at, places.place);
    switch (word_bytes) {
    case 16:
        load_rows<16>(held, places);
        break;
    case 8:
        load_rows<8>(held, places);
        break;
    case 4:
        load_rows<4>(held, places);
        break;
    case 2:
        load_rows<2>(held, places);
        break;
    default:
        load_rows<1>(held, places);
        break;
    }
    strided_places(copy.destination, at, places.place);
    switch (word_bytes) {
    case 16:
        store_rows<16>(places, held);
        break;
    case 8:
        store_rows<8>(places, held);
        break;
    case 4:
        store_rows<4>(places, held);
        break;
    case 2:
        store_rows<2>(places, held);
        break;
    default:
        store_rows<1>(places, held);
        break;
    }
}

} // namespace

// Blocks of each slot's launch that have finished. Has a name of its own because the compiler
// would make one that depends on where this file lies.
extern "C" {
__device__ unsigned gpusm_strided_finished[gpusm::strided_slots];
}

namespace {

template <typename index, unsigned rows, unsigned max_copies>
__device__ __forceinline__ void copy_all(const strided_arguments<max_copies> &arguments)
{
    uint32_t nth = 0;
#pragma unroll 1
    for (uint32_t chunk = blockIdx.x; chunk < arguments.chunks; chunk += gridDim.x) {
        // The last copy whose first chunk is not behind this one.
        while (nth + 1 < arguments.copies && arguments.work[nth + 1].first_chunk <= chunk) {
            ++nth;
        }
        const index of_copy = chunk - arguments.work[nth].first_chunk;
        copy_rows<rows>(arguments.work[nth].copy, of_copy * (rows * strided_threads));
    }
    tell_end(arguments, gpusm_strided_finished);
}

} // namespace

// Two blocks fit on a multiprocessor, so that a launch finds room beside the program's own.
#define GPUSM_STRIDED(name, index, rows, max_copies)                                               \
    extern "C" __global__ void __launch_bounds__(strided_threads, 2)                               \
        name(const __grid_constant__ strided_arguments<max_copies> arguments)                      \
    {                                                                                              \
        copy_all<index, rows>(arguments);                                                          \
    }
GPUSM_STRIDED(gpusm_strided_short_few, uint32_t, strided_short_rows, strided_few_copies)
GPUSM_STRIDED(gpusm_strided_short, uint32_t, strided_short_rows, strided_most_copies)
GPUSM_STRIDED(gpusm_strided_long_few, uint32_t, strided_long_rows, strided_few_copies)
GPUSM_STRIDED(gpusm_strided_long, uint32_t, strided_long_rows, strided_most_copies)
// For sides of 2 GiB and more: all indices have 64 bits, which leaves registers for fewer words.
GPUSM_STRIDED(gpusm_strided_wide, uint64_t, strided_wide_rows, strided_most_copies)
