// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/reduce_kernel.cu: the device side of reduce_kernel.h. Compiled to PTX by gpu/make-ptx; the
// text beside this file is what a build without nvcc uses. Keep to what sm_70 has.
//
// The links to other devices are what limits a reduction, so a thread issues several loads before
// it waits for the first one. The registers for what they bring are dealt out by the number of
// sources: for two of them each thread works on four vectors together, for eight on one.
// Neighbouring threads have neighbouring vectors.
#include "kernel_end.cuh"
#include "reduce_arguments.h"
#include "reduce_combine.h"

namespace {

using namespace gpusm;

// Words of a vector that lie in its first len_bytes, a multiple of `bytes` up to 16; the rest is
// zero. The condition is a predicate of the one instruction, as branches would take the loads of
// several vectors apart. Loads are strong: the sources were written before the launch, but an
// ordinary load may be answered by the L1 cache of the multiprocessor, where a launch that still
// runs may have left what was there before.
template <unsigned bytes>
__device__ __forceinline__ void load_words(vector16 &held, uint64_t at, uint32_t len_bytes);
template <unsigned bytes>
__device__ __forceinline__ void store_words(uint64_t at, const vector16 &held, uint32_t len_bytes,
                                            uint32_t written);

template <>
__device__ __forceinline__ void load_words<16>(vector16 &held, uint64_t at, uint32_t len_bytes)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ge.u32 wanted, %5, 16;\n\t"
                 "mov.u32 %0, 0;\n\t" // or old values would have to live until here
                 "mov.u32 %1, 0;\n\t"
                 "mov.u32 %2, 0;\n\t"
                 "mov.u32 %3, 0;\n\t"
                 "@wanted ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
                 "}"
                 : "=&r"(held.word[0]), "=&r"(held.word[1]), "=&r"(held.word[2]),
                   "=&r"(held.word[3])
                 : "l"(at), "r"(len_bytes));
}

template <>
__device__ __forceinline__ void store_words<16>(uint64_t at, const vector16 &held,
                                                uint32_t len_bytes, uint32_t)
{
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ge.u32 wanted, %5, 16;\n\t"
                 "@wanted st.global.v4.u32 [%0], {%1, %2, %3, %4};\n\t"
                 "}" ::"l"(at),
                 "r"(held.word[0]), "r"(held.word[1]), "r"(held.word[2]), "r"(held.word[3]),
                 "r"(len_bytes)
                 : "memory");
}

template <>
__device__ __forceinline__ void load_words<8>(vector16 &held, uint64_t at, uint32_t len_bytes)
{
#pragma unroll
    for (unsigned word = 0; word < 2; ++word) {
        asm volatile("{\n\t"
                     ".reg .pred wanted;\n\t"
                     "setp.gt.u32 wanted, %3, %4;\n\t"
                     "mov.u32 %0, 0;\n\t"
                     "mov.u32 %1, 0;\n\t"
                     "@wanted ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];\n\t"
                     "}"
                     : "=&r"(held.word[2 * word]), "=&r"(held.word[2 * word + 1])
                     : "l"(at + 8 * word), "r"(len_bytes), "r"(8 * word));
    }
}

template <>
__device__ __forceinline__ void store_words<8>(uint64_t at, const vector16 &held,
                                               uint32_t len_bytes, uint32_t)
{
#pragma unroll
    for (unsigned word = 0; word < 2; ++word) {
        asm volatile("{\n\t"
                     ".reg .pred wanted;\n\t"
                     "setp.gt.u32 wanted, %3, %4;\n\t"
                     "@wanted st.global.v2.u32 [%0], {%1, %2};\n\t"
                     "}" ::"l"(at + 8 * word),
                     "r"(held.word[2 * word]), "r"(held.word[2 * word + 1]), "r"(len_bytes),
                     "r"(8 * word)
                     : "memory");
    }
}

