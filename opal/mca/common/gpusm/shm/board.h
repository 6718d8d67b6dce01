// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/board.h: where the processes of a group meet. Each has a board for it in its own segment,
// which it alone writes and all read. A call that all of them make is a meeting. Meetings have
// numbers and use the places of a board in turn: a process stores there how far it is, and waits
// until all others are as far. It never writes what another one writes.
//
// A meeting is over for a process when all have ended it. So a place is free for a later meeting
// once the one before is over, and what was said there has been read.
//
// Boards are found by the group's key. One whose group is over is used for another group at once:
// its turn tells a process that has still to see the end of a meeting that it has come.
#ifndef GPUSM_SHM_BOARD_H
#define GPUSM_SHM_BOARD_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

// How far a process is in a meeting.
enum class meeting_stage : std::uint32_t {
    none = 0,
    told = 1,     // what it has to say can be read
    agrees = 2,   // it can do what follows from what all have said
    declines = 3, // it cannot
    ended = 4,    // it reads and writes nothing of the others any more
    failed = 5,   // likewise, but it has not done its part, though all agreed
    withdrew = 6, // as `ended`, of one that has declined
    left = 7,     // it takes no part
    revoked = 8,  // likewise, as the group's calls have been called off
    closed = 9,   // it is not in the group any more
};

// Of a place: the board's turn, the number of the last meeting there, and how far its owner is.
struct board_word {
    static constexpr unsigned stage_bits = 4;
    static constexpr unsigned turn_shift = 32;

    std::uint64_t value;

    static constexpr board_word of(std::uint32_t turn, std::uint32_t meeting, meeting_stage stage)
    {
        const std::uint32_t low = meeting << stage_bits | static_cast<std::uint32_t>(stage);
        return {std::uint64_t{turn} << turn_shift | low};
    }
    // Its owner's stage in that meeting of that turn. An owner that is in a later meeting of that
    // place has ended this one. Numbers wrap around.
    constexpr meeting_stage stage_in(std::uint32_t turn, std::uint32_t meeting) const
    {
        constexpr std::uint32_t stages = 1U << stage_bits;
        const auto low = static_cast<std::uint32_t>(value);
        if (static_cast<std::uint32_t>(value >> turn_shift) != turn) {
            return meeting_stage::closed;
        }
        const auto behind = static_cast<std::int32_t>((meeting << stage_bits) - (low & -stages));
        return 0 == behind  ? static_cast<meeting_stage>(low % stages)
               : behind > 0 ? meeting_stage::none
                            : meeting_stage::ended;
    }
};

// The place of a meeting with that number.
constexpr std::size_t place_of_meeting(std::uint32_t meeting)
{
    return meeting % board_places;
}

// A board of this process's own, while it is open. One thread at a time.
class own_board {
  public:
    own_board() = default;
    explicit own_board(board *at) : at_(at), turn_(at->turn.load(std::memory_order_relaxed)) {}

    board *get() const { return at_; }
    // What this process has to say in a meeting; before it is `told`. At most board_said_bytes.
    void say(std::uint32_t meeting, const void *said, std::size_t bytes);
    void store(std::uint32_t meeting, meeting_stage stage)
    {
        at_->places[place_of_meeting(meeting)].word.store(
            board_word::of(turn_, meeting, stage).value, std::memory_order_release);
    }

  private:
    board *at_ = nullptr;
    std::uint32_t turn_ = 0;
};

// A board of another process. Its segment must stay mapped.
class others_board {
  public:
    enum class found : std::uint8_t {
        not_yet,  // its owner has not opened it
        open,     // it can be asked
        declined, // its owner meets nobody in this group
        nonsense, // the list of boards makes no sense
    };

    // Looks through the boards of that segment.
    found find(const peer_segment &of, const board_key &key);
    bool is_open() const { return at_ != nullptr; }

    meeting_stage stage_in(std::uint32_t meeting) const
    {
        const board_word word{
            at_->places[place_of_meeting(meeting)].word.load(std::memory_order_acquire)};
        return word.stage_in(turn_, meeting);
    }
    // A copy of what its owner has said; once that is told, and until this process ends the
    // meeting. Its contents are a peer's word.
    void read(std::uint32_t meeting, void *said, std::size_t bytes) const;

  private:
    const board *at_ = nullptr;
    std::uint32_t turn_ = 0;
};

// The boards in this process's segment. Any thread.
class board_list {
  public:
    explicit board_list(segment &own) : own_(own) {}
    board_list(const board_list &) = delete;
    board_list &operator=(const board_list &) = delete;

    // One for a group, which others find from now on. `declines`: they find that this process meets
    // nobody there. `no_memory`: there is none, and as others may look for it, this process meets
    // no more in further groups, as they see in its segment; or does not.
    status open(const board_key &key, bool declines, own_board *out);
    // This process has left that group, in which all meetings are over for it.
    void close(own_board *left);
    // The same, but what it has said last can be read for good: its place in the segment is lost.
    void close_as_it_is(own_board *left);

  private:
    segment &own_;
    optional_mutex lock_;
    std::vector<board *> free_;
};

} // namespace gpusm

#endif
