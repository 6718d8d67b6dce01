// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/slot_launches.h"

#include <algorithm>
#include <bit>

namespace gpusm {

slot_launches::slot_launches(const driver_api &driver, const device &on, kernel_module *kernel,
                             std::uint32_t slots, const copy_limits &limits, const char *copies)
    : driver_(driver), launches_(driver, on, kernel, kernel_streams, limits, copies),
      all_slots_(static_cast<std::uint32_t>((std::uint64_t{1} << slots) - 1))
{
}

unsigned slot_launches::blocks_of(const copy_limits &limits)
{
    constexpr std::uint32_t most_blocks = 1U << 16;
    return 2 * std::clamp(limits.kernel_blocks, std::uint32_t{1}, most_blocks);
}

void slot_launches::close(bool context_lives)
{
    launches_.close(context_lives);
    taken_slots_ = 0;
}

status slot_launches::begin(std::span<const CUevent> wait_for, completion *end)
{
    if (all_slots_ == taken_slots_) {
        return status::busy;
    }
    if (!launches_.is_ready()) {
        return status::unsupported;
    }
    turn_ = (turn_ + 1) % kernel_streams;
    end->slot = static_cast<std::uint32_t>(std::countr_one(taken_slots_));
    end->turn = turn_;
    // Its end is that of a kernel. To wait longer than usual changes nothing, as there is no other
    // way; so it passes for one within the device.
    launches_.prepare(copy_way::kernel, turn_, true, end);
    for (CUevent each : wait_for) {
        const status s =
            driver_.report("cuStreamWaitEvent", driver_.stream_wait_event(end->stream, each, 0));
        if (status::ok != s) {
            return s;
        }
    }
    return status::ok;
}

status slot_launches::started(CUresult result, const completion &end)
{
    const status s = launches_.launched(result);
    if (status::ok == s) {
        taken_slots_ |= 1U << end.slot;
    }
    return s;
}

status slot_launches::ask(completion *end)
{
    const status s = launches_.ask(end);
    if (status::busy != s) {
        taken_slots_ &= ~(1U << end->slot);
    }
    return s;
}

} // namespace gpusm
