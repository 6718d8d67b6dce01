// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/strided_executor.h: copies of memory with gaps by launches of the strided kernel, whose end
// is a flag in host memory.
#ifndef GPUSM_GPU_STRIDED_EXECUTOR_H
#define GPUSM_GPU_STRIDED_EXECUTOR_H

#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/kernel_launches.h"
#include "opal/mca/common/gpusm/gpu/strided_kernel.h"

#include <cstdint>
#include <vector>

namespace gpusm {

// On one device. Not thread-safe: the caller holds its GPU lock.
class strided_executor {
  public:
    // Of the limits: the blocks of kernels, and which launch is late.
    strided_executor(const driver_api &driver, const device &on, const copy_limits &limits);
    strided_executor(const strided_executor &) = delete;
    strided_executor &operator=(const strided_executor &) = delete;
    ~strided_executor() = default; // close() comes first

    // See kernel_launches.
    bool load() { return launches_.load(); }
    bool is_ready() { return launches_.is_ready(); }
    void close(bool context_lives) { launches_.close(context_lives); }

    // Which of its kernel_streams was used last.
    std::uint32_t turn() const { return turn_; }

    // Launches the kernel on the stream `turn` for the copies of *list, at most
    // strided_most_copies, behind the events that they wait for. Moves those that cannot be made
    // into *failed. Nobody else can make them, so it does not answer `refused`.
    start_answer start(std::uint32_t turn, copy_list *list, copy_list *failed, completion *end);

    status ask(completion *end) { return launches_.ask(end); }

    // Makes that copy and waits for its end, on a stream of its own. `unsupported`: nothing has
    // been started, as the kernel is not loaded and cannot be now, or launches have been refused;
    // `bad_argument`: likewise, as the copy is not a valid one; `driver_failed`: the destination
    // may hold anything. Under the device's context.
    status copy_now(const strided_copy &copy, CUevent wait_for);

  private:
    bool waits(CUstream stream, CUevent event) const;

    const driver_api &driver_;
    strided_kernel kernel_;
    kernel_launches launches_;
    std::uint32_t turn_ = 0;
    std::vector<const strided_copy *> copies_; // of a launch; room made once
};

} // namespace gpusm

#endif
