// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/pageable_memory.h: host memory of which the driver has said that nobody has page-locked it,
// so that it need not be asked for each message of a window: that takes more than a microsecond.
// The program may have page-locked it since, or other memory at its address. So this is for those
// who then do no harm but take longer, and it is believed for a millisecond only.
#ifndef GPUSM_GPU_PAGEABLE_MEMORY_H
#define GPUSM_GPU_PAGEABLE_MEMORY_H

#include "opal/mca/btl/gpusm/base/mixed.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Thread-safe. Times are in nanoseconds of one clock that does not go back. What has the place of
// something newer is forgotten.
class pageable_memory {
  public:
    // About how long it is believed.
    static constexpr std::uint64_t believed_ns = 1000000;

    // Is this memory, from its first to its last byte, known to be such?
    bool is_known(std::uint64_t address, std::size_t len_bytes, std::uint64_t now_ns) const
    {
        const std::uint64_t memory = mixed_memory(address, len_bytes);
        const std::uint64_t found =
            places_[place_of_mixed(memory, place_bits)].load(std::memory_order_relaxed);
        const std::uint32_t age = ticks(now_ns) - static_cast<std::uint32_t>(found);
        return found != 0 && found >> 32 == memory >> 32 && age <= ticks(believed_ns);
    }

    // The driver has said so.
    void note(std::uint64_t address, std::size_t len_bytes, std::uint64_t now_ns)
    {
        const std::uint64_t memory = mixed_memory(address, len_bytes);
        places_[place_of_mixed(memory, place_bits)].store(memory >> 32 << 32 | ticks(now_ns),
                                                          std::memory_order_relaxed);
    }

  private:
    static constexpr unsigned place_bits = 8;
    // They come round after an hour. What has been found then by chance is believed once more.
    static constexpr std::uint32_t ticks(std::uint64_t ns)
    {
        return static_cast<std::uint32_t>(ns / 1024);
    }

    // Half of the hash of what is known, and when that was said, in ticks; 0: nothing.
    std::atomic<std::uint64_t> places_[std::size_t{1} << place_bits] = {};
};

} // namespace gpusm

#endif
