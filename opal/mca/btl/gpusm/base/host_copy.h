// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/host_copy.h: copies by the processor between the program's memory and small rings that a
// device reads or writes. memcpy does not know which side will be used again.
#ifndef GPUSM_BASE_HOST_COPY_H
#define GPUSM_BASE_HOST_COPY_H

#include <cstddef>

namespace gpusm {

// Into a ring that stays in the cache, from memory that may not be in it.
void copy_into_ring(void *to, const void *from, std::size_t len_bytes) noexcept;

// Out of a ring, a piece of a message of `message_bytes`. Of a long one the first bytes are out of
// the nearer caches when the last ones come; so its memory is written without fetching its old
// content first, which is a third of what goes through the memory bus otherwise.
void copy_out_of_ring(void *to, const void *from, std::size_t len_bytes,
                      std::size_t message_bytes) noexcept;

} // namespace gpusm

#endif
