// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/vmm.h: memory of virtual memory management, shared by file descriptor. It is a run of
// chunks side by side, each an allocation (cuMemCreate) mapped by one cuMemMap. Every chunk is
// exported as a descriptor, and an importer maps them side by side again.
//
// Nothing here keeps a reference to an allocation beyond a call: one that stayed would keep memory
// taken that the program has freed.
#ifndef GPUSM_IPC_VMM_H
#define GPUSM_IPC_VMM_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include <cstddef>
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

// As many descriptors as fit into one message of a Unix socket (the kernel's limit is 253).
inline constexpr std::size_t most_chunks = 250;

// --- the owner ----------------------------------------------------------------------------------

// Whether the chunk at `address` is VMM memory of a device that may be exported by descriptor.
bool can_export_chunk(const driver_api &driver, std::uint64_t address);

// The chunks that [address, address + len_bytes) touches, device memory of `of`, in order and
// without a gap. `unsupported`, without a word: there is a gap, one of them cannot be exported or
// lies on another device than the first, or there are more than `most`. `bad_argument`: no such
// range; `driver_failed`.
status list_chunks(const driver_api &driver, const device &of, std::uint64_t address,
                   std::uint64_t len_bytes, std::vector<memory_chunk> *out,
                   std::size_t most = most_chunks);

// Adds the chunks before and behind those, as far as they lie side by side on one device within the
// address range that the program has reserved, can be exported, are not `most_chunks` together, and
// may_take(address) says so.
void extend_run(const driver_api &driver, const device &of,
                const std::function<bool(std::uint64_t)> &may_take,
                std::vector<memory_chunk> *chunks);

// Whether these are still the allocations that list_chunks described. One driver call each.
bool same_chunks(const driver_api &driver, const std::vector<memory_chunk> &chunks);

// One descriptor per chunk, closed on exec, into fds[0] to fds[chunks.size() - 1]; the caller's to
// close, and each keeps its chunk's memory taken until then. On failure none is left open.
// `not_found`: a chunk is not mapped any more; `unsupported`; `no_memory`; `driver_failed`.
status export_chunks(const driver_api &driver, const std::vector<memory_chunk> &chunks, int *fds);

// --- the importer -------------------------------------------------------------------------------

// Maps `count` chunks of a peer side by side for work on the device of `into`, reading and writing:
// chunk i is what fds[i] stands for, lengths[i] bytes. The descriptors stay the caller's. The
// mapping alone keeps the memory taken, until unmap_chunks. On failure nothing is left.
// `bad_peer`: a length that cannot be, or more than the descriptor has; `bad_argument`: no chunks;
// `unsupported`: that device cannot reach that memory; `no_memory`; `driver_failed`.
status map_chunks(const driver_api &driver, const device &into, const std::uint64_t *lengths,
                  const int *fds, std::size_t count, std::uint64_t *local_base);

// Gives back what map_chunks made, with the same lengths. The caller knows that no copy uses it.
// Needs no context, because such a mapping outlives the context that it was made for.
void unmap_chunks(const driver_api &driver, std::uint64_t local_base, const std::uint64_t *lengths,
                  std::size_t count);

} // namespace gpusm

#endif
