// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_requests.h: requests of operations such as MPI_Rput, while their copies are under way.
#ifndef GPUSM_OSC_REQUESTS_H
#define GPUSM_OSC_REQUESTS_H

#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"

#include "opal/mca/common/gpusm/window_copies.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace gpusm {

struct window_request : ompi_request_t {
    window_pending *pending; // owned

    // Or it has failed, which it tells as others do.
    bool is_under_way() const
    {
        return 0 != pending->copies.load(std::memory_order_acquire) ||
               pending->has_failed.load(std::memory_order_relaxed);
    }
};

// Those that are active. Any thread.
class window_requests {
  public:
    window_requests() = default;
    window_requests(const window_requests &) = delete;
    window_requests &operator=(const window_requests &) = delete;

    // One whose pending copies nobody counts yet. Null: there is no memory.
    window_request *make();
    // Nothing of it is under way.
    void drop(window_request *request);
    // Its copies are under way: gives the program's request.
    void start(window_request *request, ompi_win_t *win, ompi_request_t **out);
    // Completes those whose copies have ended. True: there were some.
    bool progress();
    // Completes all, whose copies have ended or are about to.
    void finish();

  private:
    std::mutex mutex_;
    std::vector<window_request *> active_;
    std::atomic<std::size_t> count_{0}; // of active_, to look at without the lock
};

} // namespace gpusm

#endif
