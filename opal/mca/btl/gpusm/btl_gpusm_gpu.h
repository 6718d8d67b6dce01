// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_gpu.h: the GPU half of the desk, made when the first GPU message shows up: joins
// the driver (gpu/), the cache (rcache/gpusm) and the export directory (shm/wire.h).
#ifndef BTL_GPUSM_GPU_H
#define BTL_GPUSM_GPU_H

#include "opal/mca/btl/gpusm/base/host_copy.h"
#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/btl/gpusm/gpu/pageable_memory.h"
#include "opal/mca/btl/gpusm/ipc/memory_kind.h"
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

#include <array>
#include <cstdint>
#include <ctime>
#include <utility>
#include <vector>

namespace gpusm {

class gpu_desk {
  public:
    gpu_desk(const driver_api &driver, bool threads);
    // Closes all mappings, gives back streams, events and host registrations.
    ~gpu_desk();
    gpu_desk(const gpu_desk &) = delete;
    gpu_desk &operator=(const gpu_desk &) = delete;

    // Held around every call below and around what follows it.
    optional_mutex lock;

    const driver_api &driver;
    device_table devices;
    copy_engine copies;
    copies_out_of_rings by_processor;

    // Owner's side (btl_gpusm_export.cc). The export that covers [address, address + len_bytes),
    // made if there is none or if the one there is over; referenced once for the caller, who gives
    // it back with `exports.release`. `buffer_id` is what the driver says about the address, 0 if
    // it is to be asked. `unsupported`: this memory cannot be exported.
    status export_range(std::uint64_t address, std::size_t len_bytes, unsigned long long buffer_id,
                        exported **out, remote_handle *handle);
    export_table exports;
    // The export that a peer's handle names, if it is not over; else null.
    exported *live_export(const remote_handle &handle) const;
    // The file descriptors that an importer needs to map the export that `handle` names, and which
    // the caller closes; *lengths has the bytes behind each. `not_found`: that export is over.
    status export_descriptors(const remote_handle &handle, std::vector<int> *descriptors,
                              std::vector<std::uint64_t> *lengths);

    // Importer's side (btl_gpusm_import.cc). The mapping of a peer's export on the device of
    // `into`, referenced once for the caller (`imports.release`). `not_found`: that export is over.
    // `not_ready`: the peer's file descriptors are needed first, and have not come.
    status import(mca_btl_base_endpoint_t &from, const remote_handle &handle, device &into,
                  mapping **out);
    // Whether a kernel in the context of `into` may read what `import` has mapped for it. Copies of
    // the driver may in any case.
    static bool kernel_reads(const mapping &mapped, const remote_handle &handle, const device &into)
    {
        return share_kind::legacy != handle.kind || mapped.key.device == into.index;
    }
    // The same of host memory, as `at` is some, that was registered with the driver in the context
    // of `by`; null: of none. With that context goes what it has registered.
    bool kernel_touches(device &in, const device *by, const unsigned char *at) const;
    mapping_cache imports;
    // Keeps file descriptors that have come until `import` takes them.
    void keep_descriptors(mca_btl_base_endpoint_t &from, descriptor_message &&message);

    // The event named by a peer's handle, opened in the context of `into`; null if it has none.
    status event_of(const mca_btl_base_endpoint_t &from, const remote_handle &handle,
                    const device &into, CUevent *out);

    // gpusm::is_page_locked, asked for messages. The answer no may be a little old: such memory is
    // then copied by a processor. Without the lock.
    bool is_page_locked(std::uint64_t address, std::size_t len_bytes);

    // Whether that part of our segment is registered with the driver, after having tried to.
    bool is_registered(const unsigned char *at, std::size_t len_bytes);
    // In whose context that part of it was; null: in none.
    const device *registered_by(const unsigned char *at) const;

    // Housekeeping, called from progress now and then: ends exports whose memory is gone, closes
    // mappings whose export is over, registers new parts of the segment with the driver.
    void sweep();

  private:
    // What belongs to an export besides what the table keeps; by slot.
    struct export_details {
        share_kind kind = share_kind::none;
        CUmemoryPool pool = nullptr;      // of kind `pool`
        std::vector<memory_chunk> chunks; // of kind `descriptors`
    };
    struct import_request {
        const mca_btl_base_endpoint_t *from;
        const remote_handle *handle;
        device *into;
    };
    struct opened_event {
        std::uint32_t owner, slot, device;
        CUevent event;
    };
    // A mapping that is not closed the way of CUDA IPC.
    struct opened_chunks {
        std::uint64_t local_base;
        std::vector<std::uint64_t> lengths;
        CUmemoryPool pool; // not null: a pointer into that imported pool, without lengths
    };
    // Goes with its last pointer: as long as it stays, so does the memory of a pool that its owner
    // has destroyed.
    struct imported_pool {
        std::uint32_t owner;
        std::size_t devices; // of the device table that may touch it, from the first on
        CUmemoryPool handle;
        std::uint32_t imports; // each has to be given back
        std::uint32_t pointers;
    };
    struct arrived_descriptors {
        std::uint32_t owner;
        descriptor_message message;
    };

