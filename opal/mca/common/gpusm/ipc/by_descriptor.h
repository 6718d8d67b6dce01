// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/by_descriptor.h: memory that is shared by file descriptor, of two kinds.
//
// VMM memory is a run of chunks side by side, each an allocation (cuMemCreate) mapped by one
// cuMemMap. Every chunk is exported as a descriptor, and an importer maps them side by side again.
// No reference to an allocation outlives a call: it would keep memory taken that the program freed.
//
// A stream-ordered pool is exported and imported once; then each of its allocations goes over as 64
// bytes. The driver asks that an importer gives an allocation back before its owner does. Nobody
// can hold a program to that, so nothing is read but what a message is about, which the program
// does not free.
#ifndef GPUSM_IPC_BY_DESCRIPTOR_H
#define GPUSM_IPC_BY_DESCRIPTOR_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace gpusm {

// One chunk of this process's memory, as the driver described it.
struct memory_chunk {
    std::uint64_t base = 0;
    std::uint64_t len_bytes = 0;
    std::uint64_t buffer_id = 0; // another one once the addresses are mapped anew
    int ordinal = -1;            // of its device
};

// --- the owner of VMM memory --------------------------------------------------------------------

// The run of chunks around [address, address + len_bytes), device memory of `of`, in order: those
// that it touches, at least the one around `address`, and those before and behind them as far as
// they lie side by side on one device within the address range that the program has reserved, can
// be exported, are not `most_descriptors` together, and may_take(address) says so. `unsupported`,
// without a word: of those that it touches there are more, one cannot be exported or is on another
// device than the first, or there is a gap; *out has those before that. `driver_failed`.
status list_run(const driver_api &driver, const device &of, std::uint64_t address,
                std::uint64_t len_bytes, const std::function<bool(std::uint64_t)> &may_take,
                std::vector<memory_chunk> *out);

// The length of each chunk, and a descriptor, closed on exec, which keeps the chunk's memory taken
// until it is closed; after a failure they are of no use. `not_found`: a chunk is not mapped any
// more; `unsupported`; `no_memory`; `driver_failed`.
status export_chunks(const driver_api &driver, const std::vector<memory_chunk> &chunks,
                     descriptor_message *out);

// --- the importer of VMM memory -----------------------------------------------------------------

// Maps chunks of a peer side by side, `len_bytes` in all, for work on the device of `into`, reading
// and writing. The mapping alone keeps the memory taken, until unmap_chunks. On failure nothing is
// left.
// `bad_peer`: a length that cannot be, or more than the descriptor has; `unsupported`: that device
// cannot reach that memory; `no_memory`; `driver_failed`.
status map_chunks(const driver_api &driver, const device &into, const descriptor_message &chunks,
                  std::uint64_t len_bytes, std::uint64_t *local_base);

// Gives back what map_chunks made. The caller knows that no copy uses it. Needs no context, because
// such a mapping outlives the context that it was made for.
void unmap_chunks(const driver_api &driver, std::uint64_t local_base, std::uint64_t len_bytes);

// --- the owner of a pool ------------------------------------------------------------------------

// The pool that `address` is memory of, null for other memory; and whether it may be exported.
CUmemoryPool pool_of(const driver_api &driver, std::uint64_t address, bool *exportable);

// Describes the allocation around `address`, memory of that pool on the device of `of`.
// `unsupported`, without a word: the pool cannot be exported; `no_memory`; `driver_failed`.
status export_pool_pointer(const driver_api &driver, const device &of, CUmemoryPool pool,
                           std::uint64_t address, exported_memory *out);

// A descriptor of the pool, closed on exec. `unsupported`; `no_memory`; `driver_failed`.
status export_pool(const driver_api &driver, CUmemoryPool pool, file_descriptor *out);

// --- the importer of a pool ---------------------------------------------------------------------

// A peer's pool; given back with close_pool, as often as it has been imported. `unsupported`;
// `no_memory`; `driver_failed`.
status import_pool(const driver_api &driver, const file_descriptor &fd, CUmemoryPool *out);

// Lets the device of `into` touch the memory of an imported pool: needed once per pool and device.
// `unsupported`: it cannot reach that memory; `driver_failed`.
status allow_pool(const driver_api &driver, CUmemoryPool pool, const device &into);

// Maps an allocation of an imported pool in the context of `into`. *local_base is where its base is
// here; given back with free_device. How long it is says check_mapped_length. `not_found`: the
// program has mapped it already, by itself; `unsupported`; `no_memory`; `driver_failed`.
status import_pool_pointer(const driver_api &driver, const device &into, CUmemoryPool pool,
                           const memory_handle &handle, std::uint64_t *local_base);

// Gives back one import of a pool none of whose pointers is left.
void close_pool(const driver_api &driver, CUmemoryPool pool);

} // namespace gpusm

#endif
