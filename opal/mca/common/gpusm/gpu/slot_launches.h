// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/slot_launches.h: launches of a kernel for whoever asks, each by itself and with a slot of the
// kernel's own while it is in flight. No executor of the copy engine's (gpu/executor.h): such a
// launch gathers with nothing, and nobody else can carry it out.
#ifndef GPUSM_GPU_SLOT_LAUNCHES_H
#define GPUSM_GPU_SLOT_LAUNCHES_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/kernel_launches.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace gpusm {

// Of one kernel on one device. Not thread-safe: the caller holds its GPU lock.
class slot_launches {
  public:
    slot_launches(const slot_launches &) = delete;
    slot_launches &operator=(const slot_launches &) = delete;

    // See kernel_launches. After close() none is in flight, and no completion is in use.
    bool load() { return launches_.load(); }
    bool is_ready() { return launches_.is_ready(); }
    void close(bool context_lives);

    // `ok`: the kernel has ended; `busy`: not yet; else what it writes may be anything. After
    // another answer than `busy` the completion is not in use any more.
    status ask(completion *end);

  protected:
    // `slots` (at most 32), as many as the kernel has. `copies`: what launches make, for the log.
    slot_launches(const driver_api &driver, const device &on, kernel_module *kernel,
                  std::uint32_t slots, const copy_limits &limits, const char *copies);
    ~slot_launches() = default; // close() comes first

    // How many blocks a launch has, by default 64. With 32, 64 and 128 of them two H200 sum 64 MiB
    // of each in 249, 224 and 215 us, and take 45.5, 42.3 and 41.0 for an allgather of 8 MiB
    // blocks; 256 KiB and less take as long with all of these.
    static unsigned blocks_of(const copy_limits &limits);

    // Takes a slot and a stream, which waits for these events, and fills in *end. Under the
    // device's context. `ok`: started() is to be called; else nothing has been started: `busy`: all
    // slots are taken; `unsupported`: the kernel is not loaded and cannot be now, or launches have
    // been refused; or what the driver says about an event.
    status begin(std::span<const CUevent> wait_for, completion *end);
    // `result`: what the driver has answered to the launch. Unless it is `ok` nothing has been
    // started.
    status started(CUresult result, const completion &end);

  private:
    const driver_api &driver_;
    kernel_launches launches_;
    const std::uint32_t all_slots_;
    std::uint32_t turn_ = 0;        // which of its kernel_streams was used last
    std::uint32_t taken_slots_ = 0; // a bit for each launch in flight
};

// Those of all devices, each made when it is first asked for. The caller holds its GPU lock.
template <typename Launches> class launches_by_device {
  public:
    launches_by_device(const driver_api &driver, const copy_limits &limits)
        : driver_(driver), limits_(limits)
    {
    }
    launches_by_device(const launches_by_device &) = delete;
    launches_by_device &operator=(const launches_by_device &) = delete;
    // Waits for what is in flight.
    ~launches_by_device()
    {
        for (const auto &each : all_) {
            if (each != nullptr) {
                const driver_scope scope(driver_, each->on->context);
                each->its.close(scope.entered());
            }
        }
    }

    Launches &of(device &on)
    {
        if (all_.size() <= on.index) {
            all_.resize(on.index + 1);
        }
        std::unique_ptr<one> &its = all_[on.index];
        if (nullptr == its) {
            its.reset(new one{&on, {driver_, on, limits_}});
        }
        return its->its;
    }

  private:
    struct one {
        device *on;
        Launches its;
    };
    const driver_api &driver_;
    const copy_limits limits_;
    std::vector<std::unique_ptr<one>> all_; // by device::index
};

} // namespace gpusm

#endif
