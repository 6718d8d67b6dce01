// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_process.h: what add_procs tells of a peer's process, while other threads poll.
#ifndef BTL_GPUSM_PROCESS_H
#define BTL_GPUSM_PROCESS_H

#include <atomic>

namespace gpusm {

// `Process`: as the caller knows it. One thread at a time tells and withdraws.
template <typename Process> class known_process {
  public:
    // Null until something has been told, and after it was withdrawn.
    Process *get() const { return process_.load(std::memory_order_acquire); }
    // It is in our PID namespace. For who has seen it.
    bool shares_pids() const { return shares_pids_; }

    void tell(Process *process, bool shares_pids)
    {
        if (!told_) { // a process stays where it is, and others may be reading this
            told_ = true;
            shares_pids_ = shares_pids;
        }
        process_.store(process, std::memory_order_release); // pairs with get
    }
    void withdraw() { process_.store(nullptr, std::memory_order_relaxed); }

  private:
    std::atomic<Process *> process_{nullptr};
    bool shares_pids_ = false; // stored before `process_`
    bool told_ = false;
};

} // namespace gpusm

#endif
