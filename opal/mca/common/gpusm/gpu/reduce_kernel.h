// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/reduce_kernel.h: reductions of elements of several buffers, each with one launch, whose
// results go into one buffer or several.
#ifndef GPUSM_GPU_REDUCE_KERNEL_H
#define GPUSM_GPU_REDUCE_KERNEL_H

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/kernel_module.h"
#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"

#include <cstdint>

namespace gpusm {

// May a kernel be launched with it? That is mapped memory at its addresses, and that no target
// overlaps what it must not, is taken for right. No elements are not valid: there is nothing to
// launch.
bool reduce_is_valid(const reduction &what);

// The reduce kernel in one context; see kernel_module. finished() says that all targets of the last
// launch of a slot have been written.
class reduce_kernel : public kernel_module {
  public:
    // `blocks`: the most thread blocks that one launch may have (of reduce_threads each); at
    // least 1.
    reduce_kernel(const driver_api &driver, unsigned blocks);

    // Starts a reduction on `stream`. What other devices and processors have written into the
    // sources must be there before the launch; what is written into the targets is there when the
    // launch has finished, for whoever learns of it. `slot` (< reduce_slots) must have no launch in
    // flight. After an error nothing has been started; CUDA_ERROR_INVALID_VALUE when the reduction
    // is not valid, the slot is out of range or nothing is loaded.
    CUresult launch(CUstream stream, std::uint32_t slot, const reduction &what);

  private:
    const unsigned blocks_;
};

} // namespace gpusm

#endif
