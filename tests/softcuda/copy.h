// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy.h: copies and fills: what the arguments mean, and how a call of each kind behaves
// towards its caller.
#ifndef GPUSM_SOFTCUDA_COPY_H
#define GPUSM_SOFTCUDA_COPY_H

#include "stream.h"

namespace softcuda {

// How a copy call treats its caller.
enum class manner {
    synchronous,  // cuMemcpy and friends: legacy stream, returns when the documentation says so
    asynchronous, // ...Async: as late as the kinds of memory allow
};

// dst and src may be device, managed, pinned or pageable addresses.
CUresult copy(CUstream handle, manner how, std::uint64_t dst, std::uint64_t src, std::size_t len);

// `unit` bytes (1, 2 or 4) of `value`, `count` times.
CUresult fill(CUstream handle, manner how, std::uint64_t dst, unsigned value, unsigned unit,
              std::size_t count);

// A word that a worker may touch: device memory or pinned host memory.
bool find_word(const hold &held, const stream_ref &s, std::uint64_t at, std::size_t len,
               stretch *out);

} // namespace softcuda

#endif
