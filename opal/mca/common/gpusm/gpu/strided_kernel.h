// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/strided_kernel.h: copies of memory with gaps, several with one launch: the packed bytes of
// one side become those of the other, without being packed in between.
#ifndef GPUSM_GPU_STRIDED_KERNEL_H
#define GPUSM_GPU_STRIDED_KERNEL_H

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/kernel_module.h"
#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <cstdint>

namespace gpusm {

// The strided kernel in one context; see kernel_module. finished() says that the last launch of a
// slot has copied everything.
class strided_kernel : public kernel_module {
  public:
    // `blocks`: the most thread blocks that one launch may have (of strided_threads each); at
    // least 1.
    strided_kernel(const driver_api &driver, unsigned blocks);

    // Starts `count` copies (1 ... strided_most_copies) on `stream`; any order among themselves. A
    // list of blocks must have arrived in memory, as `stream` need not wait for the one that brings
    // it, and stay as it is until the launch has finished. `slot` (< strided_slots) must have no
    // launch in flight. After an error nothing has been started;
    // CUDA_ERROR_INVALID_VALUE when a copy is not valid, the other arguments are out of these
    // ranges or nothing is loaded.
    CUresult launch(CUstream stream, std::uint32_t slot, const strided_copy *const *copies,
                    std::uint32_t count);

  private:
    const unsigned blocks_;
    // What a launch hands over: room made once. The driver takes a copy.
    strided_arguments<strided_most_copies> arguments_ = {};
};

} // namespace gpusm

#endif
