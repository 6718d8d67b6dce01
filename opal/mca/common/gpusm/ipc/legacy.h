// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/legacy.h: memory of cuMemAlloc, as handles of CUDA IPC that another process can open; and
// what device memory of every kind needs. (The other kinds: ipc/by_descriptor.h.)
#ifndef GPUSM_IPC_LEGACY_H
#define GPUSM_IPC_LEGACY_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"

#include <array>
#include <cstdint>

namespace gpusm {

// What a peer maps an allocation with: a CUipcMemHandle, of a pool's a CUmemPoolPtrExportData.
using memory_handle = std::array<unsigned char, 64>;
static_assert(sizeof(CUipcMemHandle) == sizeof(memory_handle));
static_assert(sizeof(CUmemPoolPtrExportData) == sizeof(memory_handle));

// One allocation of this process, as its exporter describes it.
struct exported_memory {
    std::uint64_t base = 0;
    std::uint64_t len_bytes = 0;
    memory_handle handle{};
    std::uint64_t mark = 0; // see device::marks
};

// Describes the allocation around `address`, device memory of `of`. Marks it so that
// synchronous copies into it are complete when they return to the program (SYNC_MEMOPS): without
// that, data that the program believes written could still be on its way when a peer reads. For
// those that have returned already see wait_for_earlier_copies. `unsupported`: this kind of memory
// has no such handle; `driver_failed`.
status export_memory(const driver_api &driver, device &of, std::uint64_t address,
                     exported_memory *out);

// Before a peer reads what has been marked: waits for copies that may have begun before the mark,
// unless that has been done. Not before a peer writes there, as work that waits for that message
// may be among what is waited for. While a stream capture forbids to wait, messages go on without,
// and device::marks::waited_for stays below the mark: the next call tries again.
status wait_for_earlier_copies(const driver_api &driver, device &of, std::uint64_t mark);

// Maps a peer's memory for work in the context of `into`. The result is given back with
// close_memory. `not_found`: an allocation that was there before is still mapped, here or by the
// program; `unsupported`: these two devices cannot share memory; `no_memory`; else `driver_failed`.
// The caller reports.
status open_memory(const driver_api &driver, const device &into, const memory_handle &handle,
                   std::uint64_t *local_base);
void close_memory(const driver_api &driver, const device &into, std::uint64_t local_base);

// --- every kind ---------------------------------------------------------------------------------

// What the program's synchronous copies and fills have put into memory is there when they return,
// from now on and for all memory used in the context of `of`; for those that have returned before
// see wait_for_earlier_copies. Other than cuMemAlloc's, memory cannot be marked one allocation at a
// time (export_memory does that), so this marks the whole context (CU_CTX_SYNC_MEMOPS), once:
// without it, a peer may read what was there before such a copy. `unsupported`: the driver is
// older than 12.1, and each message has to wait for the legacy stream. `driver_failed`; for a while
// without a try after some failures in a row, or after one where a stream of the context was being
// captured, by any thread: that has ended the capture, as nothing tells of it beforehand.
status make_copies_synchronous(const driver_api &driver, device &of);

// An ordinary allocation in the context of `into`, which CUDA IPC can share: for copies of memory
// that has no way of its own. `no_memory`: the device is full, without a word; `unsupported`;
// `driver_failed`.
status alloc_device(const driver_api &driver, const device &into, std::uint64_t len_bytes,
                    std::uint64_t *out);
// Gives that back, and waits for the context's work; or a pointer of an imported pool, which waits
// for none (20 us beside a kernel that runs, driver 580).
void free_device(const driver_api &driver, const device &into, std::uint64_t address);

// Whether the device has `len_bytes` mapped from `local_base` on, however they were mapped. A
// peer's word about a length is not enough: a kernel that reads behind a mapping takes the context
// down. `bad_peer`: they are fewer; `driver_failed`.
status check_mapped_length(const driver_api &driver, const device &into, std::uint64_t local_base,
                           std::uint64_t len_bytes);

} // namespace gpusm

#endif
