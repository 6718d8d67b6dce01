// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copies_for_others.h: the copies that this process makes for others that use the same device
// (delegated_copies.h), and what tells them that it does.
//
// What has come while the launch before was in flight goes out together, as one launch of the
// gather kernel, as each takes the processor and the device microseconds. Behind it the device
// itself writes into the requesters' slots that their copies are done: so they need not wait until
// this process comes into MPI again. Where it cannot, this process does.
#ifndef GPUSM_COPIES_FOR_OTHERS_H
#define GPUSM_COPIES_FOR_OTHERS_H

#include "opal/mca/common/gpusm/delegated_copies.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/gather_arguments.h"
#include "opal/mca/common/gpusm/ipc/descriptor_wait.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace gpusm {

class gpu_side;
struct exported;
struct mapping;

// Not thread-safe: the caller holds the GPU lock.
class copies_for_others {
  public:
    copies_for_others(gpu_side &side, node &local, own_delegation_board &board)
        : side_(side), node_(local), board_(board)
    {
    }
    // What has not been begun is refused.
    ~copies_for_others();
    copies_for_others(const copies_for_others &) = delete;
    copies_for_others &operator=(const copies_for_others &) = delete;

    // Tells the others which devices this process uses by itself. To be called now and then.
    void publish();
    // Whether it makes copies for others at all.
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
        bool device_tells = false; // that it is done, and so nobody else: the slot is then reused

        bool has_to_do_with(const peer &with) const
        {
            return &with == requester || &with == source.owner || &with == target.owner;
        }
    };
    struct batch { // one launch
        device *on = nullptr;
        std::vector<job *> jobs;
        completion end;
    };

    bool has_new_device() const;
    device *find_device(const std::uint8_t *uuid) const;
    peer *find_peer(const segment_identity &identity) const;
    status reach_memory(const delegated_memory &memory, job *of, one_side *out);
    status prepare(job *next);
    bool collect(batch *into);
    void launch(batch *ready);
    void let_device_tell(batch *launched);
    CUdeviceptr board_on_device(const job &of);
    static bool move(const job &of, delegation_stage from, delegation_stage to);
    void end(job *over);

    gpu_side &side_;
    node &node_;
    own_delegation_board &board_;
    bool serves_ = true;
    std::size_t published_ = 0; // of the devices that are known
    std::deque<job> jobs_; // stay where they are
    std::vector<job *> free_;
    std::vector<job *> waiting_; // oldest first
    std::deque<batch> batches_;
    std::vector<batch *> free_batches_;
    std::vector<batch *> in_flight_;
    std::vector<gather_copy> copies_; // of the batch that is being launched
    // Boards of requesters, as devices write there: by peer::number and device::index.
    std::map<std::pair<std::uint32_t, std::uint32_t>, CUdeviceptr> boards_;
    reach device_tells_;
    std::uint64_t made_ = 0;
};

} // namespace gpusm

#endif
