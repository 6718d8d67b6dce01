// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/base/threads.h"

#include <ctime>
#include <utility>

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpusm {

namespace {

constexpr bool no_threads = false;

bool membarrier(membarrier_cmd command)
{
    return 0 == syscall(SYS_membarrier, command, 0, 0);
}

} // namespace

const bool *threads_flag = &no_threads;
std::atomic<bool> threads_have_begun{false};

void watch_threads(const bool *flag)
{
    const bool *const at = nullptr == flag ? &no_threads : flag;
    if (at != std::exchange(threads_flag, at)) {
        threads_have_begun.store(has_threads(), std::memory_order_relaxed);
    }
}

void begin_threads_once()
{
    // A store and a load behind it, of another address, are kept in order by a barrier in the
    // thread that makes them, which would have to be there for every message. This call is one in
    // all threads of the process. A sandbox may forbid it; a processor does not hold a store back
    // for a hundredth of a second.
    if (!(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
          membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) &&
        !membarrier(MEMBARRIER_CMD_GLOBAL)) {
        const timespec longer_than_a_store{0, 10'000'000};
        (void)nanosleep(&longer_than_a_store, nullptr);
    }
    threads_have_begun.store(true, std::memory_order_release);
}

} // namespace gpusm
