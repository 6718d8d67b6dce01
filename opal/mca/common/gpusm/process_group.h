// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// process_group.h: the processes of this node that make collective calls together, as one of them
// sees them, and the meetings of these calls (shm/board.h).
#ifndef GPUSM_PROCESS_GROUP_H
#define GPUSM_PROCESS_GROUP_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/board.h"
#include "opal/mca/common/gpusm/shm/peer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gpusm {

// One thread at a time. Nothing here waits: what is not so yet is `busy`, and to be asked again
// after progress has been made, which the others may need, too.
class process_group {
  public:
    // `members`: by rank; null at `rank`, which is this process, and where nobody can be reached.
    // Null: there is no memory for a board, or was not once; others see that it meets no more.
    static std::unique_ptr<process_group> make(board_list &boards, const board_key &key,
                                               const std::vector<peer *> &members,
                                               std::size_t rank);
    // All its meetings must be over.
    ~process_group();
    process_group(const process_group &) = delete;
    process_group &operator=(const process_group &) = delete;

    // Kept for those who call: members have device memory on the same device.
    bool shares_a_device = false;

    std::size_t size() const { return members_.size(); }
    std::size_t rank() const { return rank_; }
    peer &member(std::size_t rank) const { return *members_[rank].process; }

    // Finds the others. `ok`: all meet here; `unsupported`: one of them does not, as all see or
    // will see, so no two of them ever will; `busy`; `peer_gone`.
    status connect();

    // --- one meeting after the other. All members begin the same ones in the same order.

    // How many of them a process can be in at a time: half of a board's places. Who begins one has
    // seen all end the one that many before, and they had left the one whose place it takes before
    // they began that. So nobody looks for its stage, or writes it, there any more.
    static constexpr std::uint32_t meetings_at_once = board_places / 2;

    // The number of a new one; `busy`: this process is in as many, or others are.
    status begin(std::uint32_t *meeting);
    // This process neither asks nor says anything in it any more.
    void leave(std::uint32_t meeting) { entered_ &= ~(1U << place_of_meeting(meeting)); }
    void say(std::uint32_t meeting, const void *said, std::size_t bytes)
    {
        own_.say(meeting, said, bytes);
        own_.store(meeting, meeting_stage::told);
    }
    void store(std::uint32_t meeting, meeting_stage stage)
    {
        has_failed_ = has_failed_ || meeting_stage::failed == stage;
        own_.store(meeting, stage);
    }
    // `ok`: all others have come to that stage, or further; `busy`; `peer_gone`: one of them has
    // ended without. *next: where to go on asking, 0 at first for each stage.
    status reached(std::uint32_t meeting, meeting_stage least, std::size_t *next);
    // That one has said so, or has come there. Once it has come as far.
    bool is_at(std::size_t rank, std::uint32_t meeting, meeting_stage stage) const
    {
        return rank != rank_ && stage == members_[rank].board.stage_in(meeting);
    }
    // Whether a member's process has ended, as far as the system tells.
    bool has_lost_any() const;
    void read(std::size_t rank, std::uint32_t meeting, void *said, std::size_t bytes) const
    {
        members_[rank].board.read(meeting, said, bytes);
    }

  private:
    struct one {
        peer *process = nullptr;
        others_board board;
    };
    process_group(board_list &boards, const board_key &key, const std::vector<peer *> &members,
                  std::size_t rank);
    status find(one *of) const;
    bool is_gone(const one &of);

    board_list &boards_;
    const board_key key_;
    std::vector<one> members_; // their segments stay mapped meanwhile
    const std::size_t rank_;
    own_board own_;
    bool declines_ = false; // nobody meets here
    // As this process cannot reach them all. Its board stays, for those that come late.
    bool declines_at_home_ = false;
    bool is_connected_ = false;
    bool has_failed_ = false; // a meeting, of which others may hear after this group is gone here
    std::uint32_t next_meeting_ = 0;
    std::uint32_t entered_ = 0; // the places of meetings that this process has not left, a bit each
    std::size_t over_ = 0;      // of the meeting that has to be over before: as `next` above
    std::uint32_t looks_ = 0;   // since it was asked whether a process lives
};

} // namespace gpusm

#endif
