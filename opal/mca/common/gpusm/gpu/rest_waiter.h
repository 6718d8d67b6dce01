// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rest_waiter.h: waits until all streams of a context have done what was submitted to them, and not
// for longer than asked: the driver can only be told to wait, so a thread of its own does.
#ifndef GPUSM_GPU_REST_WAITER_H
#define GPUSM_GPU_REST_WAITER_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <chrono>
#include <memory>

namespace gpusm {

// One thread at a time.
class rest_waiter {
  public:
    explicit rest_waiter(const driver_api &driver);
    // The thread ends, but for one that still waits: it keeps what it needs.
    ~rest_waiter();
    rest_waiter(const rest_waiter &) = delete;
    rest_waiter &operator=(const rest_waiter &) = delete;

    // `ok`: what had been submitted before is done. `busy`: not in that time, and until it is, all
    // further answers are the same. `driver_failed`: the driver refuses to wait, as it does while a
    // stream of the context is being captured; `no_memory`: there can be no thread.
    status wait(CUcontext context, std::chrono::milliseconds at_most);

  private:
    struct shared;

    const driver_api &driver_;
    std::shared_ptr<shared> with_; // null: the thread has not been started
};

} // namespace gpusm

#endif
