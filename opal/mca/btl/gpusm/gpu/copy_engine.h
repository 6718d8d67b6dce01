// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_engine.h: asynchronous copies, gathered while the device is busy.
//
// A copy is submitted at once as long as fewer than `depth` submissions of its device are in
// flight: a lone message waits for nothing, and a few large ones keep the device fed. Further
// copies are gathered (as Nagle's algorithm gathers bytes) and go out together when one of
// those submissions is done: in one driver call where the driver has one for that (CUDA 12.8),
// and with one event for all of them, so that a window of small messages costs one submission
// and one completion per batch.
#ifndef GPUSM_GPU_COPY_ENGINE_H
#define GPUSM_GPU_COPY_ENGINE_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gpusm {

// One copy. Owned by the caller, who must keep it and both buffers until it has been handed
// back by collect() or cancel_all().
struct copy_request {
    std::uint64_t destination = 0; // device or host address of this process
    std::uint64_t source = 0;
    std::size_t len_bytes = 0;
    CUevent wait_for = nullptr; // a peer's event that has to happen first, or null
    status outcome = status::ok;
    copy_request *next = nullptr;
};

struct copy_limits {
    std::uint32_t depth = 4;             // submissions in flight per device
    std::uint32_t batch_copies = 64;     // copies in one submission
    std::size_t batch_bytes = 16U << 20; // a submission stops gathering beyond this
};

// Not thread-safe: the caller holds its GPU lock.
class copy_engine {
  public:
    copy_engine(const driver_api &driver, copy_limits limits);
    // Destroys its events. Requests must have been collected or cancelled.
    ~copy_engine();
    copy_engine(const copy_engine &) = delete;
    copy_engine &operator=(const copy_engine &) = delete;

    // Takes the request; it ends in collect(), also when the driver refuses it. Allocates
    // nothing once a device has reached its depth.
    void submit(device &on, copy_request *request);

    // Asks each busy device about its oldest submission only, once, and submits what has
    // been gathered. Returns the finished requests as a list, oldest first; their `outcome`
    // is `ok` or `driver_failed`.
    copy_request *collect();

    // All requests that have not finished, as failed. For teardown: the copies of submissions
    // in flight may still run.
    copy_request *cancel_all();

    // True when collect() has nothing to hand back and nothing to ask about.
    bool idle() const { return 0 == pending_ && nullptr == finished_.first; }

  private:
    struct chain {
        copy_request *first = nullptr;
        copy_request *last = nullptr;
        void append(copy_request *request);
        void append(chain &other);
    };
    struct submission {
        chain requests;
        CUevent done = nullptr;
    };
    struct lane { // one per device
        device *on = nullptr;
        chain gathered;
        std::vector<submission> ring; // `depth` long; `first` is the oldest in flight
        std::uint32_t first = 0;
        std::uint32_t in_flight = 0;
    };

    lane *lane_of(device &on);
    void launch(lane &of);
    void start(lane &of, submission &in);
    bool start_as_batch(CUstream stream, const chain &requests);
    bool start_alone(CUstream stream, const copy_request &request);
    void fail(chain &requests);

    const driver_api &driver_;
    const copy_limits limits_;
    std::deque<lane> lanes_; // by device::index; references stay valid
    chain finished_;
    std::size_t pending_ = 0;
    // Arguments of a batch call; their room is made once.
    std::vector<CUdeviceptr> destinations_;
    std::vector<CUdeviceptr> sources_;
    std::vector<std::size_t> sizes_;
    bool batches_ = true; // until the driver says that it has no such call
};

} // namespace gpusm

#endif
