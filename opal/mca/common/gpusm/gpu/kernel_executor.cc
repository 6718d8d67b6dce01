// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/kernel_executor.h"

namespace gpusm {

// What the kernel can take.
static_assert(copy_limits{}.depth <= gather_slots &&
              copy_limits{}.batch_copies <= gather_most_copies &&
              copy_limits{}.kernel_bytes <= gather_most_len);

kernel_executor::kernel_executor(const driver_api &driver, const device &on,
                                 const copy_limits &limits)
    : kernel_(driver, limits.kernel_blocks),
      launches_(driver, on, &kernel_, kernel_streams, limits, "copies")
{
    copies_.reserve(limits.batch_copies);
}

// While launches are late only copies within the device are made so: what else could make those
// waits as long.
start_answer kernel_executor::start(std::uint32_t turn, const copy_list &list, completion *end)
{
    const bool within_device = list.first->within_device;
    if ((!within_device && launches_.is_late()) || !launches_.is_ready()) {
        return start_answer::refused;
    }
    copies_.clear();
    for (const copy_request *each = list.first; each != nullptr; each = each->next) {
        copies_.push_back(
            {each->destination, each->source, static_cast<std::uint32_t>(each->len_bytes), 0});
    }
    turn_ = turn;
    launches_.prepare(copy_way::kernel, turn, within_device, end);
    const CUresult result =
        kernel_.launch(end->stream, end->slot, copies_.data(), list.load.copies);
    return status::ok == launches_.launched(result) ? start_answer::started : start_answer::refused;
}

} // namespace gpusm
