// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// group_call.h: a collective call on device memory, as one of its processes carries it out. All
// tell where their buffers are. Then each maps what it needs of the others', and when all can, each
// launches one kernel for its part, which reads the others' memory and may write into it. No kernel
// waits for another one. When all kernels have ended, the call is over.
#ifndef GPUSM_GROUP_CALL_H
#define GPUSM_GROUP_CALL_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/process_group.h"
#include "opal/mca/common/gpusm/shm/board.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// One call, in one meeting of the group. One thread at a time. The buffers are the caller's and
// stay until it is over.
class group_call {
  public:
    // It must be over.
    virtual ~group_call() = default;
    group_call(const group_call &) = delete;
    group_call &operator=(const group_call &) = delete;

    // Goes on as far as that is possible now. `busy`: again after progress has been made. `ok`: it
    // is done. `unsupported`: it cannot be done here, nothing has been written, and all ranks are
    // told so. Else it has failed, on this rank at least, and what is in the receive buffers may be
    // anything.
    status step();

    // The group's calls have been called off, as `cancelled`, or a process is gone, `peer_gone`:
    // this one ends like that, for all that wait for this process, unless they may rely on it
    // already. step() as before.
    void cancel(status why);

    // All ranks carry it out, or have done so; nobody has to be told any more.
    bool is_agreed_on() const { return at_ >= stage::run && status::ok == outcome_; }
    // Once it is agreed on, or over, whether any rank had device memory; the same on all ranks.
    bool anyone_on_device() const { return anyone_on_device_; }

  protected:
    explicit group_call(process_group &group) : group_(group) {}

    std::size_t rank() const { return group_.rank(); }
    std::size_t ranks() const { return group_.size(); }
    peer &member(std::size_t of) const { return group_.member(of); }
    // Members have been seen to share a device, in this call or one before.
    bool ranks_share_a_device() const { return group_.shares_a_device; }
    void note_shared_device() { group_.shares_a_device = true; }
    // Of tell() and hear().
    void say(const void *said, std::size_t bytes) { group_.say(meeting_, said, bytes); }
    void read(std::size_t from, void *said, std::size_t bytes) const
    {
        group_.read(from, meeting_, said, bytes);
    }

  private:
    // What a call of some kind does, in this order.

    // Before it takes part. `busy`: not ready yet; else it is.
    virtual status prepare() { return status::ok; }
    // Says what this process has. The answer: whether it has device memory.
    virtual bool tell() = 0;
    // Reads what that rank has said, and whether it has device memory.
    virtual bool hear(std::size_t from) = 0;
    // After all have been heard: can it be? All decide alike, as all have been told the same.
    virtual bool can_be() = 0;
    // What this process's part needs of the others. `busy`: not all of it yet; else it is able to
    // carry it out or not.
    virtual status map() = 0;
    // When all are. `busy`: not done yet.
    virtual status carry_out() = 0;
    // Gives back what it has; nothing runs any more.
    virtual void release() = 0;

    enum class stage : std::uint8_t {
        connect,
        prepare,
        begin,
        gather,
        map,
        vote,
        run,
        leave,
        over
    };

    status advance();
    bool all_have_come_to(meeting_stage least, status *s);
    void end_with(status outcome);
    status hear_all();
    status first_that_left() const;
    status count_votes();
    status leave();

    process_group &group_;
    stage at_ = stage::connect;
    std::uint32_t meeting_ = 0;
    std::size_t next_ = 0; // see process_group::reached
    bool declines_ = false;
    bool anyone_on_device_ = false;
    status called_off_ = status::ok; // while it prepares; why
    status outcome_ = status::ok;
};

} // namespace gpusm

#endif
