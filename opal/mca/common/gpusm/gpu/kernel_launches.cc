// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/kernel_launches.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <utility>

namespace gpusm {

namespace {

// For how long launches count as late after a late one, and when one is worth a line in the log.
constexpr std::chrono::seconds without_kernel{1};
constexpr std::chrono::seconds very_late{5};

} // namespace

kernel_launches::kernel_launches(const driver_api &driver, const device &on, kernel_module *kernel,
                                 std::uint32_t streams, const copy_limits &limits,
                                 const char *copies)
    : driver_(driver), on_(on), kernel_(*kernel), stream_count_(streams), limits_(limits),
      copies_(copies)
{
    streams_.reserve(streams);
}

bool kernel_launches::load()
{
    if (kernel_.loaded() || 0 == limits_.kernel_blocks || !launches_.may_try()) {
        return kernel_.loaded();
    }
    const log_as_retry quiet(launches_.failures() > 0);
    if (kernel_.load()) {
        CUstream made = nullptr;
        while (streams_.size() < stream_count_ && status::ok == make_stream(driver_, &made)) {
            streams_.push_back(made);
        }
        if (streams_.size() < stream_count_) {
            close(true);
        }
    }
    if (!kernel_.loaded()) {
        (void)launches_.refused(status::driver_failed);
    }
    return kernel_.loaded();
}

void kernel_launches::close(bool context_lives)
{
    for (CUstream each : std::exchange(streams_, {})) {
        if (context_lives) {
            (void)driver_.stream_synchronize(each);
            (void)driver_.stream_destroy(each);
        }
    }
    kernel_.unload(context_lives);
}

// The driver loads the kernel only when no kernel runs, and what waits for a message that this
// process is to bring would keep it waiting for ever.
bool kernel_launches::is_ready()
{
    return launches_.may_try() && (kernel_.loaded() || (driver_.legacy_stream_is_idle() && load()));
}

void kernel_launches::prepare(copy_way way, std::uint32_t stream, bool within_device,
                              completion *end) const
{
    end->way = way;
    end->stream = streams_[stream];
    end->looks = 0;
    end->asked = {};
    end->within_device = within_device;
}

status kernel_launches::launched(CUresult result)
{
    const log_as_retry quiet(launches_.failures() > 0);
    const status s = driver_.report("cuLaunchKernel", result);
    if (status::ok == s) {
        (void)launches_.worked();
    } else if (launches_.failed(s)) {
        log_line(log_level::info, "no %s by kernel on device %d for now", copies_, on_.ordinal);
    }
    return s;
}

status kernel_launches::ask_now(completion *end)
{
    end->looks = 0;
    CUresult result = ask_driver(driver_, on_, *end);
    if (CUDA_ERROR_NOT_READY == result) {
        look_if_late(end);
        return status::busy;
    }
    // An idle stream means that the flag has been written, if it ever will be.
    if (CUDA_SUCCESS == result && !kernel_.finished(end->slot)) {
        result = CUDA_ERROR_LAUNCH_FAILED;
    }
    return driver_.report(copies_, result);
}

// A kernel of the program that fills the device keeps ours waiting. Copies that are not within the
// device need not wait for it when they are made otherwise. If it waits for the very message that
// ours is to bring, it waits for ever, and somebody has to say why.
void kernel_launches::look_if_late(completion *end)
{
    const auto now = clock::now();
    if (clock::time_point{} == end->asked) {
        end->asked = now;
    } else if (now - end->asked > limits_.late && !end->within_device) {
        late_until_ = now + without_kernel;
    }
    if (!told_late_ && now - end->asked > very_late) {
        told_late_ = true;
        log_line(log_level::warn,
                 "%s have waited for device %d for %d seconds: if a kernel of the program fills "
                 "the device and waits for a message, use --mca btl_gpusm_kernel_blocks 0",
                 copies_, on_.ordinal, static_cast<int>(very_late.count()));
    }
}

} // namespace gpusm
