// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/reducer.h"

namespace gpusm {

reducer::reducer(const driver_api &driver, const device &on, const copy_limits &limits)
    : slot_launches(driver, on, &kernel_, reduce_slots, limits, "reductions"),
      kernel_(driver, blocks_of(limits))
{
}

status reducer::start(const reduction &what, std::span<const CUevent> wait_for, completion *end)
{
    if (!reduce_is_valid(what)) {
        return status::bad_argument;
    }
    const status s = begin(wait_for, end);
    return status::ok == s ? started(kernel_.launch(end->stream, end->slot, what), *end) : s;
}

} // namespace gpusm
