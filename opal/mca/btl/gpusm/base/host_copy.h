// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/host_copy.h: copies by the processor between the program's memory and small rings that a
// device reads or writes.
#ifndef GPUSM_BASE_HOST_COPY_H
#define GPUSM_BASE_HOST_COPY_H

#include "opal/mca/btl/gpusm/base/faster_way.h"

#include <cstddef>

namespace gpusm {

// Into a ring that stays in the cache, from memory that may not be in it.
void copy_into_ring(void *to, const void *from, std::size_t len_bytes) noexcept;

// Out of such rings. A long message into memory that the cache does not hold is copied past the
// cache where that is faster: its lines are written without being read first, and do not push the
// ring out. Not thread-safe.
class copies_out_of_rings {
  public:
    // A part of a message of message_bytes. All of it is visible to others before what the caller
    // writes next.
    void copy(void *to, const void *from, std::size_t len_bytes,
              std::size_t message_bytes) noexcept;

  private:
    faster_way way_; // the second is past the cache
};

// The second of these ways.
void copy_past_cache(void *to, const void *from, std::size_t len_bytes) noexcept;

} // namespace gpusm

#endif