// The others are one register, or a part of it. Bit i of `written`: byte i is to be stored.
#define GPUSM_WORDS(bytes, type)                                                                   \
    template <>                                                                                    \
    __device__ __forceinline__ void load_words<bytes>(vector16 & held, uint64_t at,                \
                                                      uint32_t len_bytes)                          \
    {                                                                                              \
        _Pragma("unroll") for (unsigned first = 0; first < 16; first += 4)                         \
        {                                                                                          \
            uint32_t made = 0;                                                                     \
            _Pragma("unroll") for (unsigned byte = 0; byte < 4; byte += bytes)                     \
            {                                                                                      \
                uint32_t part;                                                                     \
                asm volatile("{\n\t"                                                               \
                             ".reg .pred wanted;\n\t"                                              \
                             "setp.gt.u32 wanted, %2, %3;\n\t"                                     \
                             "mov.u32 %0, 0;\n\t"                                                  \
                             "@wanted ld.relaxed.sys.global." type " %0, [%1];\n\t"                \
                             "}"                                                                   \
                             : "=&r"(part)                                                         \
                             : "l"(at + first + byte), "r"(len_bytes), "r"(first + byte));         \
                made |= part << (8 * byte);                                                        \
            }                                                                                      \
            held.word[first / 4] = made;                                                           \
        }                                                                                          \
    }                                                                                              \
    template <>                                                                                    \
    __device__ __forceinline__ void store_words<bytes>(uint64_t at, const vector16 &held,          \
                                                       uint32_t len_bytes, uint32_t written)       \
    {                                                                                              \
        _Pragma("unroll") for (unsigned byte = 0; byte < 16; byte += bytes)                        \
        {                                                                                          \
            const uint32_t stored = (written >> byte & 1) != 0 ? len_bytes : 0;                    \
            asm volatile("{\n\t"                                                                   \
                         ".reg .pred wanted;\n\t"                                                  \
                         "setp.gt.u32 wanted, %2, %3;\n\t"                                         \
                         "@wanted st.global." type " [%0], %1;\n\t"                                \
                         "}" ::"l"(at + byte),                                                     \
                         "r"(held.word[byte / 4] >> (8 * (byte % 4))), "r"(stored), "r"(byte)      \
                         : "memory");                                                              \
        }                                                                                          \
    }
GPUSM_WORDS(4, "u32")
GPUSM_WORDS(2, "u16")
GPUSM_WORDS(1, "u8")
#undef GPUSM_WORDS

constexpr uint32_t all = 0xffff; // bytes of a vector

// Buffers that are 16-byte aligned, of whole vectors.
struct aligned_buffers {
    static constexpr unsigned loads = 8; // of vectors, that a thread has in flight together

    static __device__ __forceinline__ uint64_t vectors(const reduce_arguments &arguments)
    {
        return arguments.vectors;
    }
    static __device__ __forceinline__ uint32_t len_of(const reduce_arguments &arguments,
                                                      uint64_t nth)
    {
        return nth < arguments.vectors ? 16 : 0;
    }
    static __device__ __forceinline__ void load(const reduce_arguments &, vector16 &held,
                                                uint64_t at, uint32_t len_bytes)
    {
        load_words<16>(held, at, len_bytes);
    }
    static __device__ __forceinline__ void store(const reduce_arguments &, uint64_t at,
                                                 const vector16 &held, uint32_t len_bytes)
    {
        store_words<16>(at, held, len_bytes, all);
    }
};

// Others.
struct any_buffers {
    static constexpr unsigned loads = 4;

    static __device__ __forceinline__ uint64_t vectors(const reduce_arguments &arguments)
    {
        return arguments.vectors + (arguments.tail_bytes > 0 ? 1 : 0);
    }
    static __device__ __forceinline__ uint32_t len_of(const reduce_arguments &arguments,
                                                      uint64_t nth)
    {
        return nth < arguments.vectors ? 16 : nth == arguments.vectors ? arguments.tail_bytes : 0;
    }
    static __device__ __forceinline__ uint32_t word_of(const reduce_arguments &arguments,
                                                       uint32_t len_bytes)
    {
        return 16 == len_bytes ? arguments.word_bytes : arguments.tail_word_bytes;
    }
    static __device__ __forceinline__ void load(const reduce_arguments &arguments, vector16 &held,
                                                uint64_t at, uint32_t len_bytes)
    {
        switch (word_of(arguments, len_bytes)) {
        case 16:
            load_words<16>(held, at, len_bytes);
            break;
        case 8:
            load_words<8>(held, at, len_bytes);
            break;
        case 4:
            load_words<4>(held, at, len_bytes);
            break;
        case 2:
            load_words<2>(held, at, len_bytes);
            break;
        default:
            load_words<1>(held, at, len_bytes);
            break;
        }
    }
    static __device__ __forceinline__ void store(const reduce_arguments &arguments, uint64_t at,
                                                 const vector16 &held, uint32_t len_bytes)
    {
        const uint32_t written = arguments.written;
        const uint32_t word = word_of(arguments, len_bytes);
        // A word must not reach into a gap: of int16_int these begin at two bytes.
        switch (all == written ? word : min(word, 0 == (written & 0x0c) ? 2 : 4)) {
        case 16:
            store_words<16>(at, held, len_bytes, written);
            break;
        case 8:
            store_words<8>(at, held, len_bytes, written);
            break;
        case 4:
            store_words<4>(at, held, len_bytes, written);
            break;
        case 2:
            store_words<2>(at, held, len_bytes, written);
            break;
        default:
            store_words<1>(at, held, len_bytes, written);
            break;
        }
    }
};

