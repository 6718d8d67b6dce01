// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_buffer_check.h: a buffer of one of Open MPI's datatypes, for sync_check.h. For
// coll/gpusm and osc/gpusm, which may be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_BUFFER_CHECK_H
#define GPUSM_COLL_BUFFER_CHECK_H

#include "ompi/mca/coll/gpusm/coll_gpusm_type_walk.h"

#include "opal/mca/common/gpusm/sync_check.h"

#include <cstddef>
#include <optional>

namespace gpusm {

// Only at the data: what lies in the gaps may be another message's.
inline std::optional<sync_check::look>
first_look(sync_check &checks, const void *buffer, std::size_t count, const ompi_datatype_t *type,
           std::optional<buffer_use::envelope> message = std::nullopt)
{
    const auto *first = static_cast<const unsigned char *>(buffer);
    return checks.first_look(
        {buffer, count * type->super.size, message}, [&](const sync_check::part_visitor &visit) {
            (void)for_each_block(type->super, count,
                                 [&](std::ptrdiff_t offset, std::size_t len_bytes) {
                                     visit(first + offset, len_bytes);
                                     return true;
                                 });
        });
}

} // namespace gpusm

#endif
