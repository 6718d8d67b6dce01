// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/reduce_combine.h: how the elements of a reduction are combined, by the device code
// (gpu/reduce_kernel.cu) and by the software CUDA driver. Results are the same to the last bit, but
// for NaNs, whose bits may differ.
#ifndef GPUSM_GPU_REDUCE_COMBINE_H
#define GPUSM_GPU_REDUCE_COMBINE_H

// The device code, which is compiled without a path for includes, has included it before.
#ifndef __CUDACC__
#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"
#endif

#ifdef __CUDACC__
#define GPUSM_REDUCE_FUNCTION __host__ __device__
#else
#define GPUSM_REDUCE_FUNCTION
#endif
// An array that is indexed at run time would lie in the local memory of a device.
#ifdef __CUDA_ARCH__
#define GPUSM_REDUCE_UNROLL _Pragma("unroll")
#else
#define GPUSM_REDUCE_UNROLL
#endif

namespace gpusm {

// 16 bytes of elements, in memory order.
struct alignas(16) vector16 {
    uint32_t word[4];
};

// Floating-point numbers that are kept in 16 bits and combined as a float.
struct half_number {
    uint16_t bits;
};
struct bfloat_number {
    uint16_t bits;
};
template <typename number> struct complex_number {
    number real;
    number imaginary;
};
template <typename value_type, typename index_type> struct located_value {
    value_type value;
    index_type index;
};

template <typename to_type, typename from_type>
GPUSM_REDUCE_FUNCTION inline to_type same_bits(const from_type &from)
{
    static_assert(sizeof(to_type) == sizeof(from_type));
    to_type to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

// What an element is as a number that C++ calculates with. Short unsigned ones are made longer, as
// a product of two uint16_t would be one of int, which may overflow.
template <typename number> GPUSM_REDUCE_FUNCTION inline number number_of(number element)
{
    return element;
}
GPUSM_REDUCE_FUNCTION inline uint32_t number_of(uint8_t element)
{
    return element;
}
GPUSM_REDUCE_FUNCTION inline uint32_t number_of(uint16_t element)
{
    return element;
}
GPUSM_REDUCE_FUNCTION inline float number_of(half_number element)
{
#ifdef __CUDA_ARCH__
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(element.bits));
    return number;
#else
    const uint32_t sign = (element.bits & 0x8000U) << 16;
    const uint32_t rest = element.bits & 0x7fffU;
    if (rest < 0x0400) { // subnormal: so many times 2^-24
        const float number = static_cast<float>(rest) * 0x1p-24F;
        return same_bits<float>(same_bits<uint32_t>(number) | sign);
    }
    // An exponent has 5 bits with a bias of 15, that of a float 8 bits with one of 127. The
    // greatest one stands for infinities and NaNs.
    const uint32_t exponent_bias = rest < 0x7c00 ? 127U - 15U : 255U - 31U;
    return same_bits<float>(sign | ((rest << 13) + (exponent_bias << 23)));
#endif
}
GPUSM_REDUCE_FUNCTION inline float number_of(bfloat_number element)
{
    return same_bits<float>(static_cast<uint32_t>(element.bits) << 16);
}

// The element that is nearest to a number, of two as near the even one; of integers the low bits.
// Any NaN becomes 0x7fff, which is what a GPU makes of it.
template <typename element> struct nearest {
    template <typename number> GPUSM_REDUCE_FUNCTION static element to(number from)
    {
        return static_cast<element>(from);
    }
};
template <> struct nearest<half_number> {
    GPUSM_REDUCE_FUNCTION static half_number to(float from)
    {
        half_number made;
#ifdef __CUDA_ARCH__
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made.bits) : "f"(from));
#else
        const uint32_t bits = same_bits<uint32_t>(from);
        uint32_t rest = bits & 0x7fffffffU;
        if (rest > 0x7f800000) {
            made.bits = 0x7fff;
            return made;
        }
        if (rest >= 0x477ff000) { // from 65520 on
            rest = 0x7c00;
        } else if (rest < 0x38800000) { // below 2^-14: subnormal
            // The last bit of a float between 0.5 and 1 is worth 2^-24.
            rest = same_bits<uint32_t>(same_bits<float>(rest) + 0.5F) - 0x3f000000;
        } else {
            rest += 0x0fff + (rest >> 13 & 1);
            rest = (rest - ((127U - 15U) << 23)) >> 13;
        }
        made.bits = static_cast<uint16_t>((bits >> 16 & 0x8000U) | rest);
#endif
        return made;
    }
};
template <> struct nearest<bfloat_number> {
    GPUSM_REDUCE_FUNCTION static bfloat_number to(float from)
    {
        const uint32_t bits = same_bits<uint32_t>(from);
        const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000;
        const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        return {static_cast<uint16_t>(is_nan ? 0x7fff : rounded >> 16)};
    }
};

