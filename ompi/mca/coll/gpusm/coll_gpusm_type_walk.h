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

// Stands for the address of an element; far from both ends, so that nothing wraps around below it.
inline constexpr std::uintptr_t type_walk_origin = std::uintptr_t{1} << 62;

// For one element; it only computes addresses.
class type_walk {
  public:
    explicit type_walk(const opal_datatype_t &type)
    {
        OBJ_CONSTRUCT(&convertor_, opal_convertor_t);
        is_ready_ = OPAL_SUCCESS == opal_convertor_copy_and_prepare_for_send(
                                        ompi_mpi_local_convertor, &type, 1,
                                        reinterpret_cast<const void *>(type_walk_origin),
                                        CONVERTOR_SKIP_ACCELERATOR_INIT, &convertor_);
    }
    ~type_walk() { OBJ_DESTRUCT(&convertor_); }
    type_walk(const type_walk &) = delete;
    type_walk &operator=(const type_walk &) = delete;

    // Feeds all blocks, in packed order; at most so many bytes. False when there is no end.
    bool feed(layout_builder &builder, std::size_t most_bytes)
    {
        bool is_over = false;
        while (is_ready_ && !is_over) {
            std::array<iovec, 256> blocks;
            auto count = static_cast<std::uint32_t>(blocks.size());
            std::size_t bytes = 0;
            is_over = 0 != opal_convertor_raw(&convertor_, blocks.data(), &count, &bytes);
            for (std::uint32_t i = 0; i < count; ++i) {
                const auto at = reinterpret_cast<std::uintptr_t>(blocks[i].iov_base);
                builder.add(static_cast<std::int64_t>(at - type_walk_origin), blocks[i].iov_len);
            }
            if ((0 == count && !is_over) || builder.total_bytes() > most_bytes) {
                return false;
            }
        }
        return is_over;
    }

  private:
    opal_convertor_t convertor_;
    bool is_ready_;
};

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
        if (!type_walk(layout).feed(builder, layout.size) || builder.total_bytes() != layout.size) {
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
