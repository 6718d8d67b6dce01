// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/gatherer.h"

#include <cstdint>

namespace gpusm {

namespace {

constexpr std::uint32_t slots = 32;
static_assert(slots <= gather_slots);

} // namespace

gatherer::gatherer(const driver_api &driver, const device &on, const copy_limits &limits,
                   void *flags)
    : slot_launches(driver, on, &kernel_, slots, limits, "copies of a group"),
      kernel_(driver, blocks_of(limits), flags)
{
}

status gatherer::start(std::span<const gather_copy> copies, std::span<const CUevent> wait_for,
                       completion *end)
{
    const status s = begin(wait_for, end);
    return status::ok == s ? started(kernel_.launch(end->stream, end->slot, copies.data(),
                                                    static_cast<std::uint32_t>(copies.size())),
                                     *end)
                           : s;
}

} // namespace gpusm
