// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduce_support.h: elements of every type that a reduction may have, made at random, and what a
// reduction makes of them, element by element, as MPI says it: by wide integers and doubles, and
// without anything of gpu/reduce_combine.h.
#ifndef GPUSM_TESTS_REDUCE_SUPPORT_H
#define GPUSM_TESTS_REDUCE_SUPPORT_H

#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpusm_test {

using gpusm::reduce_op;
using gpusm::reduce_type;

// Numbers of 16 bits: a sign, an exponent, and so many bits behind the point.
template <int fraction_bits> struct short_float {
    std::uint16_t bits;

    static constexpr int exponent_bits = 15 - fraction_bits;
    static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    static constexpr int infinity = ((1 << exponent_bits) - 1) << fraction_bits;

    double value() const
    {
        const int rest = bits & 0x7fff;
        const int exponent = rest >> fraction_bits;
        const int fraction = rest & ((1 << fraction_bits) - 1);
        double made = 0 == exponent ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                    : std::ldexp(fraction + (1 << fraction_bits),
                                                 exponent - bias - fraction_bits);
        if (rest >= infinity) {
            made = rest > infinity ? NAN : static_cast<double>(INFINITY);
        }
        return (bits & 0x8000) != 0 ? -made : made;
    }
    // The nearest one, found by the distance between its neighbours; ties go to the even one.
    static short_float nearest(double value)
    {
        const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
        const double size = std::fabs(value);
        if (std::isnan(value)) {
            return {static_cast<std::uint16_t>(infinity + 1)};
        }
        if (0 == size || std::isinf(size)) {
            return {static_cast<std::uint16_t>(sign | (0 == size ? 0 : infinity))};
        }
        const int exponent = std::max(std::ilogb(size), 1 - bias);
        // Units of the last place; all fit, and nearbyint rounds them to nearest, ties to even.
        const auto units =
            static_cast<int>(std::nearbyint(std::ldexp(size, fraction_bits - exponent)));
        // The one before the point is added to the exponent, and so is what was rounded up.
        const int rest = ((exponent + bias - 1) << fraction_bits) + units;
        return {static_cast<std::uint16_t>(sign | std::min(rest, infinity))};
    }
};
using half = short_float<10>;
using brain = short_float<7>;

template <typename value_type, typename index_type> struct located {
    value_type value;
    index_type index;
};

template <typename> inline constexpr bool is_short_float = false;
template <int bits> inline constexpr bool is_short_float<short_float<bits>> = true;
template <typename> inline constexpr bool is_complex = false;
template <typename part> inline constexpr bool is_complex<std::complex<part>> = true;
template <typename> inline constexpr bool is_located = false;
template <typename value, typename index>
inline constexpr bool is_located<located<value, index>> = true;

// Calls `what` with an element of the C++ type that stands for it here.
template <typename function> auto with_type(reduce_type type, const function &what)
{
    switch (type) {
    case reduce_type::int8:
        return what(std::int8_t{});
    case reduce_type::int16:
        return what(std::int16_t{});
    case reduce_type::int32:
        return what(std::int32_t{});
    case reduce_type::int64:
        return what(std::int64_t{});
    case reduce_type::uint8:
        return what(std::uint8_t{});
    case reduce_type::uint16:
        return what(std::uint16_t{});
    case reduce_type::uint32:
        return what(std::uint32_t{});
    case reduce_type::uint64:
        return what(std::uint64_t{});
    case reduce_type::float16:
        return what(half{});
    case reduce_type::bfloat16:
        return what(brain{});
    case reduce_type::float32:
        return what(float{});
    case reduce_type::float64:
        return what(double{});
    case reduce_type::complex32:
        return what(std::complex<float>{});
    case reduce_type::complex64:
        return what(std::complex<double>{});
    case reduce_type::float_int:
        return what(located<float, int>{});
    case reduce_type::double_int:
        return what(located<double, int>{});
    case reduce_type::int64_int:
        return what(located<std::int64_t, int>{});
    case reduce_type::int_int:
        return what(located<int, int>{});
    case reduce_type::int16_int:
        return what(located<std::int16_t, int>{});
    case reduce_type::float_float:
        return what(located<float, float>{});
    case reduce_type::double_double:
    case reduce_type::count:
        break;
    }
    return what(located<double, double>{});
}

inline constexpr auto op_count = static_cast<unsigned>(reduce_op::count);
inline constexpr auto type_count = static_cast<unsigned>(reduce_type::count);

// What MPI defines, as its tables list it.
inline bool mpi_defines(reduce_op op, reduce_type type)
{
    return with_type(type, [op](auto element) {
        using number = decltype(element);
        const bool is_location = reduce_op::minloc == op || reduce_op::maxloc == op;
        const bool is_order = reduce_op::max == op || reduce_op::min == op;
        const bool is_arithmetic = reduce_op::sum == op || reduce_op::prod == op;
        if (is_located<number> || is_location) {
            return is_located<number> && is_location;
        }
        return std::is_integral_v<number> ||
               (is_complex<number> ? is_arithmetic : is_order || is_arithmetic);
    });
}

template <typename what> void for_all_that_mpi_defines(const what &call)
{
    for (unsigned op = 0; op < op_count; ++op) {
        for (unsigned type = 0; type < type_count; ++type) {
            if (mpi_defines(static_cast<reduce_op>(op), static_cast<reduce_type>(type))) {
                call(static_cast<reduce_op>(op), static_cast<reduce_type>(type));
            }
        }
    }
}

