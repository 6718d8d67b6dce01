// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduction_work.h: of one process's call of a collective reduction, what has to do with device
// memory: what it tells the others of its own, what it maps of theirs, and the kernel.
#ifndef GPUSM_REDUCTION_WORK_H
#define GPUSM_REDUCTION_WORK_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/executor.h"
#include "opal/mca/common/gpusm/gpu/reducer.h"
#include "opal/mca/common/gpusm/gpu_side.h"
#include "opal/mca/common/gpusm/reduction_call.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace gpusm {

enum class memory_told : std::uint32_t {
    host = 1,   // or device memory that nobody else can map
    device = 2, // that the handles name
};

// What each process tells the others. Read as a peer's word.
struct reduction_told {
    memory_told memory;
    reduction_kind kind;
    reduce_op op;
    reduce_type type;
    device_uuid device;     // where the buffers are
    std::uint8_t on_device; // not 0: it is device memory, though `memory` may say host
    std::uint64_t elements;
    std::uint64_t root;
    std::uint64_t source; // address of the input in its process
    remote_handle source_in;
    std::uint64_t target; // of the result, where others write it
    remote_handle target_in;
};
static_assert(sizeof(reduction_told) <= board_said_bytes &&
              std::is_trivially_copyable_v<reduction_told>);

// The caller holds the GPU lock for each call but release().
struct reduction_work {
    struct member {
        reduction_told says;
        mapping *source = nullptr; // null: not needed, or not yet
        mapping *target = nullptr;
        std::uint64_t source_here = 0; // addresses in this process
        std::uint64_t target_here = 0;
    };
    using clock = std::chrono::steady_clock;

    gpu_side *side = nullptr;
    device *on = nullptr; // this process's buffers are there; null: they are not on one device
    exported *source = nullptr;
    exported *target = nullptr;
    std::vector<member> members;
    std::size_t mapped = 0;            // members before that one
    std::shared_ptr<bool> descriptors; // asked for; true: an answer has come
    clock::time_point give_up{};       // waiting for them
    std::vector<CUevent> events;
    reduction what{};
    completion end;
    bool is_launched = false;
    unsigned refusals = 0; // of launches, in a row

    // Fills in what of *out is about memory. Anything but `ok`: others cannot map it.
    status describe(const reduction_call &call, std::size_t rank, reduction_told *out);
    // Where [address, address + bytes) of another process is in this one; *out is the mapping. Does
    // nothing if there is one. `busy`: not yet; else it cannot be had.
    status map(peer &from, const remote_handle &handle, std::uint64_t address, std::uint64_t bytes,
               mapping **out, std::uint64_t *here);
    // Starts the kernel for this rank's part. Unless it is `ok` nothing has been started.
    status launch(const reduction_call &call, std::size_t rank);
    // Gives back exports and mappings. No kernel is in flight.
    void release();

  private:
    status find_device(const void *buffer);
    status offer(const void *buffer, std::uint64_t bytes, exported **out, remote_handle *handle);
};

} // namespace gpusm

#endif
