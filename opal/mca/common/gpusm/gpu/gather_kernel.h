// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/gather_kernel.h: many copies with one launch. A copy kernel reads peers' memory through the
// links with the device's own loads and stores; for 64 messages of 8 bytes to 64 KiB one launch
// takes a tenth of the time of 64 driver copies (docs/performance.md).
#ifndef GPUSM_GPU_GATHER_KERNEL_H
#define GPUSM_GPU_GATHER_KERNEL_H

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/gather_arguments.h"
#include "opal/mca/common/gpusm/gpu/kernel_module.h"

#include <cstdint>

namespace gpusm {

// The gather kernel in one context; see kernel_module. finished() says that the last launch of a
// slot has copied everything.
class gather_kernel : public kernel_module {
  public:
    // `blocks`: the most thread blocks that one launch may have (of gather_threads each); at
    // least 1. `flags` as kernel_module has it.
    gather_kernel(const driver_api &driver, unsigned blocks, void *flags = nullptr);

    // Starts `count` copies (1 ... gather_most_copies, each of 1 ... gather_most_len bytes,
    // first_piece of no meaning) on `stream`; any order among themselves. `slot` (< gather_slots)
    // must have no launch in flight. After an error nothing has been started;
    // CUDA_ERROR_INVALID_VALUE when the arguments are out of these ranges or nothing is loaded.
    CUresult launch(CUstream stream, std::uint32_t slot, const gather_copy *copies,
                    std::uint32_t count);

  private:
    const unsigned blocks_;
    // What a launch hands over: room made once. The driver takes a copy.
    gather_arguments<gather_most_copies> arguments_ = {};
};

} // namespace gpusm

#endif
