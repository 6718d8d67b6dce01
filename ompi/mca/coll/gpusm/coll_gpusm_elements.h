// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_elements.h: MPI's operations and types, as the reduce kernel knows them.
// For coll/gpusm and osc/gpusm, which may be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_ELEMENTS_H
#define GPUSM_COLL_ELEMENTS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/reduction_call.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>

namespace gpusm {

// Pairs of a value and an index, as MPI names them.
inline std::optional<reduce_type> pair_of(const ompi_datatype_t *type)
{
    const struct {
        MPI_Datatype named;
        reduce_type is;
    } pairs[] = {
        {MPI_FLOAT_INT, reduce_type::float_int},
        {MPI_DOUBLE_INT, reduce_type::double_int},
        {MPI_LONG_INT, sizeof(long) == 8 ? reduce_type::int64_int : reduce_type::int_int},
        {MPI_2INT, reduce_type::int_int},
        {MPI_SHORT_INT, reduce_type::int16_int},
        {MPI_2INTEGER, reduce_type::int_int},
        {MPI_2REAL, reduce_type::float_float},
        {MPI_2DOUBLE_PRECISION, reduce_type::double_double},
    };
    for (const auto &each : pairs) {
        if (type == each.named &&
            type->super.ub - type->super.lb == std::ptrdiff_t{element_bytes(each.is)}) {
            return each.is;
        }
    }
    return std::nullopt;
}

inline std::optional<reduce_type> integer_of(bool has_sign, std::size_t bytes)
{
    switch (bytes) {
    case 1:
        return has_sign ? reduce_type::int8 : reduce_type::uint8;
    case 2:
        return has_sign ? reduce_type::int16 : reduce_type::uint16;
    case 4:
        return has_sign ? reduce_type::int32 : reduce_type::uint32;
    case 8:
        return has_sign ? reduce_type::int64 : reduce_type::uint64;
    default:
        return std::nullopt;
    }
}

// Nothing: it is the program's own, or not for the kernel.
inline std::optional<reduce_op> operation_of(const ompi_op_t *op)
{
    const struct {
        MPI_Op named;
        reduce_op is;
    } operations[] = {
        {MPI_SUM, reduce_op::sum},       {MPI_MAX, reduce_op::max},
        {MPI_MIN, reduce_op::min},       {MPI_PROD, reduce_op::prod},
        {MPI_LAND, reduce_op::land},     {MPI_BAND, reduce_op::band},
        {MPI_LOR, reduce_op::lor},       {MPI_BOR, reduce_op::bor},
        {MPI_LXOR, reduce_op::lxor},     {MPI_BXOR, reduce_op::bxor},
        {MPI_MAXLOC, reduce_op::maxloc}, {MPI_MINLOC, reduce_op::minloc},
    };
    for (const auto &each : operations) {
        if (op == each.named) {
            return each.is;
        }
    }
    return std::nullopt; // of the program's own
}

// Of predefined types, whatever the language that they are of.
inline std::optional<reduce_type> element_of(const ompi_datatype_t *type)
{
    if (!ompi_datatype_is_predefined(type)) {
        return std::nullopt;
    }
    const auto is_one_of = [type](std::initializer_list<const opal_datatype_t *> basic) {
        return std::any_of(basic.begin(), basic.end(), [type](const opal_datatype_t *each) {
            return each->id == type->super.id;
        });
    };
    if (is_one_of({&opal_datatype_int1, &opal_datatype_int2, &opal_datatype_int4,
                   &opal_datatype_int8, &opal_datatype_long})) {
        return integer_of(true, type->super.size);
    }
    if (is_one_of({&opal_datatype_uint1, &opal_datatype_uint2, &opal_datatype_uint4,
                   &opal_datatype_uint8, &opal_datatype_unsigned_long, &opal_datatype_bool})) {
        return integer_of(false, type->super.size);
    }
    if (is_one_of({&opal_datatype_float4})) {
        return reduce_type::float32;
    }
    if (is_one_of({&opal_datatype_float8})) {
        return reduce_type::float64;
    }
    if (is_one_of({&opal_datatype_float2}) && 2 == type->super.size) { // where compilers have it
        return reduce_type::float16;
    }
    if (is_one_of({&opal_datatype_float_complex})) {
        return reduce_type::complex32;
    }
    if (is_one_of({&opal_datatype_double_complex})) {
        return reduce_type::complex64;
    }
    return pair_of(type);
}

} // namespace gpusm

#endif
