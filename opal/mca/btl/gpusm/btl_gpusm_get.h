// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_get.h: what the files of the get path share: registrations and gets.
//
//   btl_gpusm_register.cc     register_mem, deregister_mem
//   btl_gpusm_get.cc          get, completion
//   btl_gpusm_bounce.{h,cc}   pieces between device memory and ordinary host memory
//   btl_gpusm_stage.cc        gets of memory that cannot be mapped, staged by its owner
#ifndef BTL_GPUSM_GET_H
#define BTL_GPUSM_GET_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_bounce.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// What register_mem made; ob1 sees the handle inside. Recycled through a free list.
struct registration {
    opal_free_list_item_t super;
    mca_btl_base_registration_handle_t handle;
    struct exported *exported; // referenced; null unless the handle names an export
    struct device *device;     // whose context the memory wants; null for host memory
    std::uint64_t plain_until; // where the device memory ends that a kernel may write, else 0
    bool streamed;             // host memory that is or was being streamed
    std::uint32_t number;      // for good; what a handle of kind `staged` or `host` calls `slot`
    std::uint64_t turn;        // raised by every register_mem and every deregister_mem: odd while
                               // it is registered; what such a handle calls `generation`
};

// What a copy_request is part of, so that its end finds its way; copy_request::part_of.
enum class copy_part : std::uint8_t {
    get = 0,         // a get_request
    stage_in = 1,    // the owner's copy into a staging ring
    stage_out = 2,   // the reader's copy out of one
    bounce = 3,      // a piece of a bounce
    stage_write = 4, // the owner's copy into memory of the reader
};

// One btl_get on its way. Ends in finish_get, exactly once.
struct get_request {
    opal_free_list_item_t super;
    copy_request copy;
    struct mapping *mapping; // referenced while the copy runs; null before and for staged gets
    struct exported *target; // referenced while the owner may write there by itself; else null
    mca_btl_base_endpoint_t *endpoint;
    void *local_address;
    std::uint64_t remote_address;
    remote_handle remote;
    mca_btl_base_registration_handle_t *local_handle;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;
    bounce bouncing;          // what this process copies by hand
    struct staged_get *owner; // that the owner copies a part, and has not said that it is over
    bool a_part_is_over;      // of a get that is done in two parts
    bool part_failed;
    std::uint64_t owners_bytes; // of a pull, that have come from the owner
    std::uint64_t rest_from;    // from there on the owner could not do its part; else the length
    bool has_waited;            // for descriptors, once
    struct device *into;        // in whose context it is copied
    get_request *next;          // in the list that it waits in
};

// A list without a bound, of objects of that class; `number` may be null.
void setup_free_list(opal_free_list_t *list, std::size_t item_bytes, opal_class_t *of,
                     opal_free_list_item_init_fn_t number);

void setup_registrations();
void release_registrations();
registration *registration_around(mca_btl_base_registration_handle_t *handle);

// The buffer of the get is host memory.
inline bool is_for_host(const get_request *get)
{
    return nullptr == get->local_handle ||
           nullptr == registration_around(get->local_handle)->device;
}

// The registration that a peer's handle of kind `staged` or `host` names, if it is registered and
// [address, address + len_bytes) lies in it; else null. The caller holds the GPU lock.
registration *registration_named(const remote_handle &handle, std::uint64_t address,
                                 std::uint64_t len_bytes);

// Queues the end of a get, good or bad, for the next progress_gets, which calls back and frees it.
// Under the GPU lock; whatever the get held (mappings, pieces) has been given back.
void finish_get(get_request *get, status outcome);

// ipc: makes `get`, whose export is not mapped here, wait for the peer's file descriptors,
// which are asked for if nobody has yet. `busy`: it waits, and start_get is called again when they
// are there, or it ends as failed. Anything else: it does not wait. Under the GPU lock.
status wait_for_descriptors(get_request *get);
// ipc: the memory of that export cannot be mapped here: asks its owner to stage what is on that
// device from now on, in host memory. Under the GPU lock.
void cannot_map(mca_btl_base_endpoint_t *owner, const remote_handle &handle, refuse_reason reason);

// ipc: sends a control message; false: it could not be taken.
bool send_ipc_message(mca_btl_base_endpoint_t *endpoint, const ipc_message &message);

// get: imports what the get names and hands the copy to the engine; `busy`: it waits. Under the GPU
// lock. Anything but these two: the get is still the caller's.
status start_get(get_request *get);

// get: takes a get whose source is mapped and whose destination is host memory; it ends in
// finish_get. False: it is copied as well without. Under the GPU lock.
bool bounce_get(get_request *get);
// The same for a get that the driver was to copy at once, and did not. False: there is nothing else
// to try.
bool bounce_failed_get(get_request *get);

// stage: reader's side. Asks the owner of the memory that get->remote names to stage
// [remote_address, + copy.len_bytes). `ok`: it will end in finish_get. Under the GPU lock.
status stage_fetch(get_request *get);
// Would this process copy so many bytes of page-locked host memory into that peer's device memory
// by itself, if the peer names some? Any thread.
bool writes_to(const mca_btl_base_endpoint_t *reader, std::size_t len_bytes);
// From now on what that owner stages is asked for through host memory. Under the GPU lock.
void stage_by_host_memory(const mca_btl_base_endpoint_t *owner);
// A stage_message of a peer, either side. Takes the GPU lock itself.
void stage_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                        std::size_t bytes);
// A copy that stage started (copy_part::stage_in, stage_out, stage_write) has ended. Under the GPU
// lock.
void stage_copied(copy_request *copy);
// Lets the owner of device memory copy a part of a get into host memory, if it can be had for that:
// then get->bouncing has a split. Under the GPU lock.
void stage_share(get_request *get);
// Moves waiting fetches on as far as there is room in the rings. Under the GPU lock. Returns how
// many pieces went.
int progress_stage();
// Can memory of this process's device be staged: is there, or can there be made, a ring on `of`?
// Then the ring's export in *ring, referenced by nobody. Under the GPU lock.
status stage_ring_on(device &of, remote_handle *ring);
void release_stage();          // everything; copies have been cancelled
std::size_t host_ring_bytes(); // what the host ring may take of our segment, once

} // namespace gpusm

#endif
