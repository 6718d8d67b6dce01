// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_device.h: messages out of or into device memory: what register_mem and get do for
// them, and their ends.
#ifndef BTL_GPUSM_DEVICE_H
#define BTL_GPUSM_DEVICE_H

#include "opal/mca/common/gpusm/base/queue.h"
#include "opal/mca/common/gpusm/choose.h"
#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/common/gpusm/protocol/stream.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// One btl_get on its way. Ends in finish_get, exactly once.
struct get_request {
    opal_free_list_item_t super;
    copy_request copy;
    // Referenced while it is copied; null before, for staged gets, and for memory of this process.
    struct mapping *mapping;
    struct exported *target; // referenced while the sender may write there by itself; else null
    mca_btl_base_endpoint_t *endpoint;
    std::uint64_t remote_address;
    remote_handle remote;
    host_get::arguments given;
    facts known;         // of this get
    mode goes;           // what follows from them
    bounce bouncing;     // mode bounced
    stream_fetch stream; // modes shared, pushed, pulled, device_ring, staged_ring
    bool has_waited;     // for descriptors, once
    bool kernel_reads;   // a kernel in the context of `into` may read the source
    struct device *into; // in whose context it is copied
    get_request *next;   // in the list that it waits in
};

// The gets of device memory. Under the GPU lock, but for `all`, which locks itself.
struct device_gets {
    free_list<get_request> all;
    // Those that have ended and whose callback is due; oldest first.
    queue<get_request> ended;
    std::uint32_t progress_calls = 0;
};

// The buffer of the get is host memory.
inline bool is_for_host(const get_request *get)
{
    const registration *local = registration_around(get->given.local_handle);
    return nullptr == local || nullptr == local->device;
}

// For register_mem: device memory that the peer is to fetch (`for_peers`), or the buffer of a get.
// Takes the GPU lock.
status register_device(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                       void *base, std::size_t size, bool for_peers);
// For deregister_mem, in a process that has a GPU side. Takes the GPU lock.
void deregister_device(gpu_side &side, registration *given);
// As btl_get, unless both memories are host memory.
int get_device(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
               std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
               mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int flags,
               int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata);
// For btl_get of the module for messages to oneself, unless both memories are host memory: copies
// `size` bytes out of `from` at `source` into `into`. Takes the GPU lock.
int copy_for_self(const registration &from, const registration &into, std::uint64_t source,
                  const host_get::arguments &given, mca_btl_base_endpoint_t *endpoint,
                  std::size_t size);
// Completes copies; returns how many. `busy`: this call of progress has found other work. Takes the
// GPU lock if it is free, in a process that has a GPU side.
int progress_gets(bool busy);

// Queues the end of a get, good or bad, for the next progress_gets, which calls back and frees it.
// Under the GPU lock; whatever the get held (mappings, pieces) has been given back.
void finish_get(get_request *get, status outcome);

// ipc: makes `get`, whose export is not mapped here, wait for the peer's file descriptors,
// which are asked for if nobody has yet. `busy`: it waits, and start_get is called again when they
// are there, or it ends as failed. Anything else: it does not wait. Under the GPU lock.
status wait_for_descriptors(get_request *get);
// ipc: the memory of that export cannot be mapped for the device `into`: asks its owner to stage
// what is of that kind and on that device for a while, in host memory. Under the GPU lock.
void cannot_map(mca_btl_base_endpoint_t *owner, const remote_handle &handle, const device &into);
// ipc: it can, and its owner has asked.
void can_map_after_all(mca_btl_base_endpoint_t *owner, const remote_handle &handle);

// Sets get->goes by what is known, asking for what is not; start_get does so, too. Under the GPU
// lock.
void choose_mode(get_request *get);
// The same of a get that has waited: what was known may have changed.
void choose_mode_anew(get_request *get);

// Imports what the get names and hands the copy to the engine; `busy`: it waits. Under the GPU
// lock. Anything but these two: the get is still the caller's.
status start_get(get_request *get);

} // namespace gpusm

#endif
