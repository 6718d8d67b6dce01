// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/reduce_arguments.h: reductions of elements of several buffers, and what the reduce kernel is
// launched with; gpu/reduce_combine.h says how elements are combined. Read by the device code
// (gpu/reduce_kernel.cu), by the host and by the software CUDA driver; so it includes nothing but
// <stdint.h>, and its layout is fixed.
#ifndef GPUSM_GPU_REDUCE_ARGUMENTS_H
#define GPUSM_GPU_REDUCE_ARGUMENTS_H

#include <stdint.h>

namespace gpusm {

enum reduce_limits {
    reduce_most_ranks = 16,      // sources, and targets, of a reduction
    reduce_vector_bytes = 16,    // that are combined at once; all lengths of elements divide it
    reduce_threads = 512,        // in a block
    reduce_block_vectors = 512,  // a launch has a block for so many vectors, up to its limit
    reduce_slots = 16,           // launches in flight at most
};

// MPI's predefined operations.
enum class reduce_op : uint8_t {
    max,
    min,
    sum,
    prod,
    land,
    band,
    lor,
    bor,
    lxor,
    bxor,
    minloc,
    maxloc,
    count
};

enum class reduce_type : uint8_t {
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    bfloat16,
    float32,
    float64,
    complex32, // two float32: real and imaginary part
    complex64, // two float64
    // A value and an index, as C lays out a struct of the two.
    float_int,
    double_int,
    int64_int,
    int_int,
    int16_int,
    float_float,
    double_double,
    count
};

constexpr bool is_integer(reduce_type type)
{
    return type <= reduce_type::uint64;
}
constexpr bool is_pair(reduce_type type)
{
    return type >= reduce_type::float_int && type < reduce_type::count;
}

// Length of an element: a power of two up to reduce_vector_bytes, or 0 for what is no type.
constexpr uint32_t element_bytes(reduce_type type)
{
    switch (type) {
    case reduce_type::int8:
    case reduce_type::uint8:
        return 1;
    case reduce_type::int16:
    case reduce_type::uint16:
    case reduce_type::float16:
    case reduce_type::bfloat16:
        return 2;
    case reduce_type::int32:
    case reduce_type::uint32:
    case reduce_type::float32:
        return 4;
    case reduce_type::int64:
    case reduce_type::uint64:
    case reduce_type::float64:
    case reduce_type::complex32:
    case reduce_type::float_int:
    case reduce_type::int_int:
    case reduce_type::int16_int:
    case reduce_type::float_float:
        return 8;
    case reduce_type::complex64:
    case reduce_type::double_int:
    case reduce_type::int64_int:
    case reduce_type::double_double:
        return 16;
    case reduce_type::count:
        break;
    }
    return 0;
}

// Bit i: byte i of a vector belongs to a value or an index. The others, between and behind the two,
// may hold something of the program's.
constexpr uint16_t written_bytes(reduce_type type)
{
    switch (type) {
    case reduce_type::double_int:
    case reduce_type::int64_int:
        return 0x0fff;
    case reduce_type::int16_int:
        return 0xf3f3;
    default:
        return 0xffff;
    }
}

// Does MPI define that operation for elements of that type?
constexpr bool is_defined(reduce_op op, reduce_type type)
{
    const bool is_complex = reduce_type::complex32 == type || reduce_type::complex64 == type;
    switch (op) {
    case reduce_op::max:
    case reduce_op::min:
        return type <= reduce_type::float64;
    case reduce_op::sum:
    case reduce_op::prod:
        return type <= reduce_type::float64 || is_complex;
    case reduce_op::land:
    case reduce_op::band:
    case reduce_op::lor:
    case reduce_op::bor:
    case reduce_op::lxor:
    case reduce_op::bxor:
        return is_integer(type);
    case reduce_op::minloc:
    case reduce_op::maxloc:
        return is_pair(type);
    case reduce_op::count:
        break;
    }
    return false;
}

// One reduction: element i of each target becomes sources[0][i] op sources[1][i] op ..., combined
// in this order, so that the result does not depend on how it is carried out. With one source it is
// a copy. A target may be one of the sources: a thread reads an element from all sources before it
// writes it anywhere, and no other thread touches that element. Otherwise no target overlaps a
// source or another target.
struct reduction {
    uint64_t sources[reduce_most_ranks]; // device addresses, of any alignment
    uint64_t targets[reduce_most_ranks];
    uint32_t source_count; // 1 ... reduce_most_ranks
    uint32_t target_count; // likewise
    uint64_t elements;     // > 0
    enum reduce_op op;
    enum reduce_type type;
};

// The parameter of a launch. Vector i of a buffer is its bytes from 16 * i on. There are `vectors`
// whole ones, and behind them tail_bytes (< 16) of whole elements. Both kinds of words are powers
// of two up to 16; one load or store moves one.
struct reduce_arguments {
    uint64_t done;       // device address of a uint32_t in host memory, written last of all
    uint32_t done_value; // with this
    uint32_t slot;       // index of the device-side counter of finished blocks; 0 before and after
    uint64_t vectors;
    uint16_t tail_bytes;
    uint16_t written;         // written_bytes() of the type
    uint16_t word_bytes;      // divides all addresses
    uint16_t tail_word_bytes; // divides all addresses and tail_bytes
    struct reduction what;
};

} // namespace gpusm

#endif