// Products that the compiler does not fuse with the addition behind them, which would make the
// result depend on who calculates it.
GPUSM_REDUCE_FUNCTION inline float rounded_product(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
GPUSM_REDUCE_FUNCTION inline double rounded_product(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

// The operations on two elements, `a` being of the lower rank. Sums and products of integers wrap,
// for which they are calculated with unsigned ones. Floating-point maxima and minima are the
// element of the higher rank when the two are equal or one is a NaN.
struct max_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element b)
    {
        return number_of(a) > number_of(b) ? a : b;
    }
};
struct min_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element b)
    {
        return number_of(a) < number_of(b) ? a : b;
    }
};
struct sum_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element b)
    {
        return nearest<element>::to(number_of(a) + number_of(b));
    }
    template <typename number>
    GPUSM_REDUCE_FUNCTION static complex_number<number> of(complex_number<number> a,
                                                           complex_number<number> b)
    {
        return {a.real + b.real, a.imaginary + b.imaginary};
    }
};
struct product_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element b)
    {
        return nearest<element>::to(number_of(a) * number_of(b));
    }
    // As the formula says; infinite parts are not looked for.
    template <typename number>
    GPUSM_REDUCE_FUNCTION static complex_number<number> of(complex_number<number> a,
                                                           complex_number<number> b)
    {
        return {rounded_product(a.real, b.real) - rounded_product(a.imaginary, b.imaginary),
                rounded_product(a.real, b.imaginary) + rounded_product(a.imaginary, b.real)};
    }
};
// Truth values, as C has them.
struct truth_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element)
    {
        return a != 0 ? 1 : 0;
    }
};
// Of equal values the smaller index. What lies between and behind the two has no meaning, and is
// not written (written_bytes).
struct min_location_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element b)
    {
        const bool is_first = a.value == b.value ? a.index < b.index : a.value < b.value;
        return is_first ? a : b;
    }
};
struct max_location_of {
    template <typename element> GPUSM_REDUCE_FUNCTION static element of(element a, element b)
    {
        const bool is_first = a.value == b.value ? a.index < b.index : a.value > b.value;
        return is_first ? a : b;
    }
};

template <typename element, typename operation>
GPUSM_REDUCE_FUNCTION inline vector16 combine_each(const vector16 &a, const vector16 &b)
{
    constexpr unsigned count = sizeof(vector16) / sizeof(element);
    element left[count];
    element right[count];
    __builtin_memcpy(left, &a, sizeof(a));
    __builtin_memcpy(right, &b, sizeof(b));
    GPUSM_REDUCE_UNROLL
    for (unsigned i = 0; i < count; ++i) {
        left[i] = operation::of(left[i], right[i]);
    }
    vector16 made;
    __builtin_memcpy(&made, left, sizeof(made));
    return made;
}

template <typename operation>
GPUSM_REDUCE_FUNCTION inline vector16 combine_ordered(enum reduce_type type, const vector16 &a,
                                                      const vector16 &b)
{
    switch (type) {
    case reduce_type::int8:
        return combine_each<int8_t, operation>(a, b);
    case reduce_type::int16:
        return combine_each<int16_t, operation>(a, b);
    case reduce_type::int32:
        return combine_each<int32_t, operation>(a, b);
    case reduce_type::int64:
        return combine_each<int64_t, operation>(a, b);
    case reduce_type::uint8:
        return combine_each<uint8_t, operation>(a, b);
    case reduce_type::uint16:
        return combine_each<uint16_t, operation>(a, b);
    case reduce_type::uint32:
        return combine_each<uint32_t, operation>(a, b);
    case reduce_type::uint64:
        return combine_each<uint64_t, operation>(a, b);
    case reduce_type::float16:
        return combine_each<half_number, operation>(a, b);
    case reduce_type::bfloat16:
        return combine_each<bfloat_number, operation>(a, b);
    case reduce_type::float32:
        return combine_each<float, operation>(a, b);
    case reduce_type::float64:
        return combine_each<double, operation>(a, b);
    default:
        return a;
    }
}

