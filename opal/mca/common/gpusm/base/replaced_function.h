// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/replaced_function.h: a function of ours for a time in the place of another one, in a table
// through which others call it.
#ifndef GPUSM_BASE_REPLACED_FUNCTION_H
#define GPUSM_BASE_REPLACED_FUNCTION_H

#include <atomic>

namespace gpusm {

// put() and take_back() one thread at a time, the rest by any thread.
template <typename Function> class replaced_function {
  public:
    // Unless ours stands there already, or under what somebody else has put there since.
    void put(Function **entry, Function *ours)
    {
        if (!stands()) {
            original_.store(std::atomic_ref(*entry).load(std::memory_order_acquire),
                            std::memory_order_release);
            stands_.store(true, std::memory_order_relaxed);
            std::atomic_ref(*entry).store(ours, std::memory_order_release);
        }
    }
    // Unless somebody else has put another one there.
    void take_back(Function **entry, Function *ours)
    {
        Function *expected = ours;
        if (stands() && std::atomic_ref(*entry).compare_exchange_strong(
                            expected, original_.load(std::memory_order_relaxed))) {
            stands_.store(false, std::memory_order_relaxed);
        }
    }
    bool stands() const { return stands_.load(std::memory_order_relaxed); }
    // What stood there before. It stays when ours is taken back: who has read the table before that
    // may call ours after it.
    Function *original() const { return original_.load(std::memory_order_acquire); }

  private:
    std::atomic<Function *> original_{nullptr};
    std::atomic<bool> stands_{false};
};

} // namespace gpusm

#endif
