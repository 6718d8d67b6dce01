// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/process_group.h"

#include <algorithm>

namespace gpusm {

process_group::process_group(board_list &boards, const board_key &key,
                             const std::vector<peer *> &members, std::size_t rank)
    : boards_(boards), key_(key), rank_(rank)
{
    for (peer *each : members) {
        declines_ = declines_ || (nullptr == each && members_.size() != rank);
        members_.push_back({each, {}});
        if (each != nullptr && !each->keep_mapped()) {
            members_.back().process = nullptr;
            declines_ = true;
        }
    }
}

std::unique_ptr<process_group> process_group::make(board_list &boards, const board_key &key,
                                                   const std::vector<peer *> &members,
                                                   std::size_t rank)
{
    std::unique_ptr<process_group> made(new process_group(boards, key, members, rank));
    made->declines_at_home_ = made->declines_;
    if (status::ok != boards.open(key, made->declines_, &made->own_)) {
        return nullptr;
    }
    return made;
}

process_group::~process_group()
{
    if (own_.get() != nullptr && !declines_at_home_) {
        has_failed_ ? boards_.close_as_it_is(&own_) : boards_.close(&own_);
    }
    for (const one &each : members_) {
        if (each.process != nullptr) {
            each.process->let_go();
        }
    }
}

status process_group::connect()
{
    if (declines_) {
        return status::unsupported;
    }
    // All are looked at: where one does not meet, the others need not come.
    status all = status::ok;
    for (std::size_t i = 0; !is_connected_ && i < members_.size(); ++i) {
        one &of = members_[i];
        if (i == rank_ || of.board.is_open()) {
            continue;
        }
        const status s = find(&of);
        if (status::unsupported == s) {
            declines_ = true;
            return s;
        }
        if (status::ok != s && status::peer_gone != all) {
            all = status::busy == s && !is_gone(of) ? s : status::peer_gone;
        }
    }
    is_connected_ = status::ok == all;
    return all;
}

status process_group::find(one *of) const
{
    if (const status s = of->process->attach(); status::ok != s) {
        // One that has ended before was never in a meeting of this group, which takes all: its part
        // of the calls went by messages.
        return status::system_failed == s       ? status::busy
               : of->process->has_left_unseen() ? status::unsupported
                                                : status::peer_gone;
    }
    // What it has decided counts where it has no board for this group, and comes last there.
    const peer_segment &shared = of->process->shared();
    others_board::found found = of->board.find(shared, key_);
    if (others_board::found::not_yet == found) {
        const auto meets = shared.view().header->meets.load(std::memory_order_acquire);
        if (meets_in_groups::no == meets) {
            found = of->board.find(shared, key_);
            found = others_board::found::not_yet == found ? others_board::found::declined : found;
        }
    }
    switch (found) {
    case others_board::found::open:
        return status::ok;
    case others_board::found::not_yet:
        return status::busy;
    case others_board::found::declined:
        return status::unsupported;
    case others_board::found::nonsense:
        of->process->close_for_nonsense();
        break;
    }
    return status::peer_gone;
}

status process_group::begin(std::uint32_t *meeting)
{
    // Before the first ones, nobody is in a meeting of that number.
    const std::uint32_t before = next_meeting_ - meetings_at_once;
    if (0 != (entered_ & 1U << place_of_meeting(before))) {
        return status::busy;
    }
    if (const status s = reached(before, meeting_stage::ended, &over_); status::ok != s) {
        return s;
    }
    over_ = 0;
    *meeting = next_meeting_++;
    entered_ |= 1U << place_of_meeting(*meeting);
    return status::ok;
}

status process_group::reached(std::uint32_t meeting, meeting_stage least, std::size_t *next)
{
    for (; *next < members_.size(); ++*next) {
        const one &waited_for = members_[*next];
        const auto is_there = [&] {
            return *next == rank_ || waited_for.board.stage_in(meeting) >= least;
        };
        if (!is_there()) {
            const bool gone = is_gone(waited_for); // and may have come there before
            return gone && !is_there() ? status::peer_gone : status::busy;
        }
    }
    return status::ok;
}

bool process_group::has_lost_any() const
{
    return std::any_of(members_.begin(), members_.end(), [](const one &each) {
        return each.process != nullptr && (each.process->closed() || each.process->has_ended());
    });
}

// Its process, as far as the system tells; asked now and then, as that takes two system calls.
bool process_group::is_gone(const one &waited_for)
{
    constexpr std::uint32_t looks_between_questions = 4096;
    if (waited_for.process->closed()) {
        return true;
    }
    if (0 != ++looks_ % looks_between_questions) {
        return false;
    }
    return waited_for.process->has_ended();
}

} // namespace gpusm
