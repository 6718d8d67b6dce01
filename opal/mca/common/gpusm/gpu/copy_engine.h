// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_engine.h: asynchronous copies, gathered while the device is busy.
//
// A copy is submitted at once when its device has nothing to do; further copies are gathered, the
// way Nagle's algorithm gathers bytes, and go out together. When, and which executor carries them
// out, is decided in gpu/copy_choice.h; what executors there are is in gpu/executors.h. A
// submission has one completion, so a window of small messages costs a few submissions and a few
// polls, whatever its length. Small and large copies gather apart, so that a small one does not
// wait for the large ones before it, and so do copies of memory with gaps, which have a kernel of
// their own.
#ifndef GPUSM_GPU_COPY_ENGINE_H
#define GPUSM_GPU_COPY_ENGINE_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_choice.h"
#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/executors.h"
#include "opal/mca/common/gpusm/gpu/gaps.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace gpusm {

// Not thread-safe: the caller holds its GPU lock.
class copy_engine {
  public:
    // Without `gaps` no address in a view may be copied from or to.
    copy_engine(const driver_api &driver, copy_limits limits, gap_services *gaps = nullptr);
    // Gives back events, streams and kernels. Requests must have been collected or cancelled.
    ~copy_engine();
    copy_engine(const copy_engine &) = delete;
    copy_engine &operator=(const copy_engine &) = delete;

    // Makes what copies on that device need, which they do themselves otherwise: streams with the
    // first one, the kernel when copies could first use it and no kernel of the program runs.
    void prepare(device &on);

    // The same for copies of memory with gaps. True: they can be made there now.
    bool prepare_strided(device &on);

    // Makes that copy of memory with gaps, behind that event, and returns when it is complete,
    // whatever else waits or is in flight. `unsupported`: nothing has been started, as there is no
    // kernel for it at present; `bad_argument`: likewise, as the copy is not a valid one;
    // `driver_failed`: the destination may hold anything.
    status copy_now(device &on, const strided_copy &copy, CUevent wait_for = nullptr);

    // Takes the request; it ends in collect(), also when the driver refuses it. Allocates
    // nothing once the device is prepared. An address in a view needs a kernel that reaches both
    // sides; where that cannot be, the copy is made within this call, or within collect().
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
    bool idle() const { return 0 == pending_ && finished_.empty(); }

    // Submissions made so far, by copy_way.
    using tally = std::array<std::uint64_t, static_cast<std::size_t>(copy_way::count)>;
    const tally &submissions() const { return submissions_; }

  private:
    struct submission { // without requests: a free slot
        copy_list requests;
        copy_kind kind = copy_kind::small;
        completion end;
    };
    struct lane {             // one per device
        device *on = nullptr; // null: not used so far, nor is there any of the rest
        std::optional<executors> by;
        copy_facts facts; // up to date but for what all devices have in common
        copy_list small;  // waiting, oldest first
        copy_list large;
        copy_list with_gaps;
        std::vector<submission> slots;       // `depth` of them
        std::vector<std::uint32_t> in_order; // slots in flight, oldest first
        std::uint32_t rounds_not_asked = 0;

        copy_list &waiting(copy_kind kind)
        {
            return copy_kind::small == kind ? small : copy_kind::large == kind ? large : with_gaps;
        }
    };
    lane *lane_of(device &on);
    void launch(lane &of, bool more_expected);
    void start(lane &of, copy_decision decided);
    start_answer carry_out(lane &of, copy_decision decided, submission *in);
    void retire(lane &of, submission *in, status outcome);
    void finish(copy_list *requests, status outcome);
    bool describe_gaps(copy_request *request);
    void end_gaps(copy_request *over, bool may_copy);

    const driver_api &driver_;
    const copy_limits limits_;
    gap_services *const gaps_;
    std::deque<strided_copy> described_; // of copies under way from or to views, and free ones
    std::vector<strided_copy *> free_described_;
    std::size_t copies_with_gaps_ = 0;         // under way
    std::vector<std::unique_ptr<lane>> lanes_; // by device::index
    copy_list finished_;
    std::size_t pending_ = 0;
    tally submissions_{};
    std::atomic<bool> more_expected_{false};
    bool processor_has_work_ = false;
    copy_ways usable_; // as the parameters say, and less what the driver turns out not to have
};

} // namespace gpusm

#endif
