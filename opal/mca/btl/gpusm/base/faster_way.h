// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/faster_way.h: which of two ways to do the same is faster, where that changes with what the
// program does: both are tried now and then, in turns.
#ifndef GPUSM_BASE_FASTER_WAY_H
#define GPUSM_BASE_FASTER_WAY_H

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Not thread-safe. One step is one use of either way.
class faster_way {
  public:
    // Is this step to go by the second way?
    bool is_second() const { return is_trial() ? 0 != step_ % 2 : second_is_faster_; }
    // Is it to be timed?
    bool is_trial() const { return step_ < trials; }

    // The step is over. What it took counts if it was a trial, in any unit that does not depend on
    // its length.
    void took(std::uint64_t cost)
    {
        if (is_trial()) {
            costs_[step_ % 2][step_ / 2] = cost;
            if (step_ + 1 == trials) {
                second_is_faster_ = median(costs_[1]) < median(costs_[0]);
            }
        }
        step_ = (step_ + 1) % steps;
    }

  private:
    // Three of each, as one may have been interrupted; and seldom, as the slower way may leave the
    // caches so that the steps after it are slow, too.
    static constexpr std::size_t trials = 6;
    static constexpr std::size_t steps = 256;
    using of_one_way = std::array<std::uint64_t, trials / 2>;

    static std::uint64_t median(of_one_way costs)
    {
        std::nth_element(costs.begin(), costs.begin() + costs.size() / 2, costs.end());
        return costs[costs.size() / 2];
    }

    std::size_t step_ = 0;
    bool second_is_faster_ = false;
    std::array<of_one_way, 2> costs_{};
};

} // namespace gpusm

#endif
