// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_engine_kernel.cc: the copy engine's part that launches the gather kernel: when it is
// loaded, and what is done when the program's kernels keep it waiting.
#include "opal/mca/common/gpusm/gpu/copy_engine.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <utility>

namespace gpusm {

namespace {

// How long copies go by the driver after a late launch, and when one is worth a line in the log.
constexpr std::chrono::seconds without_kernel{1};
constexpr std::chrono::seconds very_late{5};

constexpr std::size_t kernel_streams = 2;

} // namespace

void copy_engine::prepare(device &on)
{
    lane &of = *lane_of(on);
    const driver_scope scope(driver_, on.context);
    (void)(scope.entered() && load_kernel(of));
}

// Under the lane's context, as the next.
bool copy_engine::load_kernel(lane &of)
{
    if (!of.kernel.loaded() && limits_.kernel_blocks > 0 && of.launches.may_try()) {
        const log_as_retry quiet(of.launches.failures() > 0);
        if (of.kernel.load()) {
            add_streams(&of.kernel_streams, kernel_streams);
            if (of.kernel_streams.size() < kernel_streams) {
                unload_kernel(of);
            }
        }
        if (!of.kernel.loaded()) {
            (void)of.launches.refused(status::driver_failed);
        }
    }
    return of.kernel.loaded();
}

// May the gather kernel make copies now? The driver loads it only when no kernel runs, and what
// waits for a message that this process is to bring would keep it waiting for ever.
bool copy_engine::has_kernel(lane &of, bool within_device)
{
    return (within_device || clock::now() >= of.no_kernel_until) && of.launches.may_try() &&
           (of.kernel.loaded() || (driver_.legacy_stream_is_idle() && load_kernel(of)));
}

void copy_engine::unload_kernel(lane &of)
{
    for (CUstream each : std::exchange(of.kernel_streams, {})) {
        (void)driver_.stream_synchronize(each);
        (void)driver_.stream_destroy(each);
    }
    of.kernel.unload();
}

bool copy_engine::start_by_kernel(lane &of, std::uint32_t slot)
{
    submission &in = of.slots[slot];
    copies_.clear();
    for (const copy_request *each = in.requests.first; each != nullptr; each = each->next) {
        copies_.push_back(
            {each->destination, each->source, static_cast<std::uint32_t>(each->len_bytes), 0});
    }
    in.stream = of.kernel_streams[++of.kernel_turn % kernel_streams];
    const log_as_retry quiet(of.launches.failures() > 0);
    const status s =
        driver_.report("cuLaunchKernel",
                       of.kernel.launch(in.stream, slot, copies_.data(), in.requests.load.copies));
    if (status::ok == s) {
        (void)of.launches.worked();
    } else if (of.launches.failed(s)) {
        log_line(log_level::info, "no copies by kernel on device %d for now", of.on->ordinal);
    }
    return status::ok == s;
}

// A kernel of the program that fills the device keeps ours waiting. The driver's copies need not
// wait for it, but within a device, where they are kernels, too. If it waits for the very message
// that ours is to bring, it waits for ever, and somebody has to say why.
void copy_engine::look_if_late(lane &of, submission &in)
{
    const auto now = clock::now();
    if (clock::time_point{} == in.asked_first) {
        in.asked_first = now;
    } else if (now - in.asked_first > limits_.late && !in.requests.first->within_device) {
        of.no_kernel_until = now + without_kernel;
    }
    if (!of.told_late && now - in.asked_first > very_late) {
        of.told_late = true;
        log_line(
            log_level::warn,
            "copies have waited for device %d for %d seconds: if a kernel of the program fills "
            "the device and waits for a message, use --mca btl_gpusm_kernel_blocks 0",
            of.on->ordinal, static_cast<int>(very_late.count()));
    }
}

} // namespace gpusm
