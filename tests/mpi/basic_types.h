// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// basic_types.h: MPI's predefined types that coll/gpusm reduces on devices, their operations, and
// elements of them.
#ifndef GPUSM_TESTS_MPI_BASIC_TYPES_H
#define GPUSM_TESTS_MPI_BASIC_TYPES_H

#include <mpi.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace gpusm::reductions {

struct basic_type {
    const char *name;
    MPI_Datatype type;
    // An element that depends on a number from 1 to 3, and on the rank that it is of. Numbers are
    // that small, so that floating-point results do not depend on rounding.
    void (*put)(unsigned char *to, int value, int rank);
    std::vector<MPI_Op> operations;
};

template <typename T> void put_number(unsigned char *to, int value, int)
{
    // Zeros are for logical operations.
    const T made = static_cast<T>(std::is_integral_v<T> ? value - 1 : value);
    std::memcpy(to, &made, sizeof(made));
}

template <typename T> void put_complex(unsigned char *to, int value, int)
{
    const T made[] = {static_cast<T>(value), static_cast<T>(value - 2)};
    std::memcpy(to, made, sizeof(made));
}

// As C lays out a value and an index. What is between and behind them stays as it is.
template <typename T> void put_pair(unsigned char *to, int value, int rank)
{
    struct pair {
        T value;
        int index;
    };
    const T first = static_cast<T>(value);
    std::memcpy(to + offsetof(pair, value), &first, sizeof(first));
    std::memcpy(to + offsetof(pair, index), &rank, sizeof(rank));
}

inline const std::vector<basic_type> &basic_types()
{
    static const std::vector<MPI_Op> of_bits = {MPI_BAND, MPI_BOR, MPI_BXOR};
    static const std::vector<MPI_Op> of_reals = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX};
    static const std::vector<MPI_Op> of_integers = {MPI_SUM, MPI_PROD, MPI_MIN,  MPI_MAX, MPI_BAND,
                                                    MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR};
    static const std::vector<MPI_Op> of_complex = {MPI_SUM, MPI_PROD};
    static const std::vector<MPI_Op> of_pairs = {MPI_MINLOC, MPI_MAXLOC};
    static const std::vector<MPI_Op> of_truth = {MPI_LAND, MPI_LOR, MPI_LXOR};
    static const std::vector<basic_type> all = {
        {"int8", MPI_INT8_T, put_number<std::int8_t>, of_integers},
        {"int16", MPI_INT16_T, put_number<std::int16_t>, of_integers},
        {"int32", MPI_INT32_T, put_number<std::int32_t>, of_integers},
        {"int64", MPI_INT64_T, put_number<std::int64_t>, of_integers},
        {"uint8", MPI_UINT8_T, put_number<std::uint8_t>, of_integers},
        {"uint16", MPI_UINT16_T, put_number<std::uint16_t>, of_integers},
        {"uint32", MPI_UINT32_T, put_number<std::uint32_t>, of_integers},
        {"uint64", MPI_UINT64_T, put_number<std::uint64_t>, of_integers},
        {"signed char", MPI_SIGNED_CHAR, put_number<signed char>, of_integers},
        {"int", MPI_INT, put_number<int>, of_integers},
        {"unsigned long", MPI_UNSIGNED_LONG, put_number<unsigned long>, of_integers},
        {"long", MPI_LONG, put_number<long>, of_integers},
        {"long long", MPI_LONG_LONG, put_number<long long>, of_integers},
        {"aint", MPI_AINT, put_number<MPI_Aint>, of_integers},
        {"byte", MPI_BYTE, put_number<unsigned char>, of_bits},
        {"bool", MPI_C_BOOL, put_number<bool>, of_truth},
        {"float", MPI_FLOAT, put_number<float>, of_reals},
        {"double", MPI_DOUBLE, put_number<double>, of_reals},
        {"float complex", MPI_C_FLOAT_COMPLEX, put_complex<float>, of_complex},
        {"double complex", MPI_C_DOUBLE_COMPLEX, put_complex<double>, of_complex},
        {"float and int", MPI_FLOAT_INT, put_pair<float>, of_pairs},
        {"double and int", MPI_DOUBLE_INT, put_pair<double>, of_pairs},
        {"long and int", MPI_LONG_INT, put_pair<long>, of_pairs},
        {"two int", MPI_2INT, put_pair<int>, of_pairs},
        {"short and int", MPI_SHORT_INT, put_pair<short>, of_pairs},
    };
    return all;
}

} // namespace gpusm::reductions

#endif
