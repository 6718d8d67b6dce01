// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/driver_executor.h: copies by the driver, one call each or one call for all, with an event
// behind them.
#ifndef GPUSM_GPU_DRIVER_EXECUTOR_H
#define GPUSM_GPU_DRIVER_EXECUTOR_H

#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/gpu/executor.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

// On one device. Not thread-safe: the caller holds its GPU lock.
class driver_executor {
  public:
    // `most_copies`: in one list. *usable, which all devices share: the batch is taken out of it
    // when the driver says that it has no such call.
    driver_executor(const driver_api &driver, const device &on, std::size_t most_copies,
                    copy_ways *usable);
    driver_executor(const driver_executor &) = delete;
    driver_executor &operator=(const driver_executor &) = delete;
    ~driver_executor() = default; // close() comes first

    // Makes further streams until it has `most`; what the driver does not give is done without.
    // Under the device's context.
    void open(std::size_t most);
    // Gives them back. Under the device's context.
    void close();
    // Gives back what it keeps in a completion. Under the device's context.
    void forget(completion *end);

    // How many it has. The first one is the device's own.
    std::uint32_t streams() const { return static_cast<std::uint32_t>(streams_.size()); }
    // Which one was used last.
    std::uint32_t turn() const { return turn_; }

    // Starts the copies of *list on the stream `turn`: `as_batch` in one call where the driver
    // takes it, otherwise one by one. Moves those that the driver refuses into *failed.
    // Does not answer `refused`.
    start_answer start(bool as_batch, std::uint32_t turn, copy_list *list, copy_list *failed,
                       completion *end);

    // The event, where the round allows it.
    status ask(completion *end, ask_round *round)
    {
        return round->is_to_ask(end->turn) ? ask_now(*end) : status::busy;
    }

  private:
    CUresult start_as_batch(CUstream stream, const copy_list &list);
    bool start_alone(CUstream stream, const copy_request &request);
    status ask_now(const completion &end);

    const driver_api &driver_;
    const device &on_;
    copy_ways &usable_;
    std::vector<CUstream> streams_;
    std::uint32_t turn_ = 0;
    // Arguments of a batch call; their room is made once.
    std::vector<CUdeviceptr> destinations_;
    std::vector<CUdeviceptr> sources_;
    std::vector<std::size_t> sizes_;
};

} // namespace gpusm

#endif
