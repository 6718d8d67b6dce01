// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/export_directory.h: the owner's side of sharing device memory: allocations of this process in
// the directory of its segment, each for as long as its memory lives.
#ifndef GPUSM_IPC_EXPORT_DIRECTORY_H
#define GPUSM_IPC_EXPORT_DIRECTORY_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/gpu/device.h"
#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/ipc/by_descriptor.h"
#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"
#include "opal/mca/common/gpusm/ipc/legacy.h"
#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace gpusm {

// One export. Owned by the directory, which uses it again for the next one in its slot: a pointer
// to it is valid until it is retired and its last reference is gone.
struct exported : exported_memory {
    std::uint64_t buffer_id = 0; // the driver's number; another allocation at `base` has another
    share_kind kind = share_kind::none;
    device *on = nullptr; // its device, in the context it is in, or if in none that it was sent in
    CUmemoryPool pool = nullptr;      // of kind `pool`
    std::vector<memory_chunk> chunks; // of kind `descriptors`

    std::uint32_t slot = 0;
    std::uint32_t references = 0;
    std::uint64_t generation = 0; // from 1 on; never used twice for a slot
    bool retired = true;          // the allocation is gone or the slot was needed
    std::uint64_t last_use = 0;   // counts insertions and releases

    // Work in other contexts of the device must not touch it.
    bool is_of_context() const { return share_kind::legacy == kind; }
};

// What a peer does with it, of a program's memory: reads what was written there, or only writes.
enum class export_use : std::uint8_t { read, written };

// Which memory of this process a peer can map: by the ordinal of its device and its kind.
using mappings_of_exports = reach_table<std::pair<int, share_kind>>;

// Not thread-safe: the caller holds its GPU lock.
//
// Live (= not retired) exports do not overlap. One with a reference keeps its slot. When there is
// no free slot, the least recently used export without a reference is retired.
class export_directory {
  public:
    // `use_events`: each handle for a reader names an event behind the work of the legacy default
    // stream.
    export_directory(const driver_api &driver, device_table &devices, segment &own, bool use_events)
        : driver_(driver), devices_(devices), own_(own), use_events_(use_events)
    {
    }
    export_directory(const export_directory &) = delete;
    export_directory &operator=(const export_directory &) = delete;

    // The export that covers [address, address + len_bytes), made if there is none or if the one
    // there is over; referenced once for the caller, who gives it back with release(). `buffer_id`
    // is what the driver says about the address, 0 if it is to be asked. `unsupported`: this memory
    // cannot be exported, or the peer that it is for cannot map it. `no_memory`: all slots are in
    // use.
    status export_range(std::uint64_t address, std::size_t len_bytes, unsigned long long buffer_id,
                        export_use use, exported **out, remote_handle *handle,
                        const mappings_of_exports &by_peer = {});
    void add_reference(exported *entry) { ++entry->references; }
    void release(exported *entry);
    // Live exports but anchors.
    std::size_t live() const;

    // The export that a peer's handle names, if it is not over; else null.
    exported *live_export(const remote_handle &handle) const;
    // The file descriptors that an importer needs to map it, and how long each piece is.
    // `not_found`: that export is over, or needs none.
    status descriptors_of(const remote_handle &handle, descriptor_message *out) const;

    // Ends exports whose memory is gone, among the next few.
    void sweep() { retire_gone(1); }

  private:
    exported *find(std::uint64_t address, std::uint64_t len_bytes) const;
    bool still_exported(const exported &entry, std::uint64_t address, std::uint64_t len_bytes,
                        unsigned long long buffer_id) const;
    status make(std::uint64_t address, std::size_t len_bytes, const pointer_facts &facts,
                device &of, exported **out);
    status describe(std::uint64_t address, std::size_t len_bytes, const pointer_facts &facts,
                    device &of, exported *out);
    status use_current_context(exported *entry);
    status mark_context(device &of, exported *out);
    exported *take_slot();
    std::uint32_t anchor_of(device &of);
    void publish(const exported &entry, const device &of, std::uint32_t anchor_slot);
    void retire(exported *entry);
    void retire_overlapping(std::uint64_t base, std::uint64_t len_bytes);
    void retire_gone(std::size_t questions);
    std::uint16_t record_event(device &of);

    const driver_api &driver_;
    device_table &devices_;
    segment &own_;
    const bool use_events_;
    std::vector<std::unique_ptr<exported>> entries_; // by slot, of those that were ever used
    std::map<std::uint64_t, exported *> live_;       // by base
    std::vector<exported *> anchors_;                // by device::index; referenced; null: none
    std::uint64_t next_swept_ = 0;                   // a base, or the first one above
    std::uint64_t uses_ = 0;
    // Memory of the kind `none`, by a few bits of its buffer id: it is asked about only once.
    std::array<std::uint64_t, 64> refused_{};
};

} // namespace gpusm

#endif
