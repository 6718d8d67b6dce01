// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// pool.h: stream-ordered memory pools.
#ifndef GPUSM_SOFTCUDA_POOL_H
#define GPUSM_SOFTCUDA_POOL_H

#include "driver.h"

namespace softcuda {

struct pool {
    int device = 0;
    unsigned handle_types = 0;
    bool imported = false;
    int imports = 0; // of an imported one: each is destroyed for itself
    // And what it has had pointers to stays taken until then, as if its owner had destroyed it.
    std::vector<block_ref> kept;
    bool is_default = false;
    bool destroyed = false; // freed with its last allocation
    int allocations = 0;
    std::uint64_t access = 0; // two bits per visible device
    std::uint64_t release_threshold = 0;
    std::uint64_t used_bytes = 0;
    std::uint64_t used_high = 0;
    int reuse[3] = {1, 1, 1};
    int fd = -1;                      // what an exported descriptor is a copy of
    std::uint64_t imported_inode = 0; // of the descriptor that this one came by
    small_heap small;
};

pool *make_default_pool(const hold &, int device);

// A pool allocation is over: give it back.
void pool_release(const hold &held, range *what);

} // namespace softcuda

#endif
