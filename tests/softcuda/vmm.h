// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm.h: an allocation made by cuMemCreate or imported from a file descriptor.
#ifndef GPUSM_SOFTCUDA_VMM_H
#define GPUSM_SOFTCUDA_VMM_H

#include "driver.h"

namespace softcuda {

// Freed when neither a handle nor a mapping refers to it.
struct vmm_allocation {
    std::uint64_t handle = 0;
    block_ref memory;
    CUmemAllocationProp properties{};
    int handles = 0; // references by cuMemCreate, import and retain
    int mappings = 0;
};

} // namespace softcuda

#endif
