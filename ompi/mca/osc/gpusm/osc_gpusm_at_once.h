// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_at_once.h: operations on host memory that the processor carries out on the spot. They
// take some ten nanoseconds, so they are a part of the function that MPI calls.
#ifndef GPUSM_OSC_AT_ONCE_H
#define GPUSM_OSC_AT_ONCE_H

#include "ompi/mca/osc/gpusm/osc_gpusm_window.h"

#include <cstring>
#include <utility>

namespace gpusm {

inline bool window::copies_at_once(bool is_put, const elements &origin, int target,
                                   std::ptrdiff_t at, const elements &theirs)
{
    place to;
    if (!may_access(target) || origin.has_gaps() || theirs.has_gaps() ||
        !fits(is_put, origin, theirs) || 0 == origin.bytes() || 0 == theirs.bytes() ||
        OMPI_SUCCESS != find(target, at, theirs, &to) || nullptr == to.here.at ||
        is_device(origin.at + origin.type->super.true_lb) || (is_put && has_copies_to(target))) {
        return false;
    }
    is_put ? copy_elements(to.here, origin) : copy_elements(origin, to.here);
    return true;
}

inline bool window::accumulates_at_once(const elements &origin, int target, std::ptrdiff_t at,
                                        const elements &theirs, ompi_op_t *op, int *rc)
{
    place to;
    if (!may_access(target) || origin.type != theirs.type || origin.count != theirs.count ||
        0 == origin.bytes() || !ompi_datatype_is_predefined(origin.type) || MPI_NO_OP == op ||
        MPI_REPLACE == op || OMPI_SUCCESS != find(target, at, theirs, &to) ||
        nullptr == to.here.at || is_device(origin.at) || !takes_accumulates(target)) {
        return false;
    }
    *rc = mca_coll_base_reduce_local(origin.at, to.here.at, static_cast<count_type>(origin.count),
                                     origin.type, op, nullptr);
    unlock_accumulates(target);
    return true;
}

inline bool window::fetches_at_once(const void *origin, void *result, ompi_datatype_t *type,
                                    int target, std::ptrdiff_t at, ompi_op_t *op, int *rc)
{
    place to;
    const std::size_t bytes = type->super.size;
    const bool has_gaps = std::cmp_not_equal(type->super.ub - type->super.lb, bytes);
    if (!may_access(target) || !ompi_datatype_is_predefined(type) || has_gaps ||
        OMPI_SUCCESS != find(target, at, elements_of(nullptr, 1, type), &to) ||
        nullptr == to.here.at || is_device(result) || (MPI_NO_OP != op && is_device(origin)) ||
        !takes_accumulates(target)) {
        return false;
    }
    std::memcpy(result, to.here.at, bytes);
    *rc = OMPI_SUCCESS;
    if (MPI_REPLACE == op) {
        std::memcpy(to.here.at, origin, bytes);
    } else if (MPI_NO_OP != op) {
        *rc = mca_coll_base_reduce_local(origin, to.here.at, 1, type, op, nullptr);
    }
    unlock_accumulates(target);
    return true;
}

inline bool window::swaps_at_once(const void *origin, const void *compare, void *result,
                                  ompi_datatype_t *type, int target, std::ptrdiff_t at)
{
    place to;
    if (!may_access(target) || type != swapped_type_.load(std::memory_order_relaxed) ||
        OMPI_SUCCESS != find(target, at, elements_of(nullptr, 1, type), &to) ||
        nullptr == to.here.at || is_device(origin) || is_device(compare) || is_device(result) ||
        !takes_accumulates(target)) {
        return false;
    }
    const std::size_t bytes = type->super.size;
    const bool is_equal = 0 == std::memcmp(compare, to.here.at, bytes);
    std::memcpy(result, to.here.at, bytes);
    if (is_equal) {
        std::memcpy(to.here.at, origin, bytes);
    }
    unlock_accumulates(target);
    return true;
}

} // namespace gpusm

#endif