// The vectors `first`, first + step, ... of a thread, as many as there are loads for all sources,
// or for as many of these as there are loads; the others follow. What the loads bring is combined
// in a loop, one vector of one source in each turn, so that there is one switch of operations; for
// that all of it is moved on by one register.
template <typename buffers>
__device__ __forceinline__ void reduce_vectors(const reduce_arguments &arguments, uint64_t first,
                                               uint64_t step, uint32_t group_shift)
{
    const reduction &what = arguments.what;
    const uint32_t group = 1U << group_shift; // sources of which a vector is loaded together
    vector16 held[buffers::loads];            // vector by vector
    vector16 result = {};
#pragma unroll 1
    for (uint32_t begin = 0; begin < what.source_count; begin += group) {
#pragma unroll
        for (uint32_t i = 0; i < buffers::loads; ++i) {
            const uint32_t source = begin + (i & (group - 1));
            const uint64_t nth = first + (i >> group_shift) * step;
            const uint32_t len_bytes =
                source < what.source_count ? buffers::len_of(arguments, nth) : 0;
            buffers::load(arguments, held[i], what.sources[source] + 16 * nth, len_bytes);
        }
#pragma unroll 1
        for (uint32_t i = 0; i < buffers::loads; ++i) {
            const uint32_t source = begin + (i & (group - 1));
            const uint64_t nth = first + (i >> group_shift) * step;
            const uint32_t len_bytes = buffers::len_of(arguments, nth);
            if (0 == len_bytes) {
                break;
            }
            if (source < what.source_count) {
                result = 0 == source ? held[0] : combine(what.op, what.type, result, held[0]);
            }
            if (source + 1 == what.source_count) {
#pragma unroll 1
                for (uint32_t target = 0; target < what.target_count; ++target) {
                    buffers::store(arguments, what.targets[target] + 16 * nth, result, len_bytes);
                }
            }
#pragma unroll
            for (uint32_t next = 1; next < buffers::loads; ++next) {
                held[next - 1] = held[next];
            }
        }
    }
}

} // namespace

// Blocks of each slot's launch that have finished. Has a name of its own because the compiler
// would make one that depends on where this file lies.
extern "C" {
__device__ unsigned gpusm_reduce_finished[gpusm::reduce_slots];
}

namespace {

template <typename buffers>
__device__ __forceinline__ void reduce_all(const reduce_arguments &arguments)
{
    uint32_t group_shift = 0; // the fewest that are enough for all sources
    while (1U << group_shift < buffers::loads && 1U << group_shift < arguments.what.source_count) {
        ++group_shift;
    }
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * reduce_threads;
    const uint64_t vectors = buffers::vectors(arguments);
#pragma unroll 1
    for (uint64_t first = static_cast<uint64_t>(blockIdx.x) * reduce_threads + threadIdx.x;
         first < vectors; first += step * (buffers::loads >> group_shift)) {
        reduce_vectors<buffers>(arguments, first, step, group_shift);
    }
    tell_end(arguments, gpusm_reduce_finished);
}

} // namespace

// Two blocks fit on a multiprocessor, so that a launch finds room beside the program's own.
extern "C" __global__ void __launch_bounds__(reduce_threads, 2)
    gpusm_reduce(const __grid_constant__ reduce_arguments arguments)
{
    reduce_all<aligned_buffers>(arguments);
}

extern "C" __global__ void __launch_bounds__(reduce_threads, 2)
    gpusm_reduce_any(const __grid_constant__ reduce_arguments arguments)
{
    reduce_all<any_buffers>(arguments);
}
