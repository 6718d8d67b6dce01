// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/pageable_memory.h: host memory of which the driver has said that nobody has page-locked it,
// so that it need not be asked each time: that takes more than a microsecond, and programs use
// their buffers again. The program may have page-locked it since. So this is for those who then do
// no harm but take longer, and it is believed a few times only.
#ifndef GPUSM_GPU_PAGEABLE_MEMORY_H
#define GPUSM_GPU_PAGEABLE_MEMORY_H

#include "opal/mca/btl/gpusm/base/mixed.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Thread-safe. What has the place of something newer is forgotten.
class pageable_memory {
  public:
    // How often it is believed.
    static constexpr std::uint64_t times = 15;

    // Is this memory, from its first to its last byte, known to be such? One time less, if so.
    bool is_known(std::uint64_t address, std::size_t len_bytes)
    {
        const std::uint64_t wanted = mixed_memory(address, len_bytes);
        std::atomic<std::uint64_t> &at = places_[place_of(wanted)];
        const std::uint64_t found = at.load(std::memory_order_relaxed);
        if ((wanted & ~left_mask) != (found & ~left_mask) || 0 == (found & left_mask)) {
            return false;
        }
        // Another thread's may get lost; then it is believed once more.
        at.store(found - 1, std::memory_order_relaxed);
        return true;
    }

    // The driver has said so.
    void note(std::uint64_t address, std::size_t len_bytes)
    {
        const std::uint64_t memory = mixed_memory(address, len_bytes);
        places_[place_of(memory)].store((memory & ~left_mask) | times, std::memory_order_relaxed);
    }

  private:
    static constexpr unsigned place_bits = 8;
    static constexpr std::uint64_t left_mask = times;
    static_assert(0 == (times & (times + 1)), "all ones");

    static std::size_t place_of(std::uint64_t memory) { return memory >> (64 - place_bits); }

    // The hash of what is known, and in its lower bits how often it is still believed.
    std::array<std::atomic<std::uint64_t>, std::size_t{1} << place_bits> places_{};
};

} // namespace gpusm

#endif
