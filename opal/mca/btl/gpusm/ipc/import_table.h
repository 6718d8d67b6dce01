// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/import_table.h: the importer's side of sharing device memory: peers' allocations, mapped once
// and kept while their exports live and somebody uses them now and then.
#ifndef GPUSM_IPC_IMPORT_TABLE_H
#define GPUSM_IPC_IMPORT_TABLE_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/ipc/fd_passing.h"
#include "opal/mca/btl/gpusm/shm/peer.h"
#include "opal/mca/btl/gpusm/shm/segment.h"
#include "opal/mca/btl/gpusm/shm/wire.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace gpusm {

// The owner has ended that generation.
bool is_over(const segment_view &owner, std::uint32_t slot, std::uint64_t generation);
// Reads an export directory entry of a peer; false when the generation is over.
bool read_export(const peer_segment &of, const remote_handle &handle, export_slot *out);

// Not thread-safe: the caller holds its GPU lock.
class import_table {
  public:
    // At most so many bytes stay mapped that nobody uses; 0: no bound.
    import_table(const driver_api &driver, device_table &devices, fd_passing &fds,
                 std::size_t max_bytes);
    // Closes all mappings.
    ~import_table();
    import_table(const import_table &) = delete;
    import_table &operator=(const import_table &) = delete;

    // The mapping of a peer's export on the device of `into`, referenced once for the caller
    // (release). `owner` is the peer's number. `not_found`: that export is over. `not_ready`: the
    // peer's file descriptors are needed first, and have not come. `unsupported`: these two devices
    // cannot share memory, of whatever buffer.
    status import(std::uint32_t owner, const peer &from, const remote_handle &handle, device &into,
                  mapping **out);
    void release(mapping *used) { cache_.release(used); }

    // The event named by a peer's handle, opened in the context of `into`; null if it has none.
    status event_of(std::uint32_t owner, const peer &from, const remote_handle &handle,
                    const device &into, CUevent *out);

    // Closes mappings of that peer's memory whose export is over.
    void close_over(std::uint32_t owner, const peer &from);
    // Closes one that no message has used for `idle_seconds`, if there is one. `second`: the time
    // by a clock that need not be exact.
    void close_idle(std::int64_t second);
    static constexpr std::uint64_t idle_seconds = 5;
    // The peer is gone: closes all of its.
    void drop_owner(std::uint32_t owner) { cache_.drop_owner(owner); }

    const cache_statistics &statistics() const { return cache_.statistics(); }

  private:
    struct request {
        const peer *from;
        const remote_handle *handle;
        device *into;
    };
    struct opened_event {
        std::uint32_t owner, slot, device;
        CUevent event;
    };
    // Goes with its last pointer: as long as it stays, so does the memory of a pool that its owner
    // has destroyed.
    struct imported_pool {
        CUmemoryPool handle;
        std::uint32_t imports; // each has to be given back
        std::uint32_t pointers;
        std::vector<int> allowed; // devices that may touch it, by ordinal
    };
    // How a mapping is given back that is not of CUDA IPC.
    struct opened {
        std::vector<std::uint64_t> lengths; // of chunks
        CUmemoryPool pool;                  // not null: a pointer into it, and no chunks
    };
    // Memory of this kind between these devices could not be mapped so many times in a row.
    struct device_pair {
        device_uuid owner;
        int into;
        share_kind kind;
        unsigned failures;
    };

    static status open(void *self, const mapping_key &key, std::uint64_t remote_base,
                       std::uint64_t len_bytes, const void *open_argument,
                       std::uint64_t *local_base);
    static void close(void *self, const mapping_key &key, std::uint64_t local_base);
    status open_way(const mapping_key &key, const request &wanted, const export_slot &entry,
                    std::uint64_t *local_base);
    status open_chunks(const mapping_key &key, const request &wanted, std::uint64_t *local_base);
    status open_pool_pointer(const mapping_key &key, const request &wanted,
                             const export_slot &entry, std::uint64_t *local_base);
    imported_pool *find_pool(CUmemoryPool pool);
    status allow(imported_pool &pool, const device &into);
    void close_pool_without_pointers(CUmemoryPool pool);
    device_pair &pair_of(const export_slot &entry, const device &into);
    device &home_of(device &into);

    const driver_api &driver_;
    device_table &devices_;
    fd_passing &fds_;
    std::vector<opened_event> events_;
    std::vector<imported_pool> pools_;
    std::unordered_map<std::uint64_t, opened> opened_; // by local base
    std::vector<device_pair> pairs_;
    std::vector<std::uint64_t> epochs_; // of retirements, as last seen; by owner
    std::int64_t second_ = 0;           // of the latest close_idle
    mapping_cache cache_;               // goes first: closing a mapping needs the rest
};

} // namespace gpusm

#endif
