// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/host_messages.h: do all host messages of middle lengths go to host memory? Then they may go
// in two copies, which they had better not into a device. Their sender knows it of those that it
// has offered for single copies, and whose receiver has not asked for pieces by the time that it
// is done with them.
#ifndef GPUSM_SHM_HOST_MESSAGES_H
#define GPUSM_SHM_HOST_MESSAGES_H

#include <cstddef>
#include <cstdint>

namespace gpusm {

// Not thread-safe. Lengths are in bytes, with all headers.
class host_messages {
  public:
    host_messages() = default; // looks at nothing
    // Of those beyond `from_bytes`, up to `to_bytes`.
    host_messages(std::size_t from_bytes, std::size_t to_bytes)
        : from_bytes_(from_bytes), to_bytes_(to_bytes)
    {
    }

    std::size_t to_bytes() const { return to_bytes_; }

    // A message was offered for a single copy, and so many others still are. True, once: all of
    // enough messages have gone to host memory.
    bool offered(std::size_t bytes, std::uint32_t others)
    {
        if (bytes <= from_bytes_ || bytes > to_bytes_) {
            return false;
        }
        constexpr std::uint32_t enough = 64;
        if (++offered_ < others + enough) {
            return false;
        }
        stop();
        return true;
    }

    // One has gone to a device, and others will: nothing is looked at any more.
    void stop() { from_bytes_ = SIZE_MAX; }

  private:
    std::size_t from_bytes_ = SIZE_MAX;
    std::size_t to_bytes_ = 0;
    std::uint32_t offered_ = 0;
};

} // namespace gpusm

#endif
