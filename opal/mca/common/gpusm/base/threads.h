// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/threads.h: whether several threads of this process may call at the same time. With sessions
// that can begin at any moment: when a session with MPI_THREAD_MULTIPLE starts beside one without,
// while the only thread so far is inside a call.
#ifndef GPUSM_BASE_THREADS_H
#define GPUSM_BASE_THREADS_H

#include <atomic>

namespace gpusm {

// Where it is said, and whether every thread sees what others stored before it was; for the
// functions below only.
extern const bool *threads_flag;
extern std::atomic<bool> threads_have_begun;

// From now on has_threads() is what stands at `flag`, which others may set at any time and never
// take back; null: no. Before anything is locked; the same flag once more changes nothing.
void watch_threads(const bool *flag);

inline bool has_threads()
{
    return __atomic_load_n(threads_flag, __ATOMIC_RELAXED);
}

// The only thread so far stores that it is inside something, and then asks has_threads(). If
// another thread, for which has_threads() is true, calls this and then looks for what the first one
// stores, at least one of the two sees the other. It costs nothing after the first time.
void begin_threads_once();
inline void begin_threads()
{
    if (!threads_have_begun.load(std::memory_order_acquire)) [[unlikely]] {
        begin_threads_once();
    }
}

// A number that every thread may add to: at the price of a plain addition as long as there is one
// thread. What that one is just adding when the threads begin is not lost.
template <typename Number> class tally {
  public:
    void add(Number amount)
    {
        if (has_threads()) {
            by_threads_.fetch_add(amount, std::memory_order_relaxed);
        } else {
            alone_.store(static_cast<Number>(alone_.load(std::memory_order_relaxed) + amount),
                         std::memory_order_relaxed);
        }
    }
    Number value() const
    {
        return static_cast<Number>(alone_.load(std::memory_order_relaxed) +
                                   by_threads_.load(std::memory_order_relaxed));
    }

  private:
    std::atomic<Number> alone_{0};
    std::atomic<Number> by_threads_{0};
};

} // namespace gpusm

#endif
