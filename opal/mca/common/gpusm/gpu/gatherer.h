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
    // Of the limits: the blocks of kernels, and which launch is late. `flags` as kernel_module has
    // it: flags_bytes of them, in which others see the end of launches, too.
    gatherer(const driver_api &driver, const device &on, const copy_limits &limits,
             void *flags = nullptr);
    static constexpr std::size_t flags_bytes = gather_slots * kernel_module::flag_bytes;
    // What the flag of that launch, which is in flight, will be when it has ended, or more.
    std::uint32_t value_of(const completion &end) const { return kernel_.last_value(end.slot); }

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
