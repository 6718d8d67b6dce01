// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// group_reduction.h: a collective reduction on device memory, as one of its processes carries it
// out. All tell where their buffers are. Then each maps what it needs of the others', and when all
// can, each launches one kernel for its part, which reads the others' memory and writes into it. No
// kernel waits for another one. When all kernels have ended, the call is over.
//
// Every element is combined once, in the order of the ranks: the result is the same bits on all
// ranks, and in every run with as many.
#ifndef GPUSM_GROUP_REDUCTION_H
#define GPUSM_GROUP_REDUCTION_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/reduction_call.h"
#include "opal/mca/common/gpusm/shm/board.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace gpusm {

class local_process;
class process_group;
struct reduction_work;

// One call, in one meeting of the group. One thread at a time. The buffers are the caller's and
// stay until it is over.
class group_reduction {
  public:
    group_reduction(local_process &process, process_group &group, const reduction_call &call);
    // It must be over.
    ~group_reduction();
    group_reduction(const group_reduction &) = delete;
    group_reduction &operator=(const group_reduction &) = delete;

    // Goes on as far as that is possible now. `busy`: again after progress has been made. `ok`: it
    // is done. `unsupported`: it cannot be done here, nothing has been written, and all ranks are
    // told so. Else it has failed, on this rank at least, and what is in the receive buffers may be
    // anything.
    status step();

    // Ends the call, as peer_gone, unless the others may rely on this process already. step() as
    // before.
    bool cancel();

    // All ranks carry it out, or have done so; nobody has to be told any more.
    bool is_agreed_on() const { return at_ >= stage::run && status::ok == outcome_; }
    // Once it is agreed on, or over, whether any rank had device memory; the same on all ranks.
    bool anyone_on_device() const { return anyone_on_device_; }

  private:
    enum class stage : std::uint8_t { connect, begin, gather, map, vote, run, leave, over };

    status advance();
    bool all_have_come_to(meeting_stage least, status *s);
    void end_with(status outcome);
    void tell();
    status read_all();
    std::uint32_t first_on_each_device() const;
    status map_all();
    status count_votes();
    status run();
    status leave();

    process_group &group_;
    reduction_call call_;
    stage at_ = stage::connect;
    std::uint32_t meeting_ = 0;
    std::size_t next_ = 0; // see process_group::reached
    bool declines_ = false;
    bool anyone_on_device_ = false;
    status outcome_ = status::ok;
    std::unique_ptr<reduction_work> work_;
};

} // namespace gpusm

#endif
