// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/pool.h: memory of stream-ordered pools, shared by file descriptor. A pool is exported
// and imported once; then each of its allocations goes over as 64 bytes that any way will carry.
//
// The driver asks that an importer gives an allocation back before its owner does. Nobody can hold
// a program to that, so what an importer reads after the owner's free is undefined, and nobody may
// read it; what can be read is what a message is about, and that the program does not free.
#ifndef GPUSM_IPC_POOL_H
#define GPUSM_IPC_POOL_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include <cstdint>

namespace gpusm {

// One allocation of a pool of this process.
struct pool_pointer {
    std::uint64_t base = 0;
    std::uint64_t len_bytes = 0;
    CUmemoryPool pool = nullptr; // the program's
    CUmemPoolPtrExportData data{};
};

// --- the owner ----------------------------------------------------------------------------------

// Whether `address` is memory of a pool, and in that case whether the pool may be exported.
bool is_pool_memory(const driver_api &driver, std::uint64_t address, bool *exportable);

// Describes the allocation around `address`, device memory of `of`. `unsupported`, without a word:
// it is of no pool, or of one that cannot be exported; `driver_failed`.
status export_pool_pointer(const driver_api &driver, const device &of, std::uint64_t address,
                           pool_pointer *out);

// A descriptor of the pool, closed on exec; the caller's to close. `unsupported`; `no_memory`;
// `driver_failed`.
status export_pool(const driver_api &driver, CUmemoryPool pool, int *fd);

// --- the importer -------------------------------------------------------------------------------

// A peer's pool; given back with close_pool, as often as it has been imported. The descriptor stays
// the caller's. `unsupported`; `no_memory`; `driver_failed`.
status import_pool(const driver_api &driver, int fd, CUmemoryPool *out);

// Lets the device of `into` touch the memory of an imported pool: needed once per pool and device.
// `unsupported`: it cannot reach that memory; `driver_failed`.
status allow_pool(const driver_api &driver, CUmemoryPool pool, const device &into);

// Maps an allocation of an imported pool in the context of `into`. *local_base is where its base is
// here; given back with free_pool_pointer. How long it is says check_mapped_length. `unsupported`:
// also when this process has mapped that allocation already; `no_memory`; `driver_failed`.
status import_pool_pointer(const driver_api &driver, const device &into, CUmemoryPool pool,
                           const CUmemPoolPtrExportData &data, std::uint64_t *local_base);

// The caller knows that no copy uses it.
void free_pool_pointer(const driver_api &driver, const device &into, std::uint64_t local_base);

// Gives back one import of a pool none of whose pointers is left.
void close_pool(const driver_api &driver, CUmemoryPool pool);

} // namespace gpusm

#endif
