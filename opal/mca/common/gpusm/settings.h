// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// settings.h: what the component that makes a process's gpusm tells it: parameters of the user's,
// which have their meanings, ranges and defaults there, and who this process is.
#ifndef GPUSM_SETTINGS_H
#define GPUSM_SETTINGS_H

#include "opal/mca/common/gpusm/gpu/copy_choice.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpusm {

inline constexpr std::uint32_t default_fifo_size = 1024; // messages
inline constexpr std::uint32_t default_fast_box_max = 32;
// More than it takes a process to come into MPI that waits for a short kernel of its own, while the
// device changes between the processes.
inline constexpr std::uint32_t default_delegate_wait_us = 1000;

struct settings {
    // The segment.
    std::string backing_directory = "/dev/shm";
    std::uint32_t jobid = 0;
    std::uint32_t vpid = 0;
    std::uint32_t expected_peers = 1; // with this process; memory comes as others do
    std::uint32_t fifo_size = default_fifo_size;
    std::uint32_t fast_box_max = default_fast_box_max;
    std::size_t segment_bytes = 0; // upper bound; 0: what `content_bytes` and the rest come to
    std::size_t content_bytes = 0; // of what components will put into it

    // Devices.
    bool use_cuda_ipc = true;
    bool use_cuda_events = false;
    bool register_segments = true;
    std::size_t cache_max_bytes = 0; // 0: no bound
    std::uint32_t kernel_blocks = copy_limits{}.kernel_blocks;
    bool use_batch_copies = copy_limits{}.batches;
    std::uint32_t delegate_wait_us = default_delegate_wait_us; // 0: never
    bool check_sync = false; // sync_check.h
};

} // namespace gpusm

#endif
