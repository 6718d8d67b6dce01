// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_engine.h: asynchronous copies, gathered while the device is busy.
//
// A copy is submitted at once when its device has nothing to do; further copies are gathered, the
// way Nagle's algorithm gathers bytes, and go out together: as one launch of the gather kernel,
// as one driver call, or singly (gpu/copy_choice.h). A submission has one completion, so a window
// of small messages costs a few submissions and a few polls, whatever its length. Small and large
// copies gather apart, so that a small one does not wait for the large ones before it.
#ifndef GPUSM_GPU_COPY_ENGINE_H
#define GPUSM_GPU_COPY_ENGINE_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_choice.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace gpusm {

// One copy. Owned by the caller, who must keep it and both buffers until it has been handed
// back by collect() or cancel_all().
struct copy_request {
    std::uint64_t destination = 0; // device or host address of this process
    std::uint64_t source = 0;
    std::size_t len_bytes = 0;
    CUevent wait_for = nullptr; // a peer's event that has to happen first, or null
    // Facts, by which the engine decides when and how it is copied (gpu/copy_choice.h).
    bool kernel_reaches = false;  // a kernel in the device's context may touch both buffers
    bool processor_waits = false; // one side is host memory, with which a processor then goes on
    bool within_device = false;   // between memories of one device
    std::uint8_t part_of = 0;     // free for the caller
    status outcome = status::ok;
    copy_request *next = nullptr;
};

// Not thread-safe: the caller holds its GPU lock.
class copy_engine {
  public:
    copy_engine(const driver_api &driver, copy_limits limits);
    // Gives back events and kernels. Requests must have been collected or cancelled.
    ~copy_engine();
    copy_engine(const copy_engine &) = delete;
    copy_engine &operator=(const copy_engine &) = delete;

    // Makes what copies on that device need, which they do themselves otherwise: streams with the
    // first one, the kernel when copies could first use it and no kernel of the program runs.
    void prepare(device &on);

    // Takes the request; it ends in collect(), also when the driver refuses it. Allocates
    // nothing once the device is prepared.
    void submit(device &on, copy_request *request);

    // While true, the caller is about to submit an unknown number of copies; it collects right
    // afterwards, which sends out what is left of them. May be called without the lock.
    void expect_more(bool more) { more_expected_.store(more, std::memory_order_relaxed); }

    // While true, a processor has enough to do with what copies have brought, and waits for no
    // further ones (copy_request::processor_waits). Who ends it collects afterwards.
    void processor_has_work(bool has) { processor_has_work_ = has; }

    // Looks at each submission in flight at most once. Asks the driver about at most one of its own
    // copies per stream, and not for a few rounds when the caller is `busy` with other work; about
    // a kernel only after many looks at its flag. Submits what has become due. Returns the finished
    // requests as a list; their `outcome` is `ok` or `driver_failed`.
    copy_request *collect(bool busy = false);

    // All requests that have not finished, as failed. For teardown: the copies of submissions
    // in flight may still run.
    copy_request *cancel_all();

    // True when collect() has nothing to hand back and nothing to ask about.
    bool idle() const { return 0 == pending_ && nullptr == finished_.first; }

    // Submissions made so far, by copy_way.
    using tally = std::array<std::uint64_t, static_cast<std::size_t>(copy_way::count)>;
    const tally &submissions() const { return submissions_; }

  private:
    using clock = std::chrono::steady_clock;
    struct chain {
        copy_request *first = nullptr;
        copy_request *last = nullptr;
        copy_load load;
        std::uint32_t for_processor = 0; // copies for whose end a processor waits

        void append(copy_request *request);
        void append(chain *other); // which is empty then
        copy_request *take_first();
    };
    struct submission { // without requests: a free slot
        chain requests;
        copy_way way = copy_way::single;
        CUevent done = nullptr;          // of single and batch
        CUstream stream = nullptr;       // where it was started
        std::uint32_t turn = 0;          // of single and batch: index of that stream
        std::uint32_t polls = 0;         // of the kernel's flag, since the driver was asked
        clock::time_point asked_first{}; // about this kernel, if it was
        bool is_large = false;
    };
    struct gathering { // copies that go out together
        chain waiting;
        copy_load in_flight;
        std::uint32_t submissions = 0; // in flight
    };
    struct lane { // one per device
        explicit lane(const driver_api &driver, unsigned blocks) : kernel(driver, blocks) {}
        device *on = nullptr; // null: not used so far
        gathering small;
        gathering large;
        bool large_is_next = false;          // where both kinds are due
        std::vector<submission> slots;       // `depth` of them; the index is the kernel's slot
        std::vector<std::uint32_t> in_order; // slots in flight, oldest first
        std::uint32_t rounds_not_asked = 0;
        // Of the driver's copies. Those of one submission follow each other with a gap, which
        // the other streams' fill. The first one is the device's own.
        std::vector<CUstream> streams;
        std::uint32_t turn = 0;
        // Launches take turns, so that the next one starts while the last warps of the one before
        // still wait for their loads. None: no kernel on this device.
        std::vector<CUstream> kernel_streams;
        std::uint32_t kernel_turn = 0;
        gather_kernel kernel;
        reach launches; // of the kernel, and loading it
        // A launch had to wait for kernels of the program: until then the driver makes the copies
        // that are not within a device.
        clock::time_point no_kernel_until{};
        bool told_late = false;
    };
    lane *lane_of(device &on);
    void add_streams(std::vector<CUstream> *to, std::size_t until);
    bool load_kernel(lane &of);
    bool has_kernel(lane &of, bool within_device);
    void unload_kernel(lane &of);
    bool is_due_here(const lane &of, const gathering &each, bool more_expected) const;
    void launch(lane &of, bool more_expected);
    void start(lane &of, gathering &from);
    bool start_by_driver(lane &of, submission &in);
    bool start_by_kernel(lane &of, std::uint32_t slot);
    CUresult start_as_batch(CUstream stream, const chain &requests);
    bool start_alone(CUstream stream, const copy_request &request);
    status ask(lane &of, std::uint32_t slot, bool ask_driver);
    void look_if_late(lane &of, submission &in);
    void retire(lane &of, submission &in, status outcome);
    void finish(chain *requests, status outcome);

    const driver_api &driver_;
    const copy_limits limits_;
    std::deque<lane> lanes_; // by device::index; references stay valid
    chain finished_;
    std::size_t pending_ = 0;
    tally submissions_{};
    // Arguments of a batch call or a launch; their room is made once.
    std::vector<CUdeviceptr> destinations_;
    std::vector<CUdeviceptr> sources_;
    std::vector<std::size_t> sizes_;
    std::vector<gather_copy> copies_;
    std::atomic<bool> more_expected_{false};
    bool processor_has_work_ = false;
    bool batches_; // until the driver says that it has no such call
};

} // namespace gpusm

#endif
