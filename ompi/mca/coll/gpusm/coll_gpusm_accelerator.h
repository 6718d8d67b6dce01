// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_accelerator.h: what Open MPI's accelerator says about a buffer. For coll/gpusm and
// osc/gpusm, which may be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_ACCELERATOR_H
#define GPUSM_COLL_ACCELERATOR_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include <cstdint>

namespace gpusm {

inline bool is_device_memory(const void *address)
{
    int device = 0;
    std::uint64_t flags = 0;
    return nullptr != address && 0 < opal_accelerator.check_addr(address, &device, &flags);
}

} // namespace gpusm

#endif
