// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/descriptor_wait.h: waiting for the file descriptors that a mapping needs, by whoever asks
// again and again.
#ifndef GPUSM_IPC_DESCRIPTOR_WAIT_H
#define GPUSM_IPC_DESCRIPTOR_WAIT_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/ipc/fd_passing.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <chrono>
#include <cstdint>
#include <memory>

namespace gpusm {

class descriptor_wait {
  public:
    // To be called after each import that is `not_ready`. `busy`: the import is to be tried again
    // after progress; `unsupported`: the descriptors do not come.
    status after_import(fd_passing &by, std::uint32_t owner, const remote_handle &handle)
    {
        if (nullptr == has_come_) {
            has_come_ = std::make_shared<bool>(false);
            give_up_ = clock::now() + std::chrono::seconds(10);
            const auto come = [flag = has_come_] { *flag = true; };
            return by.ask(owner, handle, come) ? status::busy : status::unsupported;
        }
        // Once they have come, they should have helped.
        return !*has_come_ && clock::now() < give_up_ ? status::busy : status::unsupported;
    }
    void end() { has_come_ = nullptr; }

  private:
    using clock = std::chrono::steady_clock;

    std::shared_ptr<bool> has_come_; // null: not asked for
    clock::time_point give_up_{};
};

} // namespace gpusm

#endif
