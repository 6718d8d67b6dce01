// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/executors.h: the executors of one device, by the way that they copy.
#ifndef GPUSM_GPU_EXECUTORS_H
#define GPUSM_GPU_EXECUTORS_H

#include "opal/mca/common/gpusm/gpu/driver_executor.h"
#include "opal/mca/common/gpusm/gpu/kernel_executor.h"
#include "opal/mca/common/gpusm/gpu/strided_executor.h"

#include <cstdint>

namespace gpusm {

// Not thread-safe: the caller holds its GPU lock. Allocates nothing once it is open and the kernel
// is loaded.
class executors {
  public:
    // *usable: see driver_executor.
    executors(const driver_api &driver, const device &on, const copy_limits &limits,
              copy_ways *usable)
        : streams_(limits.streams), by_driver_(driver, on, limits.batch_copies, usable),
          by_kernel_(driver, on, limits), strided_(driver, on, limits)
    {
    }

    // Under the device's context, as load() and start().
    void open() { by_driver_.open(streams_); }
    // Makes what is worth making before the first copy, but waits for kernels that run.
    void load() { (void)by_kernel_.load(); }

    // For copies of memory with gaps, as those above.
    bool load_strided() { return strided_.is_ready(); }
    status copy_now(const strided_copy &copy, CUevent wait_for)
    {
        return strided_.copy_now(copy, wait_for);
    }

    // Tells the one that is decided on. Copies that have failed while others are started are moved
    // into *failed.
    start_answer start(const copy_decision &to, copy_list *list, copy_list *failed, completion *end)
    {
        switch (to.way) {
        case copy_way::single:
        case copy_way::batch:
            return by_driver_.start(copy_way::batch == to.way, to.turn, list, failed, end);
        case copy_way::kernel:
            return by_kernel_.start(to.turn, *list, end);
        case copy_way::strided:
            return strided_.start(to.turn, list, failed, end);
        case copy_way::count:
            break;
        }
        return start_answer::failed;
    }

    // Has what was started ended? `busy`: not yet.
    status ask(completion *end, ask_round *round)
    {
        switch (end->way) {
        case copy_way::single:
        case copy_way::batch:
            return by_driver_.ask(end, round);
        case copy_way::kernel:
            return by_kernel_.ask(end);
        case copy_way::strided:
            return strided_.ask(end);
        case copy_way::count:
            break;
        }
        return status::driver_failed;
    }

    // Which streams they have used last, for the next decision.
    void tell(copy_facts *facts) const
    {
        facts->driver_streams = by_driver_.streams();
        facts->driver_turn = by_driver_.turn();
        facts->kernel_turn = by_kernel_.turn();
        facts->strided_turn = strided_.turn();
    }

    // Gives everything back. Not in a context that has gone, and with it what was made there.
    void forget(completion *end) { by_driver_.forget(end); }
    void close(bool context_lives)
    {
        if (context_lives) {
            by_driver_.close();
        }
        by_kernel_.close(context_lives);
        strided_.close(context_lives);
    }

  private:
    const std::size_t streams_;
    driver_executor by_driver_;
    kernel_executor by_kernel_;
    strided_executor strided_;
};

} // namespace gpusm

#endif
