// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copies_for_others.h: the copies that this process makes for others that use the same device
// (delegated_copies.h), and what tells them that it does.
//
// What has come while the launch before was in flight goes out together, as one launch of the
// gather kernel, as each takes the processor and the device microseconds. The flag that the kernel
// writes at its end lies in our segment, where the requesters look at it: so they need not wait
// until this process comes into MPI again.
#ifndef GPUSM_COPIES_FOR_OTHERS_H
#define GPUSM_COPIES_FOR_OTHERS_H

#include "opal/mca/common/gpusm/delegated_copies.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/gatherer.h"
#include "opal/mca/common/gpusm/ipc/descriptor_wait.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace gpusm {

class gpu_side;
struct exported;
struct mapping;

// Not thread-safe: the caller holds the GPU lock.
class copies_for_others {
  public:
    copies_for_others(gpu_side &side, node &local, own_delegation_board &board,
                      const copy_limits &limits);
    // What has not been begun is refused.
    ~copies_for_others();
    copies_for_others(const copies_for_others &) = delete;
    copies_for_others &operator=(const copies_for_others &) = delete;

    // Tells the others which devices this process uses by itself. To be called now and then.
    void publish();
    // Whether it makes copies for others, unless kernels are switched off.
    void serve(bool others);

    // Keeps it for progress(). False: the message makes no sense.
    bool message_from(peer &requester, const unsigned char *payload, std::size_t bytes);
    bool idle() const { return waiting_.empty() && in_flight_.empty() && !has_new_device(); }
    // Ends what is over, and begins what waits. Publishes a device that is new.
    void progress();
    // That peer has ended. False: copies for it, or of its memory, are in flight.
    bool forget_peer(const peer &ended);

    std::uint64_t made() const { return made_; }

  private:
    struct one_side { // of a copy, as this process has it
        peer *owner = nullptr;
        mapping *mapped = nullptr; // of another process, or
        exported *own = nullptr;   // of this one
        std::uint64_t address = 0; // 0: not yet
    };
    struct job {
        delegated_copy wanted;
        peer *requester = nullptr;
        delegation_board *board = nullptr; // the requester's
        device *on = nullptr;
        one_side source;
        one_side target;
        descriptor_wait descriptors;

        bool has_to_do_with(const peer &with) const
        {
            return &with == requester || &with == source.owner || &with == target.owner;
        }
    };
    struct launcher { // of a device
        device *on = nullptr;
        std::unique_ptr<gatherer> by;
        std::uint32_t flags = 0; // granule
    };
    struct batch { // one launch
        device *on = nullptr;
        std::vector<job *> jobs;
        completion end;
    };

    bool has_new_device() const { return serves_ && published_ != devices_.all().size(); }
    device *find_device(const delegated_copy &wanted);
    peer *find_peer(const segment_identity &identity) const;
    status reach_memory(const delegated_memory &memory, job *of, one_side *out);
    status prepare(job *next);
    bool collect(batch *into);
    void launch(batch *ready);
    void tell(const batch &launched, const launcher &by);
    launcher *launcher_of(device &on);
    static bool move(const job &of, delegation_stage from, delegation_stage to);
    void end(job *over);

    gpu_side &side_;
    const device_table &devices_; // its own
    node &node_;
    own_delegation_board &board_;
    const copy_limits limits_;
    bool serves_ = true;
    std::size_t published_ = 0; // of the devices that are known
    std::deque<job> jobs_;      // stay where they are
    std::vector<job *> free_;
    std::vector<job *> waiting_; // oldest first
    std::deque<batch> batches_;
    std::vector<batch *> free_batches_;
    std::vector<batch *> in_flight_;
    std::vector<gather_copy> copies_; // of the batch that is being launched
    std::vector<launcher> launchers_; // by device::index
    reach flag_memory_;
    std::uint64_t made_ = 0;
};

} // namespace gpusm

#endif
