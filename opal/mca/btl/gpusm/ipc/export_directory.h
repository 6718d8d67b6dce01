// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/export_directory.h: the owner's side of sharing device memory: allocations of this process in
// the directory of its segment, each for as long as its memory lives.
#ifndef GPUSM_IPC_EXPORT_DIRECTORY_H
#define GPUSM_IPC_EXPORT_DIRECTORY_H

#include "opal/mca/btl/gpusm/base/status.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"
#include "opal/mca/btl/gpusm/ipc/vmm.h"
#include "opal/mca/btl/gpusm/shm/segment.h"
#include "opal/mca/btl/gpusm/shm/wire.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

// Not thread-safe: the caller holds its GPU lock.
class export_directory {
  public:
    // `use_events`: each handle names an event behind the work of the legacy default stream.
    export_directory(const driver_api &driver, device_table &devices, segment &own,
                     bool use_events);

    // The export that covers [address, address + len_bytes), made if there is none or if the one
    // there is over; referenced once for the caller, who gives it back with release(). `buffer_id`
    // is what the driver says about the address, 0 if it is to be asked. `unsupported`: this memory
    // cannot be exported, or is of one of the devices (bits, by ordinal) that `without` names.
    status export_range(std::uint64_t address, std::size_t len_bytes, unsigned long long buffer_id,
                        std::uint64_t without, exported **out, remote_handle *handle);
    void add_reference(exported *entry) { table_.add_reference(entry); }
    void release(exported *entry) { table_.release(entry); }
    std::size_t live() const { return table_.live(); }

    // The export that a peer's handle names, if it is not over; else null.
    exported *live_export(const remote_handle &handle) const;
    // The device whose memory that is, as a bit; 0: the export is over.
    std::uint64_t device_of(const remote_handle &handle) const;
    // The file descriptors that an importer needs to map it; *lengths has the bytes behind each.
    // `not_found`: that export is over, or needs none.
    status descriptors_of(const remote_handle &handle, std::vector<file_descriptor> *descriptors,
                          std::vector<std::uint64_t> *lengths) const;

    // Ends exports whose memory is gone, among the next few.
    void sweep() { retire_gone(1); }

  private:
    // All that there is to say about an export; kept by slot.
    struct description {
        allocation memory{};
        share_kind kind = share_kind::none;
        device_uuid uuid{};
        int ordinal = -1;
        std::array<unsigned char, ipc_handle_bytes> handle{}; // of the kinds `legacy` and `pool`
        CUmemoryPool pool = nullptr;                          // of kind `pool`
        std::vector<memory_chunk> chunks;                     // of kind `descriptors`
    };

    bool still_exported(const exported &entry, std::uint64_t address, std::uint64_t len_bytes,
                        unsigned long long buffer_id) const;
    status make(std::uint64_t address, std::size_t len_bytes, const pointer_facts &facts,
                device &of, exported **out);
    status describe(std::uint64_t address, std::size_t len_bytes, const pointer_facts &facts,
                    device &of, description *out);
    void retire_gone(std::size_t questions);
    static status publish(void *self, const exported &entry, const void *described);
    static void retire(void *self, const exported &entry);
    std::uint16_t record_event(device &of);

    const driver_api &driver_;
    device_table &devices_;
    segment &own_;
    const bool use_events_;
    std::vector<description> described_;
    // Memory of the kind `none`, by a few bits of its buffer id: it is asked about only once.
    std::array<std::uint64_t, 64> refused_{};
    export_table table_;
};

} // namespace gpusm

#endif
