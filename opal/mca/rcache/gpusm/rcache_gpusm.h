// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm.h: the component rcache/gpusm as Open MPI sees it, and what its two files share.
//
// Open MPI 5.0 ships a component of this name, which btl/smcuda creates by name and whose
// registrations it casts to mca_opal_cuda_reg_t. This one keeps that agreement, so it can stand in
// for the shipped one. btl/gpusm does not come here: it has the cache and the export table
// compiled in.
#ifndef GPUSM_RCACHE_GPUSM_H
#define GPUSM_RCACHE_GPUSM_H

#include "opal/mca/rcache/gpusm/rcache_gpusm_opal.h"

#include <cstdint>
#include <vector>

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/ipc/legacy.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

extern "C" OPAL_DECLSPEC mca_rcache_base_component_t mca_rcache_gpusm_component;

namespace gpusm {

// Allocations whose handle a module keeps.
inline constexpr std::uint32_t max_exports = 1024;

// A module hands out registrations of this process's device memory: one object of the free list
// per call, with the handle, base and length of the whole allocation. The handle of an allocation
// is asked from the driver once and kept in `exports`, for as long as the driver's buffer id says
// that the allocation is still the same.
struct rcache_module : mca_rcache_base_module_t {
    rcache_module() noexcept;
    ~rcache_module();

    optional_mutex mutex;
    opal_free_list_t registrations;
    export_table exports;                // guarded by the mutex
    std::vector<CUipcMemHandle> handles; // per slot of `exports`; guarded likewise
};

// nullptr when there is no memory. Touches no driver.
mca_rcache_base_module_t *create_rcache_module() noexcept;

} // namespace gpusm

#endif
