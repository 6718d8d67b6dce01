// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_device.h: messages out of or into device memory: what register_mem and get do for
// them, and their ends.
#ifndef BTL_GPUSM_DEVICE_H
#define BTL_GPUSM_DEVICE_H

#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_transfer.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// The buffer of the get is host memory.
inline bool is_for_host(const transfer *get)
{
    const registration *local = registration_around(get->given.local_handle);
    return nullptr == local || nullptr == local->device;
}

// For register_mem: device memory that the peer is to fetch (`for_peers`), or the buffer of a get.
// Takes the GPU lock.
status register_device(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                       void *base, std::size_t size, bool for_peers);
// Sender's side, device memory: makes it known to the peer. Under the GPU lock.
status offer_device(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                    std::uint64_t address, std::size_t size);
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
                  const get_arguments &given, mca_btl_base_endpoint_t *endpoint, std::size_t size);
// Brings the counters up to date of what the layers count by themselves. Under the GPU lock.
void tell_counters(const gpu_side &side);
// The same of what btl_gpusm_check_sync counts. Any thread.
void tell_checks(transport &of);
// Completes copies; returns how many. `busy`: this call of progress has found other work. Takes the
// GPU lock if it is free, in a process that has a GPU side.
int progress_gets(transport &of, bool busy);

// ipc: makes `get`, whose export is not mapped here, wait for the peer's file descriptors,
// which are asked for if nobody has yet. `busy`: it waits, and start_get is called again when they
// are there, or it ends as failed. Anything else: it does not wait. Under the GPU lock.
status wait_for_descriptors(transfer *get);
// ipc: the memory of that export cannot be mapped for the device `into`: asks its owner to stage
// what is of that kind and on that device for a while, in host memory. Under the GPU lock.
void cannot_map(mca_btl_base_endpoint_t *owner, const remote_handle &handle, const device &into);
// ipc: it can, and its owner has asked.
void can_map_after_all(mca_btl_base_endpoint_t *owner, const remote_handle &handle);

// Sets get->goes by what is known, asking for what is not; start_get does so, too. Under the GPU
// lock.
void choose_mode(transfer *get);
// The same of a get that has waited: what was known may have changed.
void choose_mode_anew(transfer *get);

// Mode bounced: the source is mapped, or is this process's own, or is host memory of the peer's
// that is copied once. Under the GPU lock.
void bounce_get(transfer *get);

// Imports what the get names and hands the copy to the engine; `busy`: it waits. Under the GPU
// lock. Anything but these two: the get is still the caller's.
status start_get(transfer *get);

} // namespace gpusm

#endif
