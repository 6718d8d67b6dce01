// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/reducer.h: reductions by launches of the reduce kernel, whose end is a flag in host memory.
// No executor of the copy engine's (gpu/executor.h): a reduction gathers with nothing, and nobody
// else can carry it out.
#ifndef GPUSM_GPU_REDUCER_H
#define GPUSM_GPU_REDUCER_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/kernel_launches.h"
#include "opal/mca/common/gpusm/gpu/reduce_kernel.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gpusm {

// On one device. Not thread-safe: the caller holds its GPU lock.
class reducer {
  public:
    // Of the limits: the blocks of kernels, and which launch is late.
    reducer(const driver_api &driver, const device &on, const copy_limits &limits);
    reducer(const reducer &) = delete;
    reducer &operator=(const reducer &) = delete;
    ~reducer() = default; // close() comes first

    // See kernel_launches. After close() no reduction is in flight, and no completion is in use.
    bool load() { return launches_.load(); }
    bool is_ready() { return launches_.is_ready(); }
    void close(bool context_lives);

    // Launches the kernel behind these events and fills in *end. Several may be in flight, in any
    // order. Under the device's context. Unless it is `ok` nothing has been
    // started: `busy`: reduce_slots are in flight; `bad_argument`: the reduction is not valid;
    // `unsupported`: the kernel is not loaded and cannot be now, or launches have been refused;
    // else what the driver says about the event or the launch.
    status start(const reduction &what, std::span<const CUevent> wait_for, completion *end);

    // `ok`: all targets have been written; `busy`: not yet; else the targets may hold anything.
    // After another answer than `busy` the completion is not in use any more.
    status ask(completion *end);

  private:
    const driver_api &driver_;
    reduce_kernel kernel_;
    kernel_launches launches_;
    std::uint32_t turn_ = 0;        // which of its kernel_streams was used last
    std::uint32_t taken_slots_ = 0; // a bit for each launch in flight
};

// Those of all devices, each made when it is first asked for. The caller holds its GPU lock.
class reducer_table {
  public:
    reducer_table(const driver_api &driver, const copy_limits &limits)
        : driver_(driver), limits_(limits)
    {
    }
    reducer_table(const reducer_table &) = delete;
    reducer_table &operator=(const reducer_table &) = delete;
    // Waits for what is in flight.
    ~reducer_table();

    reducer &of(device &on);

  private:
    struct one {
        device *on;
        reducer its;
    };
    const driver_api &driver_;
    const copy_limits limits_;
    std::vector<std::unique_ptr<one>> all_; // by device::index
};

} // namespace gpusm

#endif
