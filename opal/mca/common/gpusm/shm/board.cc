// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/shm/board.h"

#include <cassert>
#include <cstring>
#include <mutex>

namespace gpusm {

namespace {

// The turn is odd while the owner writes key and standing, so that nobody takes a mixture of two
// groups for one of them.
bool is_being_written(std::uint32_t turn)
{
    return 0 != turn % 2;
}

void begin_turn(board *of, const board_key &key, board_standing standing)
{
    const std::uint32_t turn = of->turn.load(std::memory_order_relaxed);
    of->turn.store(turn + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    of->key_base.store(key.base, std::memory_order_relaxed);
    of->key_sub.store(key.sub, std::memory_order_relaxed);
    of->key_call.store(key.call, std::memory_order_relaxed);
    of->standing.store(standing, std::memory_order_relaxed);
    for (board_place &place : of->places) {
        place.word.store(board_word::of(turn + 2, 0, meeting_stage::none).value,
                         std::memory_order_relaxed);
    }
    of->turn.store(turn + 2, std::memory_order_release);
}

} // namespace

void own_board::say(std::uint32_t meeting, const void *said, std::size_t bytes)
{
    assert(bytes <= board_said_bytes);
    std::memcpy(at_->places[place_of_meeting(meeting)].said, said, bytes);
}

void others_board::read(std::uint32_t meeting, void *said, std::size_t bytes) const
{
    assert(bytes <= board_said_bytes);
    std::memcpy(said, at_->places[place_of_meeting(meeting)].said, bytes);
}

others_board::found others_board::find(const peer_segment &of, const board_key &key)
{
    std::uint32_t granule = of.view().header->newest_board.load(std::memory_order_acquire);
    std::size_t most = of.len_bytes() / sizeof(board); // a list that is longer is a circle
    while (0 != granule) {
        if (0 == most-- || !of.holds(std::uint64_t{granule} * granule_bytes, sizeof(board))) {
            return found::nonsense;
        }
        const auto *at = reinterpret_cast<const board *>(of.at(granule));
        const std::uint32_t turn = at->turn.load(std::memory_order_acquire);
        const board_key its = {at->key_base.load(std::memory_order_relaxed),
                               at->key_sub.load(std::memory_order_relaxed),
                               at->key_call.load(std::memory_order_relaxed)};
        const board_standing standing = at->standing.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (its == key && !is_being_written(turn) &&
            turn == at->turn.load(std::memory_order_relaxed)) {
            if (board_standing::declines == standing) {
                return found::declined;
            }
            if (board_standing::meets == standing) {
                at_ = at;
                turn_ = turn;
                return found::open;
            }
        }
        granule = at->next.load(std::memory_order_relaxed);
    }
    return found::not_yet;
}

status board_list::open(const board_key &key, bool declines, own_board *out)
{
    const std::lock_guard guard(lock_);
    std::atomic<meets_in_groups> &meets = own_.view().header->meets;
    if (meets_in_groups::no == meets.load(std::memory_order_relaxed)) {
        return status::no_memory;
    }
    const board_standing standing = declines ? board_standing::declines : board_standing::meets;
    if (!free_.empty()) {
        begin_turn(free_.back(), key, standing);
        *out = own_board(free_.back());
        free_.pop_back();
        return status::ok;
    }
    std::uint32_t granule = 0;
    if (status::ok != own_.carve(sizeof(board), &granule)) {
        meets.store(meets_in_groups::no, std::memory_order_release);
        return status::no_memory;
    }
    auto *made = reinterpret_cast<board *>(own_.at(granule)); // zeros
    begin_turn(made, key, standing);
    std::atomic<std::uint32_t> &newest = own_.view().header->newest_board;
    made->next.store(newest.load(std::memory_order_relaxed), std::memory_order_relaxed);
    newest.store(granule, std::memory_order_release);
    *out = own_board(made);
    return status::ok;
}

void board_list::close(own_board *left)
{
    const std::lock_guard guard(lock_);
    begin_turn(left->get(), {}, board_standing::none);
    free_.push_back(left->get());
    *left = {};
}

void board_list::close_as_it_is(own_board *left)
{
    left->get()->standing.store(board_standing::none, std::memory_order_relaxed);
    *left = {};
}

} // namespace gpusm
