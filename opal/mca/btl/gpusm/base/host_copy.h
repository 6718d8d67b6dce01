// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/host_copy.h: copies by the processor out of the program's memory into small rings that a
// device reads. (Out of such rings memcpy does as well as anything.)
#ifndef GPUSM_BASE_HOST_COPY_H
#define GPUSM_BASE_HOST_COPY_H

#include <cstddef>

namespace gpusm {

// Into a ring that stays in the cache, from memory that may not be in it.
void copy_into_ring(void *to, const void *from, std::size_t len_bytes) noexcept;

} // namespace gpusm

#endif
