// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_gpu.h: the GPU half of the desk, made when the first GPU message shows up: joins
// the driver (gpu/), the cache (rcache/gpusm) and the export directory (shm/wire.h).
#ifndef BTL_GPUSM_GPU_H
#define BTL_GPUSM_GPU_H

#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

#include <cstdint>
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

    // Held around every call below and around `devices` and `copies`.
    optional_mutex lock;

    const driver_api &driver;
    device_table devices;
    copy_engine copies;

    // Owner's side. The export that covers [address, address + len_bytes), made if there is
    // none or if the one there is over; referenced once for the caller, who gives it back with
    // `exports.release`. `buffer_id` is what the driver says about the address, 0 if it is to be
    // asked. `unsupported`: this memory cannot be exported.
    status export_range(std::uint64_t address, std::size_t len_bytes, unsigned long long buffer_id,
                        exported **out, remote_handle *handle);
    export_table exports;

    // Importer's side. The mapping of a peer's export in the context of `into`, referenced once
    // for the caller (`imports.release`). `not_found`: that export is over.
    status import(const mca_btl_base_endpoint_t &from, const remote_handle &handle, device &into,
                  mapping **out);
    mapping_cache imports;

    // The event named by a peer's handle, opened in the context of `into`; null if it has none.
    status event_of(const mca_btl_base_endpoint_t &from, const remote_handle &handle,
                    const device &into, CUevent *out);

    // Housekeeping, called from progress now and then: ends exports whose memory is gone, closes
    // mappings whose export is over, registers new parts of the segment with the driver.
    void sweep();

  private:
    struct import_request {
        const mca_btl_base_endpoint_t *from;
        const remote_handle *handle;
        device *into;
    };
    struct opened_event {
        std::uint32_t owner, slot, device;
        CUevent event;
    };

    static status publish(void *self, const exported &entry, const void *described);
    static void retire(void *self, const exported &entry);
    static status open_mapping(void *self, const mapping_key &key, std::uint64_t remote_base,
                               std::uint64_t len_bytes, const void *request,
                               std::uint64_t *local_base);
    static void close_mapping(void *self, const mapping_key &key, std::uint64_t local_base);
    std::uint32_t record_event(device &of);
    void close_stale_mappings();
    void register_segment();

    std::vector<opened_event> events_;
    std::vector<std::uint32_t> event_published_; // by device index
    std::size_t registered_to_ = 0;              // where the registered part of our segment ends
    std::vector<std::pair<void *, device *>> registrations_; // start, and in whose context
    bool registration_failed_ = false;
};

// The GPU desk, made on the first call that finds a CUDA driver; null without one, or when the
// parameter use_cuda_ipc says no.
gpu_desk *gpu();

// pointer: from now on, and until remove_pointer_check, gpusm answers Open MPI's question whether
// an address is device memory, where accelerator/cuda would take long (btl_gpusm_pointer.cc).
void install_pointer_check(const driver_api &api);
void remove_pointer_check();

// An ordinary allocation of device memory, [start, end), as the pointer check last saw it.
struct plain_allocation {
    std::uint64_t start;
    std::uint64_t end;
    unsigned long long buffer_id; // never given to another allocation in the life of a process
    CUcontext context;
    int ordinal;
};
// The one that Open MPI's question about the buffer of a receive found, which comes before the
// receive is registered, and holds until it is complete, because the program may not free the
// buffer before. (An address outside of the buffer that was asked about, reached by a displaced
// datatype, is found as it was seen by itself.) Null when it is not known, and in programs with
// threads.
const plain_allocation *known_allocation(std::uint64_t address);
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
