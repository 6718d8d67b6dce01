// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/executor.h: what an executor is. It carries out copies on one device: it is told a list of
// them and on which of its streams, starts them, and fills in a completion, which can be asked for
// their end. It does not know why these copies go together, nor of other executors.
//
//   start_answer start(turn, list, ..., completion)  under the device's context; allocates nothing
//   status ask(completion, ...)                      any context; `ok`, `driver_failed`, or `busy`:
//                                                    not yet
//   void close(...)                                  gives back what it has made
//
// There are no virtual calls: gpu/executors.h has a switch. Another executor takes these five
// files, besides its tests:
//
//   gpu/copy_choice.h               its name in copy_way, and when it is chosen
//   gpu/<name>_executor.h and .cc   itself
//   gpu/executors.h                 a member, and a case in each switch
//   Makefile.am                     its files
//
// What it is to know about a copy beyond the addresses is a member of copy_request. The engine
// counts its submissions; a performance variable for them is the component's.
#ifndef GPUSM_GPU_EXECUTOR_H
#define GPUSM_GPU_EXECUTOR_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/copy_choice.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <chrono>
#include <cstdint>

namespace gpusm {

enum class start_answer : std::uint8_t {
    started, // something is in flight, of which the completion tells
    refused, // nothing was started, and another executor may be told the same
    failed,  // nothing is in flight, and the copies have failed
};

// How the end of copies that were started together is seen. Filled in by who starts them, and in
// use until asking has given another answer than `busy`; then it can be used again, by whoever.
struct completion {
    using clock = std::chrono::steady_clock;

    std::uint32_t slot =
        0; // given: no two in flight on a device have the same; < copy_limits::depth
    copy_way way = copy_way::single; // in which they were started
    CUstream stream = nullptr;       // where
    // Of the driver's copies: recorded behind them. Made by the first that needs it, and kept.
    CUevent event = nullptr;
    std::uint32_t turn = 0; // index of that stream
    // Of a kernel, whose end is seen by a flag.
    std::uint32_t looks = 0;    // at it, since the driver was asked
    clock::time_point asked{};  // the driver, for the first time
    bool within_device = false; // the oldest of its copies
};

// A round of questions about all that is in flight on a device. What the driver's own copies do in
// one stream ends in order, so that one question about it is enough.
class ask_round {
  public:
    // `may_ask`: otherwise no question at all goes to the driver about its own copies.
    explicit ask_round(bool may_ask) : may_ask_(may_ask) {}

    // Is the driver to be asked about something in that stream? Counts as asked.
    bool is_to_ask(std::uint32_t turn)
    {
        const std::uint32_t bit = 1U << turn;
        const bool is_first = 0 == (asked_ & bit);
        asked_ |= bit;
        return may_ask_ && is_first;
    }

  private:
    const bool may_ask_;
    std::uint32_t asked_ = 0; // a bit for each stream
};

constexpr bool ends_by_flag(copy_way way)
{
    return copy_way::kernel == way || copy_way::strided == way;
}

// What the driver says about a completion: about its event or, of a kernel, its stream. What runs
// in a context that is gone ends with it. Not all errors end what runs, and it must not run when it
// is handed back: after one the stream has been waited for.
inline CUresult ask_driver(const driver_api &driver, const device &on, const completion &end)
{
    const driver_scope scope(driver, on.context);
    if (!scope.entered()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const CUresult result =
        ends_by_flag(end.way) ? driver.stream_query(end.stream) : driver.event_query(end.event);
    if (CUDA_SUCCESS != result && CUDA_ERROR_NOT_READY != result) {
        (void)driver.stream_synchronize(end.stream);
    }
    return result;
}

// The end of copies, good or bad, as the driver tells it.
inline status report_end(const driver_api &driver, CUresult result)
{
    return driver.report("a copy from a peer's device memory", result);
}

} // namespace gpusm

#endif
