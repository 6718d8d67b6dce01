// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/kernel_executor.h"

#include "opal/mca/common/gpusm/base/log.h"

#include <utility>

namespace gpusm {

namespace {

// How long nothing is launched after a late launch, and when one is worth a line in the log.
constexpr std::chrono::seconds without_kernel{1};
constexpr std::chrono::seconds very_late{5};

// What the kernel can take.
static_assert(copy_limits{}.depth <= gather_slots &&
              copy_limits{}.batch_copies <= gather_most_copies &&
              copy_limits{}.kernel_bytes <= gather_most_len);

} // namespace

kernel_executor::kernel_executor(const driver_api &driver, const device &on,
                                 const copy_limits &limits)
    : driver_(driver), on_(on), limits_(limits), kernel_(driver, limits.kernel_blocks)
{
    streams_.reserve(kernel_streams);
    copies_.reserve(limits.batch_copies);
}

bool kernel_executor::load()
{
    if (kernel_.loaded() || 0 == limits_.kernel_blocks || !launches_.may_try()) {
        return kernel_.loaded();
    }
    const log_as_retry quiet(launches_.failures() > 0);
    if (kernel_.load()) {
        CUstream made = nullptr;
        while (streams_.size() < kernel_streams && status::ok == make_stream(driver_, &made)) {
            streams_.push_back(made);
        }
        if (streams_.size() < kernel_streams) {
            close(true);
        }
    }
    if (!kernel_.loaded()) {
        (void)launches_.refused(status::driver_failed);
    }
    return kernel_.loaded();
}

void kernel_executor::close(bool context_lives)
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
bool kernel_executor::is_ready(bool within_device)
{
    return (within_device || clock::now() >= late_until_) && launches_.may_try() &&
           (kernel_.loaded() || (driver_.legacy_stream_is_idle() && load()));
}

start_answer kernel_executor::start(std::uint32_t turn, const copy_list &list, completion *end)
{
    if (!is_ready(list.first->within_device)) {
        return start_answer::refused;
    }
    copies_.clear();
    for (const copy_request *each = list.first; each != nullptr; each = each->next) {
        copies_.push_back(
            {each->destination, each->source, static_cast<std::uint32_t>(each->len_bytes), 0});
    }
    turn_ = turn;
    end->way = copy_way::kernel;
    end->stream = streams_[turn];
    end->looks = 0;
    end->asked = {};
    end->within_device = list.first->within_device;
    const log_as_retry quiet(launches_.failures() > 0);
    const status s = driver_.report(
        "cuLaunchKernel", kernel_.launch(end->stream, end->slot, copies_.data(), list.load.copies));
    if (status::ok == s) {
        (void)launches_.worked();
        return start_answer::started;
    }
    if (launches_.failed(s)) {
        log_line(log_level::info, "no copies by kernel on device %d for now", on_.ordinal);
    }
    return start_answer::refused;
}

status kernel_executor::ask_now(completion *end)
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
    return report_end(driver_, result);
}

// A kernel of the program that fills the device keeps ours waiting. Copies that are not within the
// device need not wait for it when they are made otherwise. If it waits for the very message that
// ours is to bring, it waits for ever, and somebody has to say why.
void kernel_executor::look_if_late(completion *end)
{
    const auto now = clock::now();
    if (clock::time_point{} == end->asked) {
        end->asked = now;
    } else if (now - end->asked > limits_.late && !end->within_device) {
        late_until_ = now + without_kernel;
    }
    if (!told_late_ && now - end->asked > very_late) {
        told_late_ = true;
        log_line(
            log_level::warn,
            "copies have waited for device %d for %d seconds: if a kernel of the program fills "
            "the device and waits for a message, use --mca btl_gpusm_kernel_blocks 0",
            on_.ordinal, static_cast<int>(very_late.count()));
    }
}

} // namespace gpusm