    bool still_exported(const exported &entry, std::uint64_t address, std::uint64_t len_bytes,
                        unsigned long long buffer_id) const;
    void extend_run(const device &of, std::vector<memory_chunk> *chunks) const;
    status make_export(std::uint64_t address, std::size_t len_bytes, const pointer_facts &facts,
                       device &of, exported **out);
    bool is_gone(const exported &entry) const;
    void retire_gone_of_youngest();
    void retire_gone(int questions);
    static status publish(void *self, const exported &entry, const void *described);
    static void retire(void *self, const exported &entry);
    std::uint16_t record_event(device &of);

    static status open_mapping(void *self, const mapping_key &key, std::uint64_t remote_base,
                               std::uint64_t len_bytes, const void *request,
                               std::uint64_t *local_base);
    static void close_mapping(void *self, const mapping_key &key, std::uint64_t local_base);
    device &home_of(device &into);
    status open_legacy(const export_slot &entry, device &into, std::uint64_t *local_base);
    status open_chunks(const import_request &wanted, std::uint64_t *local_base);
    status allow_pools_of(const mca_btl_base_endpoint_t &owner);
    status import_pool_of(const import_request &wanted, CUmemoryPool *out);
    void close_all_imports(const imported_pool &of);
    void close_pool_without_pointers(CUmemoryPool pool);
    status open_pool_pointer(const import_request &wanted, const export_slot &entry,
                             std::uint64_t *local_base);
    status take_descriptors(const import_request &wanted, descriptor_message *out);
    void close_stale_mappings_of(mca_btl_base_endpoint_t &peer);
    void close_stale_mappings();
    void close_idle_mapping();

    void look_at_contexts();
    void register_segment();

    std::vector<export_details> details_;
    std::array<std::uint64_t, 16> youngest_{}; // bases of the exports made last
    std::array<std::uint64_t, 64> youngest_long_{};
    unsigned next_youngest_ = 0;
    unsigned next_long_ = 0;
    std::vector<std::uint32_t> event_published_; // by device index

    std::vector<opened_event> events_;
    std::vector<opened_chunks> chunks_;
    std::vector<imported_pool> imported_pools_;
    std::vector<arrived_descriptors> arrived_; // oldest first, bounded
    std::time_t second_ = 0;                   // of the latest epoch of `imports`

    pageable_memory pageable_;
    std::size_t registered_to_ = 0; // where the registered part of our segment ends
    std::vector<std::pair<void *, device *>> registrations_; // start, and in whose context
    bool registration_failed_ = false;
};

// The GPU desk, made on the first call that finds a CUDA driver; null without one, or when the
// parameter use_cuda_ipc says no.
gpu_desk *gpu();

// pointer: from now on, and until remove_pointer_check, gpusm answers Open MPI's question whether
// an address is device memory, where accelerator/cuda would take long (btl_gpusm_pointer.cc): that
// it is not; and from extend_pointer_check on, which the first GPU message calls, that it is, too.
void install_pointer_check();
void extend_pointer_check();
void remove_pointer_check();

// An allocation of device memory, of VMM memory a chunk, [start, end), as the pointer check last
// saw it.
struct known_memory {
    std::uint64_t start;
    std::uint64_t end;
    unsigned long long buffer_id; // never given to another allocation in the life of a process
    CUcontext context;            // null for VMM and pool memory
    int ordinal;
    bool managed;
    bool plain; // a kernel on its device can touch it without harm
    device *on; // in whose context it is used; null: not asked yet. Lives as long as the memory.
};
// The one that Open MPI's question about the buffer of a receive found, which comes before the
// receive is registered, and holds until it is complete, because the program may not free the
// buffer before. (An address outside of the buffer that was asked about, reached by a displaced
// datatype, is found as it was seen by itself.) Null when it is not known, and in programs with
// threads.
known_memory *known_allocation(std::uint64_t address);
// The buffer id that Open MPI's last question found at this address, once, if the same call of the
// program has certainly led to both; else 0.
unsigned long long take_buffer_id(std::uint64_t address);
// ob1 will ask about this buffer once more before it does anything else.
void will_ask_again(const void *address);
// Whatever comes now belongs to another call of the program.
void end_of_question();

// Reads an export directory entry of a peer; false when the generation is over.
bool read_export(const peer_segment &of, const remote_handle &handle, export_slot *out);

} // namespace gpusm

#endif
