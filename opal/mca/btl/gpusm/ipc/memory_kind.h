// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/memory_kind.h: in which way a peer can read a piece of device memory, and what the ways have
// in common. The ways themselves:
//
//   ipc/legacy.h   `legacy`        a handle of CUDA IPC, 64 bytes
//   ipc/vmm.h      `descriptors`   one file descriptor per chunk of VMM memory
//   ipc/pool.h     `pool`          a file descriptor per pool, 64 bytes per allocation
#ifndef GPUSM_IPC_MEMORY_KIND_H
#define GPUSM_IPC_MEMORY_KIND_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/ipc/pool.h"
#include "opal/mca/btl/gpusm/ipc/vmm.h"
#include "opal/mca/btl/gpusm/shm/wire.h"

#include <cstdint>

namespace gpusm {

// The kind of the memory at `address`, about which `facts` (inspect_pointer) are known. A guess
// where a run of VMM memory is concerned: list_chunks looks at all of it. About five driver calls
// if it is not `legacy`. Never fails and says nothing. `none`: managed memory, the default pool,
// VMM memory without a type of handle, memory of another process.
share_kind kind_of(const driver_api &driver, const pointer_facts &facts, std::uint64_t address);

// What the program's synchronous copies and fills have put into memory is there when they return,
// from now on and for all memory used in the context of `of`; those that have returned before are
// waited for. Other than cuMemAlloc's, memory cannot be marked one allocation at a time
// (export_memory does that), so this marks the whole context (CU_CTX_SYNC_MEMOPS), once: without
// it, a peer may read what was there before such a copy. `unsupported`: the driver is older than
// 12.1, and each message has to wait for the legacy stream. `driver_failed`.
status make_copies_synchronous(const driver_api &driver, const device &of);

// An ordinary allocation in the context of `into`, which CUDA IPC can share: for copies of memory
// that has no way of its own. The caller's, who gives it back with free_device, which waits for the
// context's work. `no_memory`: the device is full, without a word; `unsupported`; `driver_failed`.
status alloc_device(const driver_api &driver, const device &into, std::uint64_t len_bytes,
                    std::uint64_t *out);
void free_device(const driver_api &driver, const device &into, std::uint64_t address);

// Whether the device has `len_bytes` mapped from `local_base` on, however they were mapped. A
// peer's word about a length is not enough: a kernel that reads behind a mapping takes the context
// down. `bad_peer`: they are fewer; `driver_failed`.
status check_mapped_length(const driver_api &driver, const device &into, std::uint64_t local_base,
                           std::uint64_t len_bytes);

} // namespace gpusm

#endif
