// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_type_walk.h: where the bytes of one of Open MPI's datatypes lie, asked of Open MPI.
// For coll/gpusm and osc/gpusm, which may be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_TYPE_WALK_H
#define GPUSM_COLL_TYPE_WALK_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/gpu/layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

namespace gpusm {

// Calls each(offset of a block from the first element's address, its bytes) for all blocks of
// `count` elements in packed order, as long as that answers true. False: it has not, or Open MPI
// finds no end.
template <typename Each>
bool for_each_block(const opal_datatype_t &type, std::size_t count, Each each)
{
    // Stands for the address; far from both ends, so that nothing wraps around below it.
    constexpr std::uintptr_t origin = std::uintptr_t{1} << 62;
    opal_convertor_t convertor; // it only computes addresses
    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    bool good = OPAL_SUCCESS == opal_convertor_copy_and_prepare_for_send(
                                    ompi_mpi_local_convertor, &type, count,
                                    reinterpret_cast<const void *>(origin),
                                    CONVERTOR_SKIP_ACCELERATOR_INIT, &convertor);
    for (bool is_over = false; good && !is_over;) {
        std::array<iovec, 256> blocks;
        auto found = static_cast<std::uint32_t>(blocks.size());
        std::size_t bytes = 0;
        is_over = 0 != opal_convertor_raw(&convertor, blocks.data(), &found, &bytes);
        good = is_over || 0 != found;
        for (std::uint32_t i = 0; good && i < found; ++i) {
            const auto at = reinterpret_cast<std::uintptr_t>(blocks[i].iov_base);
            good = 0 == blocks[i].iov_len ||
                   each(static_cast<std::ptrdiff_t>(at - origin), blocks[i].iov_len);
        }
    }
    OBJ_DESTRUCT(&convertor);
    return good;
}

// The plan of a datatype; null when there is none: of one that has no bytes, or too many blocks, or
// that Open MPI tells of wrongly.
inline shared_plan make_plan(const ompi_datatype_t &type)
{
    const opal_datatype_t &layout = type.super;
    if (0 == layout.size || nullptr == layout.opt_desc.desc) {
        return nullptr;
    }
    try {
        layout_builder builder;
        const auto add = [&](std::ptrdiff_t offset, std::size_t len_bytes) {
            builder.add(offset, len_bytes);
            return builder.total_bytes() <= layout.size;
        };
        if (!for_each_block(layout, 1, add) || builder.total_bytes() != layout.size) {
            return nullptr;
        }
        std::optional<datatype_plan> plan = builder.finish(layout.ub - layout.lb);
        return plan.has_value() ? share(*std::move(plan)) : nullptr;
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

} // namespace gpusm

#endif