// Half of the elements that are numbers have random bits; the others are small ones, so that there
// are equal ones, zeros of both signs, and results that overflow nothing. Complex ones and the
// values of pairs are small.
template <typename type> type random_element(std::mt19937_64 &random)
{
    const std::uint64_t bits = random();
    const int small = static_cast<int>(random() % 7) - 3;
    type made{};
    if constexpr (is_located<type>) {
        std::memset(static_cast<void *>(&made), static_cast<int>(bits), sizeof(made));
        made.value = static_cast<decltype(made.value)>(small);
        made.index = static_cast<decltype(made.index)>(static_cast<int>(bits % 9) - 4);
    } else if constexpr (is_complex<type>) {
        made = type(static_cast<typename type::value_type>(small),
                    static_cast<typename type::value_type>(static_cast<int>(bits % 7) - 3));
    } else if (bits % 2 == 0) {
        std::memcpy(&made, &bits, sizeof(made));
    } else if constexpr (is_short_float<type>) {
        made = type::nearest(0 == small && bits % 4 == 1 ? -0.0 : small / 2.0);
    } else {
        made = static_cast<type>(small);
    }
    return made;
}

template <typename type> type combined(reduce_op op, type a, type b)
{
    const bool is_max = reduce_op::max == op || reduce_op::maxloc == op;
    if constexpr (is_located<type>) {
        type made = (is_max ? a.value > b.value : a.value < b.value) ? a : b;
        if (a.value == b.value) {
            made.index = std::min(a.index, b.index);
        }
        return made;
    } else if constexpr (is_complex<type>) {
        const std::complex<double> left(a);
        const std::complex<double> right(b);
        return type(reduce_op::sum == op ? left + right : left * right);
    } else if constexpr (is_short_float<type>) {
        const double left = a.value();
        const double right = b.value();
        if (reduce_op::max == op || reduce_op::min == op) {
            return (is_max ? left > right : left < right) ? a : b;
        }
        return type::nearest(static_cast<double>(
            static_cast<float>(reduce_op::sum == op ? left + right : left * right)));
    } else if constexpr (std::is_floating_point_v<type>) {
        return reduce_op::sum == op    ? a + b
               : reduce_op::prod == op ? a * b
                                       : ((is_max ? a > b : a < b) ? a : b);
    } else {
        __extension__ using wide = unsigned __int128;
        const auto left = static_cast<wide>(a);
        const auto right = static_cast<wide>(b);
        switch (op) {
        case reduce_op::max:
            return std::max(a, b);
        case reduce_op::min:
            return std::min(a, b);
        case reduce_op::sum:
            return static_cast<type>(left + right);
        case reduce_op::prod:
            return static_cast<type>(left * right);
        case reduce_op::land:
            return static_cast<type>(a && b ? 1 : 0);
        case reduce_op::band:
            return static_cast<type>(left & right);
        case reduce_op::lor:
            return static_cast<type>(a || b ? 1 : 0);
        case reduce_op::bor:
            return static_cast<type>(left | right);
        case reduce_op::lxor:
            return static_cast<type>(!a != !b ? 1 : 0);
        default:
            return static_cast<type>(left ^ right);
        }
    }
}

// The same number, whatever the bits of a NaN are; of pairs what lies between the two is no matter.
template <typename type> bool same_element(const type &a, const type &b)
{
    if constexpr (is_located<type>) {
        return a.value == b.value && a.index == b.index;
    } else if constexpr (is_short_float<type>) {
        return a.bits == b.bits || (std::isnan(a.value()) && std::isnan(b.value()));
    } else if constexpr (std::is_floating_point_v<type>) {
        return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
    } else {
        return a == b;
    }
}

inline std::string random_elements(reduce_type type, std::size_t count, std::mt19937_64 &random)
{
    return with_type(type, [&](auto element) {
        std::string made(count * sizeof(element), '\0');
        for (std::size_t i = 0; i < count; ++i) {
            element = random_element<decltype(element)>(random);
            std::memcpy(&made[i * sizeof(element)], &element, sizeof(element));
        }
        return made;
    });
}

// Combines the elements of the sources in their order.
inline std::string reduced(reduce_op op, reduce_type type, const std::vector<std::string> &sources)
{
    return with_type(type, [&](auto element) {
        std::string made = sources[0];
        auto next = element;
        for (std::size_t source = 1; source < sources.size(); ++source) {
            for (std::size_t at = 0; at < made.size(); at += sizeof(element)) {
                std::memcpy(&element, &made[at], sizeof(element));
                std::memcpy(&next, &sources[source][at], sizeof(element));
                element = combined(op, element, next);
                std::memcpy(&made[at], &element, sizeof(element));
            }
        }
        return made;
    });
}

// The index of the first element that differs, or their number.
inline std::size_t first_difference(reduce_type type, const std::string &a, const std::string &b)
{
    return with_type(type, [&](auto element) {
        auto other = element;
        std::size_t at = 0;
        for (; at < a.size(); at += sizeof(element)) {
            std::memcpy(&element, &a[at], sizeof(element));
            std::memcpy(&other, &b[at], sizeof(element));
            if (!same_element(element, other)) {
                break;
            }
        }
        return at / sizeof(element);
    });
}

} // namespace gpusm_test

#endif
