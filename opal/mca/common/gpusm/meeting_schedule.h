// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// meeting_schedule.h: in which of its collective calls a group meets to tell what memory each has.
// The first, second, fourth, eighth one and so on, so that a program that only has host memory pays
// nothing. When somebody has device memory the group meets in each of the next calls, until nobody
// has had any in `patience` of them in a row.
#ifndef GPUSM_MEETING_SCHEDULE_H
#define GPUSM_MEETING_SCHEDULE_H

#include <algorithm>
#include <cstdint>

namespace gpusm {

// The same on all ranks, as all make the same calls and are told the same.
class meeting_schedule {
  public:
    static constexpr std::uint32_t patience = 16;
    static constexpr std::uint32_t longest_gap = 1U << 20;

    // To be asked once in every call.
    bool is_due()
    {
        if (0 == skips_) {
            return true;
        }
        --skips_;
        return false;
    }
    // After each meeting.
    void met(bool anyone_on_device)
    {
        if (anyone_on_device) {
            left_ = patience;
            gap_ = 1;
        } else if (left_ > 1) {
            --left_;
        } else {
            left_ = 0;
            skips_ = gap_ - 1;
            gap_ = std::min(2 * gap_, longest_gap);
        }
    }

  private:
    std::uint32_t skips_ = 0; // calls without a meeting before the next one
    std::uint32_t gap_ = 1;   // from one meeting to the one after the next
    std::uint32_t left_ = 0;  // of the patience
};

} // namespace gpusm

#endif
