// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/kernel_executor.h: copies by launches of the gather kernel, whose end is a flag in host
// memory.
#ifndef GPUSM_GPU_KERNEL_EXECUTOR_H
#define GPUSM_GPU_KERNEL_EXECUTOR_H

#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"
#include "opal/mca/common/gpusm/gpu/kernel_launches.h"

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

    // See kernel_launches.
    bool load() { return launches_.load(); }
    void close(bool context_lives) { launches_.close(context_lives); }

    // Which of its kernel_streams was used last.
    std::uint32_t turn() const { return turn_; }

    // Launches the kernel on the stream `turn` for the copies of the list, which are all of kind
    // small. `refused`: it is not loaded and cannot be now, or launches have been late or refused.
    start_answer start(std::uint32_t turn, const copy_list &list, completion *end);

    status ask(completion *end) { return launches_.ask(end); }

  private:
    gather_kernel kernel_;
    kernel_launches launches_;
    std::uint32_t turn_ = 0;
    std::vector<gather_copy> copies_; // of a launch; room made once
};

} // namespace gpusm

#endif
