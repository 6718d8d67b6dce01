// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/gatherer.h: copies that somebody wants together and at once, by launches of the gather
// kernel.
#ifndef GPUSM_GPU_GATHERER_H
#define GPUSM_GPU_GATHERER_H

#include "opal/mca/common/gpusm/gpu/gather_kernel.h"
#include "opal/mca/common/gpusm/gpu/slot_launches.h"

#include <span>

namespace gpusm {

class gatherer : public slot_launches {
  public:
    // Of the limits: the blocks of kernels, and which launch is late.
    gatherer(const driver_api &driver, const device &on, const copy_limits &limits);

    // As reducer::start has it. `copies`: as gather_kernel::launch has them, which says what is not
    // valid.
    status start(std::span<const gather_copy> copies, std::span<const CUevent> wait_for,
                 completion *end);

  private:
    gather_kernel kernel_;
};

using gatherer_table = launches_by_device<gatherer>;

} // namespace gpusm

#endif
