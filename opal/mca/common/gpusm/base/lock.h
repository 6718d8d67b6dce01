// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/lock.h: locks that cost a store and predictable branches in a process with one thread.
#ifndef GPUSM_BASE_LOCK_H
#define GPUSM_BASE_LOCK_H

#include "opal/mca/common/gpusm/base/threads.h"

#include <atomic>

#include <pthread.h>
#include <sched.h>

namespace gpusm {

// A `Mutex` that is taken only where the process has threads (base/threads.h). Threads may begin
// while it is held without one: who comes then waits as for anybody else. Not recursive. Meets the
// standard's Lockable, so std::lock_guard and std::unique_lock work with it.
template <typename Mutex> class optional_lock {
  public:
    optional_lock() = default;
    optional_lock(const optional_lock &) = delete;
    optional_lock &operator=(const optional_lock &) = delete;

    // Where the process has one thread. False: it has several, and nothing has happened.
    bool lock_alone() { return !has_threads() && mark_alone(); }
    void lock()
    {
        if (!lock_alone()) {
            lock_among_threads();
        }
    }
    // False: somebody holds it; in a process with one thread that is who calls.
    bool try_lock()
    {
        if (!has_threads()) {
            if (alone_.load(std::memory_order_relaxed)) {
                return false;
            }
            if (mark_alone()) [[likely]] {
                return true;
            }
        }
        return try_lock_among_threads();
    }
    void unlock()
    {
        if (locked_) {
            locked_ = false;
            mutex_.unlock();
        } else {
            alone_.store(false, std::memory_order_release);
        }
    }

  private:
    // False: threads have begun just now.
    bool mark_alone()
    {
        alone_.store(true, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst); // see begin_threads
        if (!has_threads()) [[likely]] {
            return true;
        }
        alone_.store(false, std::memory_order_relaxed);
        return false;
    }
    [[gnu::noinline]] void lock_among_threads()
    {
        begin_threads();
        mutex_.lock();
        while (alone_.load(std::memory_order_acquire)) {
            (void)sched_yield();
        }
        locked_ = true;
    }
    [[gnu::noinline]] bool try_lock_among_threads()
    {
        begin_threads();
        if (!mutex_.try_lock()) {
            return false;
        }
        if (alone_.load(std::memory_order_acquire)) {
            mutex_.unlock();
            return false;
        }
        locked_ = true;
        return true;
    }

    Mutex mutex_;
    bool locked_ = false;            // the mutex is; its holder's
    std::atomic<bool> alone_{false}; // held by the only thread, which has not taken the mutex
};

class system_mutex {
  public:
    system_mutex() = default;
    ~system_mutex() { (void)pthread_mutex_destroy(&mutex_); }
    system_mutex(const system_mutex &) = delete;
    system_mutex &operator=(const system_mutex &) = delete;

    void lock() { (void)pthread_mutex_lock(&mutex_); }
    bool try_lock() { return 0 == pthread_mutex_trylock(&mutex_); }
    void unlock() { (void)pthread_mutex_unlock(&mutex_); }

  private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};
using optional_mutex = optional_lock<system_mutex>;

// For what one thread at a time does, and nobody waits for.
class try_flag {
  public:
    bool try_lock()
    {
        return !taken_.load(std::memory_order_relaxed) &&
               !taken_.exchange(true, std::memory_order_acquire);
    }
    void unlock() { taken_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> taken_{false};
};
using optional_flag = optional_lock<try_flag>;

} // namespace gpusm

#endif
