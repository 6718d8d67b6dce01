// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/lock.h: a mutex that costs one predictable branch in a program with one thread.
#ifndef GPUSM_BASE_LOCK_H
#define GPUSM_BASE_LOCK_H

#include <pthread.h>

namespace gpusm {

// Locks only when the process asked for MPI_THREAD_MULTIPLE, which is known before the first
// message. Meets the standard's Lockable, so std::lock_guard and std::unique_lock work
// with it.
class optional_mutex {
  public:
    explicit optional_mutex(bool threads) : threads_(threads) {}
    ~optional_mutex() { (void)pthread_mutex_destroy(&mutex_); }
    optional_mutex(const optional_mutex &) = delete;
    optional_mutex &operator=(const optional_mutex &) = delete;

    bool threads() const { return threads_; }

    void lock()
    {
        if (threads_) {
            (void)pthread_mutex_lock(&mutex_);
        }
    }
    bool try_lock() { return !threads_ || 0 == pthread_mutex_trylock(&mutex_); }
    void unlock()
    {
        if (threads_) {
            (void)pthread_mutex_unlock(&mutex_);
        }
    }

  private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    const bool threads_;
};

} // namespace gpusm

#endif
