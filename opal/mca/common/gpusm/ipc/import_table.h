// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/import_table.h: the importer's side of sharing device memory: peers' allocations, mapped once
// and kept while their exports live and somebody uses them now and then.
#ifndef GPUSM_IPC_IMPORT_TABLE_H
#define GPUSM_IPC_IMPORT_TABLE_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/ipc/fd_passing.h"
#include "opal/mca/common/gpusm/ipc/mapping_cache.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace gpusm {

// The owner has ended that generation.
bool is_over(const segment_view &owner, std::uint32_t slot, std::uint64_t generation);

// Not thread-safe: the caller holds its GPU lock.
class import_table {
  public:
    // At most so many bytes stay mapped that nobody uses; 0: no bound. `kernels_wait`: kernels of
    // the program may wait for messages.
    import_table(const driver_api &driver, device_table &devices, fd_passing &fds,
                 std::size_t max_bytes, bool kernels_wait = false)
        : driver_(driver), devices_(devices), fds_(fds), kernels_wait_(kernels_wait),
          cache_(max_bytes)
    {
    }
    // Closes all mappings.
    ~import_table();
    import_table(const import_table &) = delete;
    import_table &operator=(const import_table &) = delete;

    // The mapping of a peer's export on the device of `into`, referenced once for the caller
    // (release). `owner` is the peer's number. `not_found`: that export is over. `not_ready`: the
    // peer's file descriptors are needed first, and have not come. `unsupported`: these two devices
    // cannot share memory, of whatever buffer, or could not some times in a row; then they are
    // asked again after a while. `peer_gone`: its segment is not mapped any more.
    status import(std::uint32_t owner, const peer &from, const remote_handle &handle, device &into,
                  mapping **out);
    void release(mapping *used) { cache_.release(used); }
    // Whether what was imported for `into` can still be used there: not if its context has been
    // destroyed, which need not be that of `into`.
    bool is_open(const mapping &found, const device &into);

    // The event named by a peer's handle, opened in the context of `into`; null if it has none.
    status event_of(std::uint32_t owner, const peer &from, const remote_handle &handle,
                    const device &into, CUevent *out);

    // cuIpcCloseMemHandle waits for kernels that run in the context, and calls of other threads
    // wait meanwhile. So mappings are closed when none runs, as far as that can be seen
    // (driver_api::legacy_stream_is_idle), until those to be closed are so many bytes more than are
    // kept; or, where kernels wait for messages, only for want of memory and at the end.
    static constexpr std::size_t closed_by_force_bytes = std::size_t{1} << 30;
    // Closing takes 0.2 to 0.5 ms and makes the next opening take 0.8 ms instead of 0.1; of an
    // allocation of 512 MiB and more 9 ms, when no other one of that length is open (H200). So
    // mappings of memory that its owner has freed are closed a second later, as long as they are
    // no more than this part of a device's memory: a program that makes its buffers when it needs
    // them frees and allocates between messages.
    static constexpr std::size_t kept_part = 16;
    void close_postponed() { cache_.close_postponed(); }

    // Whether that export is memory of that device, as its owner says.
    static bool is_on(const peer &from, const remote_handle &handle, const device_uuid &which);

    // Closes mappings of that peer's memory whose export is over.
    void close_over(std::uint32_t owner, const peer &from);
    // Closes one that no message has used for `idle_seconds`, if there is one: it keeps memory
    // taken that its owner has freed, and an owner that does not call MPI any more ends no export.
    // `second`: the time by a clock that need not be exact. Only seconds in which this process
    // calls MPI count, so that a program that computes for a while keeps its mappings. One at a
    // time, as that may take the driver some hundred microseconds.
    void close_idle(std::int64_t second) { (void)cache_.close_idle(second, idle_seconds); }
    static constexpr std::uint64_t idle_seconds = 5;
    // The peer is gone: closes all of its, mappings and events. False: some are in use; again when
    // they are not.
    bool drop_owner(std::uint32_t owner);

    // Without anchors.
    cache_statistics statistics() const
    {
        const cache_statistics all = cache_.statistics();
        return {all.entries - anchored_.entries, all.bytes - anchored_.bytes};
    }
    // How often acquire() found a mapping that was open, and how often it had to open one.
    struct lookups {
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
    };
    const lookups &asked() const { return asked_; }

  private:
    // Goes with its last pointer: as long as it stays, so does the memory of a pool that its owner
    // has destroyed.
    struct imported_pool {
        std::uint32_t imports = 0; // each has to be given back
        std::uint32_t pointers = 0;
        std::set<int> allowed; // devices that may touch it, by ordinal
    };
    // What import() has given out last, as most messages come out of the memory that the one before
    // came out of.
    struct recent {
        mapping *mapped = nullptr; // null: none
        std::uint32_t owner = 0;
        std::uint32_t into = 0; // device::index
        remote_handle handle{};
        std::uint64_t changes = 0; // of the cache

        bool is(std::uint32_t by, const remote_handle &of, const device &on) const
        {
            return mapped != nullptr && owner == by && into == on.index && handle.slot == of.slot &&
                   handle.generation == of.generation && handle.kind == of.kind &&
                   handle.base == of.base && handle.len_bytes == of.len_bytes;
        }
    };
    // Takes the peer's descriptors if `message` has none.
    status open(std::uint32_t owner, const peer &from, const remote_handle &handle, device &into,
                descriptor_message *message, mapping *out);
    status open_pool_pointer(const export_slot &entry, const descriptor_message &message,
                             device &into, mapping *out);
    void hold_anchor(std::uint32_t owner, const peer &from, std::uint32_t slot, device &home);
    void release_anchors(std::uint32_t owner, bool all);
    void leave_pool(void *pool);
    status allow(void *pool, const device &into);
    device &home_of(device &into);
    void keep_freed(const device &into);
    bool close_legacy(device &into, std::uint64_t local_base, bool by_force);
    void close_event(std::uint32_t index, CUevent event);

    const driver_api &driver_;
    device_table &devices_;
    fd_passing &fds_;
    const bool kernels_wait_;
    std::map<std::array<std::uint32_t, 3>, CUevent> events_; // by owner, slot and device
    std::map<void *, imported_pool> pools_;                  // by their handles here
    // Can memory of this kind of the one device be mapped for the other?
    reach_table<std::tuple<device_uuid, int, share_kind>> reach_;
    // Mapped as long as their exports live, by owner and device, so that memory of that device is
    // always opened fast.
    std::map<std::pair<std::uint32_t, std::uint32_t>, mapping *> anchors_;
    cache_statistics anchored_{};
    lookups asked_;
    recent last_;
    std::size_t most_memory_bytes_ = 0; // of the devices that something has been opened on
    std::vector<std::uint64_t> epochs_; // of retirements, as last seen; by owner
    mapping_cache cache_;               // goes first: closing a mapping needs the rest
};

} // namespace gpusm

#endif
