// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// packed_memory.h: device memory for the packed bytes of messages whose buffers have gaps. Each
// block is an allocation of its own, which peers can map, of few lengths, and is used again: so its
// export and their mappings stay.
#ifndef GPUSM_PACKED_MEMORY_H
#define GPUSM_PACKED_MEMORY_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace gpusm {

struct packed_block {
    device *on = nullptr; // null: there is none
    std::uint64_t address = 0;
    std::size_t len_bytes = 0;
};

// Not thread-safe: the caller holds its GPU lock.
class packed_memory {
  public:
    // Of one device, taken and free.
    static constexpr std::size_t most_bytes = std::size_t{256} << 20;

    // A block has a power of two of bytes, of `least_bytes` or more: shorter ones than the default
    // share a page of the device's memory with others anyway.
    explicit packed_memory(const driver_api &driver, std::size_t least_bytes = 64 * 1024)
        : driver_(driver), least_bytes_(least_bytes)
    {
    }
    // All must have been given back. Waits for the context's work.
    ~packed_memory();
    packed_memory(const packed_memory &) = delete;
    packed_memory &operator=(const packed_memory &) = delete;

    // At least `bytes` on that device. `on` is null: there is no memory, or not within the bound.
    packed_block take(device &on, std::size_t bytes);
    void give(const packed_block &block);
    // Frees what nobody has taken. Waits for kernels that run there.
    void shrink(const device &on);

  private:
    struct on_device {
        std::vector<packed_block> free;
        std::size_t len_bytes = 0; // of all blocks
        reach memory;
    };
    on_device &of(const device &on);

    const driver_api &driver_;
    const std::size_t least_bytes_;
    std::deque<on_device> devices_; // by device::index
};

} // namespace gpusm

#endif
