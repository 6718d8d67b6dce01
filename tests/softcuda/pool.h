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
    int imports = 0; // how often it was imported, and each is destroyed for itself; 0: made here
    // And what it has had pointers to stays taken until then, as if its owner had destroyed it.
    std::vector<block_ref> kept;
    bool destroyed = false; // freed with its last allocation
    int allocations = 0;
    std::uint64_t access = 0;         // two bits per visible device
    int fd = -1;                      // what an exported descriptor is a copy of
    std::uint64_t imported_inode = 0; // of the descriptor that this one came by
    small_heap small;
};

pool *make_pool(const hold &held, int device, unsigned handle_types);

// A pool allocation is over: give it back.
void pool_release(const hold &held, range *what);

// In alloc.cc: memory of a device, from the heap if it is small. Fills all but kind and owner.
CUresult allocate_device(int device, std::uint64_t len_bytes, unsigned handle_types,
                         small_heap *small, range *made);

// Sets the bits of those devices in *access: cuMemSetAccess and cuMemPoolSetAccess.
CUresult set_access(std::uint64_t *access, int owner, const CUmemAccessDesc *list, size_t count);
inline unsigned access_of(std::uint64_t access, int device)
{
    return (access >> (2 * device)) & 3;
}

} // namespace softcuda

#endif
