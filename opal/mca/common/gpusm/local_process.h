// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// local_process.h: what gpusm has once in a process, whichever component comes first: the segment
// and the peers (node), the devices, exports and mappings (gpu_side), and to whom device memory is
// offered. Two of them would map the same memory twice, which the driver does not let them do in
// two contexts, and each would keep freed memory taken.
#ifndef GPUSM_LOCAL_PROCESS_H
#define GPUSM_LOCAL_PROCESS_H

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/device_offers.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/message_services.h"
#include "opal/mca/common/gpusm/settings.h"
#include "opal/mca/common/gpusm/shm/board.h"
#include "opal/mca/common/gpusm/shm/node.h"
#include "opal/mca/common/gpusm/sync_check.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

namespace gpusm {

class local_process {
  public:
    // The one of this process, made with `set` if there is none; else what is there, whose settings
    // are those of the first. Each call is to be followed by a release(). Null: *why says why.
    static local_process *acquire(const settings &set, std::string *why);
    // The same where there is one already; else null.
    static local_process *acquire_if_made();
    // The last one ends it.
    void release();

    local_process(const local_process &) = delete;
    local_process &operator=(const local_process &) = delete;

    // Any thread, each.
    node &own_node() { return node_; }
    device_offers &offers() { return offers_; }
    board_list &boards() { return boards_; }
    // Whether this process meets others in groups (process_group.h), for all to see. The first
    // decision stays; but see board_list::open.
    void decide_to_meet(bool meets);
    bool meets() const;
    // Made with the first call that finds a CUDA driver; null without one, or when the settings say
    // that devices are not to be used.
    gpu_side *gpu()
    {
        gpu_side *made = gpu_if_made();
        return made != nullptr ? made : make_gpu();
    }
    // Null as long as it has not been made.
    gpu_side *gpu_if_made() const { return gpu_.load(std::memory_order_acquire); }
    // Null unless the settings ask for it and there is a driver.
    sync_check *sync_checks() { return set_.check_sync ? make_sync_checks() : nullptr; }
    bool uses_devices() const { return set_.use_cuda_ipc; }
    // Whether the buffer (null: none) begins in device memory. `ask` is asked as long as there is
    // no GPU side, so that a process with host memory only makes no call of the driver for it.
    bool is_device_memory(const void *buffer, bool (*ask)(const void *)) const;

    // Who carries messages from now on; null: nobody. No call of the GPU side may be under way.
    void serve(message_services *messages);
    message_services *messages() const { return messages_.load(std::memory_order_acquire); }

  private:
    local_process(const settings &set, segment &&own);
    ~local_process();
    gpu_side *make_gpu();
    sync_check *make_sync_checks();

    const settings set_;
    node node_;
    device_offers offers_{*this};
    board_list boards_{node_.own()};
    optional_mutex lock_; // of the two below
    std::atomic<message_services *> messages_{nullptr};
    std::atomic<gpu_side *> gpu_{nullptr}; // owned
    std::once_flag checks_made_;
    std::unique_ptr<sync_check> checks_;
};

} // namespace gpusm

#endif
