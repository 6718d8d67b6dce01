// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/kernel_executor.h: copies by launches of the gather kernel, whose end is a flag in host
// memory. When the kernel is loaded, and what is done when the program's kernels keep it waiting.
#ifndef GPUSM_GPU_KERNEL_EXECUTOR_H
#define GPUSM_GPU_KERNEL_EXECUTOR_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"

#include <cstdint>
#include <vector>

namespace gpusm {

// On one device. Not thread-safe: the caller holds its GPU lock.
class kernel_executor {
  public:
    // Of the limits: how many copies a list has at most, the kernel's blocks, and which launch is
    // late.
    kernel_executor(const driver_api &driver, const device &on, const copy_limits &limits);
    kernel_executor(const kernel_executor &) = delete;
    kernel_executor &operator=(const kernel_executor &) = delete;
    ~kernel_executor() = default; // close() comes first

    // Loads the kernel, for which the driver waits until no kernel runs in the context, unless that
    // has failed and it is too early for another try. True: it is loaded. Under the device's
    // context.
    bool load();
    // Waits for launches and gives everything back: under the device's context, unless that no
    // longer lives and everything has gone with it.
    void close(bool context_lives);

    // Which of its kernel_streams was used last.
    std::uint32_t turn() const { return turn_; }

    // Launches the kernel on the stream `turn` for the copies of the list, which are all of kind
    // small. `refused`: it is not loaded and cannot be now, or launches have been late or refused.
    start_answer start(std::uint32_t turn, const copy_list &list, completion *end);

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

    bool is_ready(bool within_device);
    status ask_now(completion *end);
    void look_if_late(completion *end);

    const driver_api &driver_;
    const device &on_;
    const copy_limits limits_;
    gather_kernel kernel_;
    std::vector<CUstream> streams_; // kernel_streams when it is loaded, else none
    std::uint32_t turn_ = 0;
    reach launches_; // and loading it
    // A launch had to wait for kernels of the program: until then it makes copies within the device
    // only.
    clock::time_point late_until_{};
    bool told_late_ = false;
    std::vector<gather_copy> copies_; // of a launch; room made once
};

} // namespace gpusm

#endif
