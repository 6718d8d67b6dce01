// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/kernel_launches.h: what executors by a kernel have in common: when the kernel is loaded, its
// streams, how the end of a launch is seen, and what is done when the program's kernels keep it
// waiting.
#ifndef GPUSM_GPU_KERNEL_LAUNCHES_H
#define GPUSM_GPU_KERNEL_LAUNCHES_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/kernel_module.h"

#include <cstdint>
#include <vector>

namespace gpusm {

// Of one kernel on one device. Not thread-safe: the caller holds its GPU lock.
class kernel_launches {
  public:
    // `copies`: what launches make, for the log. A constant. Of the limits: whether kernels may
    // be used, and which launch is late.
    kernel_launches(const driver_api &driver, const device &on, kernel_module *kernel,
                    std::uint32_t streams, const copy_limits &limits, const char *copies);
    kernel_launches(const kernel_launches &) = delete;
    kernel_launches &operator=(const kernel_launches &) = delete;
    ~kernel_launches() = default; // close() comes first

    // Loads the kernel, for which the driver waits until no kernel runs in the context, unless that
    // has failed and it is too early for another try. True: it is loaded. Under the device's
    // context.
    bool load();
    // Waits for launches and gives everything back: under the device's context, unless that no
    // longer lives and everything has gone with it.
    void close(bool context_lives);

    // Is it loaded, or can be at this moment, and have launches not been refused lately? Under the
    // device's context.
    bool is_ready();
    // A launch had to wait for kernels of the program a short while ago.
    bool is_late() const { return clock::now() < late_until_; }

    // To be launched on one of its streams.
    void prepare(copy_way way, std::uint32_t stream, bool within_device, completion *end) const;
    // What the driver has answered to a launch.
    status launched(CUresult result);

    // The flag. The driver is asked now and then, as the flag of a launch that failed stays away.
    status ask(completion *end)
    {
        if (kernel_.finished(end->slot)) {
            return status::ok;
        }
        return ++end->looks < looks_before_asking ? status::busy : ask_now(end);
    }

  private:
    using clock = completion::clock;
    static constexpr std::uint32_t looks_before_asking = 1024;

    status ask_now(completion *end);
    void look_if_late(completion *end);

    const driver_api &driver_;
    const device &on_;
    kernel_module &kernel_;
    const std::uint32_t stream_count_;
    const copy_limits limits_;
    const char *const copies_;
    std::vector<CUstream> streams_; // that many when it is loaded, else none
    reach launches_;                // and loading it
    clock::time_point late_until_{};
    bool told_late_ = false;
};

} // namespace gpusm

#endif
