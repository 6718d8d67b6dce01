// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/row_search.h: what message_rows.h, device_rows.h and written_messages.h have in common:
// messages are judged a block at a time, and rows of their kind that soon turn out to be over are
// looked for more and more seldom.
#ifndef GPUSM_SHM_ROW_SEARCH_H
#define GPUSM_SHM_ROW_SEARCH_H

#include <algorithm>
#include <cstdint>

namespace gpusm {

// So many other messages under way at once are a row.
inline constexpr std::uint32_t others_in_row = 4;

class message_block {
  public:
    static constexpr std::uint32_t messages = 64;

    // One more message; true when the block is complete, which hits() is about then.
    bool add(bool hit)
    {
        hits_ += hit ? 1 : 0;
        return ++looked_at_ == messages;
    }
    std::uint32_t hits() const { return hits_; }
    void begin() { looked_at_ = hits_ = 0; }

  private:
    std::uint32_t looked_at_ = 0;
    std::uint32_t hits_ = 0;
};

// Says when to look for rows. What is waited for is counted by the caller.
class row_search {
  public:
    // Waits for `first` after a row of more than `long_row` messages, and for twice as many as
    // before after a shorter one, up to `last`.
    row_search(std::uint32_t first, std::uint32_t last, std::uint32_t long_row)
        : first_(first), last_(last), long_row_(long_row), next_wait_(first / 2)
    {
    }

    // One more of what is waited for. True: it is too early.
    bool is_waiting()
    {
        if (0 == wait_for_) {
            return false;
        }
        --wait_for_;
        return true;
    }
    void wait_at_least_first() { wait_for_ = std::max(wait_for_, first_); }

    void row_begins() { row_ = 0; }
    void row_goes_on() { ++row_; }
    void row_ends()
    {
        next_wait_ = row_ > long_row_ ? first_ : std::min(2 * next_wait_, last_);
        wait_for_ = next_wait_;
    }

  private:
    std::uint32_t first_;
    std::uint32_t last_;
    std::uint32_t long_row_;
    std::uint32_t next_wait_;
    std::uint32_t wait_for_ = 0;
    std::uint32_t row_ = 0; // messages of this row
};

} // namespace gpusm

#endif
