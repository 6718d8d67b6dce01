// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/reducer.h: reductions by launches of the reduce kernel.
#ifndef GPUSM_GPU_REDUCER_H
#define GPUSM_GPU_REDUCER_H

#include "opal/mca/common/gpusm/gpu/reduce_kernel.h"
#include "opal/mca/common/gpusm/gpu/slot_launches.h"

#include <span>

namespace gpusm {

class reducer : public slot_launches {
  public:
    // Of the limits: the blocks of kernels, and which launch is late.
    reducer(const driver_api &driver, const device &on, const copy_limits &limits);

    // Launches the kernel behind these events and fills in *end. Several may be in flight, in any
    // order. Under the device's context. Unless it is `ok` nothing has been started:
    // `bad_argument`: the reduction is not valid; else as slot_launches have it, or what the driver
    // says about the launch.
    status start(const reduction &what, std::span<const CUevent> wait_for, completion *end);

  private:
    reduce_kernel kernel_;
};

using reducer_table = launches_by_device<reducer>;

} // namespace gpusm

#endif