// Whether an integer has a sign makes no difference here.
template <typename operation>
GPUSM_REDUCE_FUNCTION inline vector16 combine_integers(enum reduce_type type, const vector16 &a,
                                                       const vector16 &b)
{
    switch (type) {
    case reduce_type::int8:
    case reduce_type::uint8:
        return combine_each<uint8_t, operation>(a, b);
    case reduce_type::int16:
    case reduce_type::uint16:
        return combine_each<uint16_t, operation>(a, b);
    case reduce_type::int32:
    case reduce_type::uint32:
        return combine_each<uint32_t, operation>(a, b);
    case reduce_type::int64:
    case reduce_type::uint64:
        return combine_each<uint64_t, operation>(a, b);
    default:
        return a;
    }
}

template <typename operation>
GPUSM_REDUCE_FUNCTION inline vector16 combine_numbers(enum reduce_type type, const vector16 &a,
                                                      const vector16 &b)
{
    switch (type) {
    case reduce_type::float16:
        return combine_each<half_number, operation>(a, b);
    case reduce_type::bfloat16:
        return combine_each<bfloat_number, operation>(a, b);
    case reduce_type::float32:
        return combine_each<float, operation>(a, b);
    case reduce_type::float64:
        return combine_each<double, operation>(a, b);
    case reduce_type::complex32:
        return combine_each<complex_number<float>, operation>(a, b);
    case reduce_type::complex64:
        return combine_each<complex_number<double>, operation>(a, b);
    default:
        return combine_integers<operation>(type, a, b);
    }
}

template <typename operation>
GPUSM_REDUCE_FUNCTION inline vector16 combine_pairs(enum reduce_type type, const vector16 &a,
                                                    const vector16 &b)
{
    switch (type) {
    case reduce_type::float_int:
        return combine_each<located_value<float, int32_t>, operation>(a, b);
    case reduce_type::double_int:
        return combine_each<located_value<double, int32_t>, operation>(a, b);
    case reduce_type::int64_int:
        return combine_each<located_value<int64_t, int32_t>, operation>(a, b);
    case reduce_type::int_int:
        return combine_each<located_value<int32_t, int32_t>, operation>(a, b);
    case reduce_type::int16_int:
        return combine_each<located_value<int16_t, int32_t>, operation>(a, b);
    case reduce_type::float_float:
        return combine_each<located_value<float, float>, operation>(a, b);
    case reduce_type::double_double:
        return combine_each<located_value<double, double>, operation>(a, b);
    default:
        return a;
    }
}

// The logical operations are the bitwise ones of truth values.
GPUSM_REDUCE_FUNCTION inline vector16 combine_bits(enum reduce_op op, const vector16 &a,
                                                   const vector16 &b)
{
    const bool is_and = reduce_op::band == op || reduce_op::land == op;
    const bool is_or = reduce_op::bor == op || reduce_op::lor == op;
    vector16 made;
    GPUSM_REDUCE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
        made.word[i] = is_and  ? a.word[i] & b.word[i]
                       : is_or ? a.word[i] | b.word[i]
                               : a.word[i] ^ b.word[i];
    }
    return made;
}

// 16 bytes of elements, `a` those of the lower rank. All threads of a launch take the same way
// through the switches, which costs them little beside the memory; a kernel for each way would be
// sixty. `a`, where the operation is not defined for the type.
GPUSM_REDUCE_FUNCTION inline vector16 combine(enum reduce_op op, enum reduce_type type,
                                              const vector16 &a, const vector16 &b)
{
    switch (op) {
    case reduce_op::max:
        return combine_ordered<max_of>(type, a, b);
    case reduce_op::min:
        return combine_ordered<min_of>(type, a, b);
    case reduce_op::sum:
        return combine_numbers<sum_of>(type, a, b);
    case reduce_op::prod:
        return combine_numbers<product_of>(type, a, b);
    case reduce_op::land:
    case reduce_op::lor:
    case reduce_op::lxor:
        return combine_bits(op, combine_integers<truth_of>(type, a, a),
                            combine_integers<truth_of>(type, b, b));
    case reduce_op::band:
    case reduce_op::bor:
    case reduce_op::bxor:
        return combine_bits(op, a, b);
    case reduce_op::minloc:
        return combine_pairs<min_location_of>(type, a, b);
    case reduce_op::maxloc:
        return combine_pairs<max_location_of>(type, a, b);
    default:
        return a;
    }
}

} // namespace gpusm

#endif
