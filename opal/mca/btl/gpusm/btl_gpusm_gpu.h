// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_gpu.h: the device's side of the process, as the glue sees it; and the question whether
// a buffer is device memory.
#ifndef BTL_GPUSM_GPU_H
#define BTL_GPUSM_GPU_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/common/gpusm/gpu_side.h"

namespace gpusm {

// Open MPI's question whether an address is device memory, where accelerator/cuda would take long:
// from the one to the other gpusm answers it with one driver call. Both may be called again.
// For views in any case.
void install_pointer_check(transport &of, bool for_views = false);
void remove_pointer_check();

} // namespace gpusm

#endif
