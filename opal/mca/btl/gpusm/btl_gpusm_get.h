// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_get.h: what the files of the get path share: registrations and gets.
//
//   btl_gpusm_register.cc     register_mem, deregister_mem
//   btl_gpusm_get.cc          get, completion
//   btl_gpusm_bounce.{h,cc}   pieces between device memory and ordinary host memory
//   btl_gpusm_stage.cc        gets of memory that cannot be mapped, streamed, and those between
//                             device and ordinary host memory of which both sides copy a part
#ifndef BTL_GPUSM_GET_H
#define BTL_GPUSM_GET_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"
#include "opal/mca/btl/gpusm/btl_gpusm_bounce.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/protocol/stream.h"

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
    bool streamed;             // it is or was being streamed
    std::uint32_t number;      // for good; what a handle of kind `staged` or `host` calls `slot`
    std::uint64_t turn;        // raised by every register_mem and every deregister_mem: odd while
                               // it is registered; what such a handle calls `generation`
};

// What a copy_request is part of, so that its end finds its way; copy_request::part_of.
enum class copy_part : std::uint8_t {
    get = 0,    // a get_request
    stage = 1,  // of a stream
    bounce = 2, // a piece of a bounce
};

// What has failed so many times in a row is not tried any more: copies into or out of a ring on a
// device, whose context may have been destroyed; copies by the sender into a receiver's device
// memory.
inline constexpr std::uint32_t failures_in_a_row = 4;

// One btl_get on its way. Ends in finish_get, exactly once.
struct get_request {
    opal_free_list_item_t super;
    copy_request copy;
    struct mapping *mapping; // referenced while it is copied; null before, and for staged gets
    struct exported *target; // referenced while the sender may write there by itself; else null
    mca_btl_base_endpoint_t *endpoint;
    void *local_address;
    std::uint64_t remote_address;
    remote_handle remote;
    mca_btl_base_registration_handle_t *local_handle;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;
    bounce bouncing;     // of a get that this process copies by hand, alone
    stream_fetch stream; // of memory that cannot be mapped, or of which the sender copies a part
    bool has_waited;     // for descriptors, once
    struct device *into; // in whose context it is copied
    get_request *next;   // in the list that it waits in
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

// stage: makes the streams that devices take part in, when there is a node.
void setup_stage();
// Streams what get->remote names, which cannot be mapped. `ok`: it will end in finish_get. Under
// the GPU lock.
status stage_fetch(get_request *get);
// Fetches mapped device memory into ordinary host memory together with its owner. False: that is
// not worth it, or not possible; nothing has happened. Under the GPU lock, when can_bounce().
bool share_get(get_request *get);
// Would this process copy so many bytes of page-locked host memory into that peer's device memory
// by itself, if the peer names some? Any thread.
bool writes_to(const mca_btl_base_endpoint_t *reader, std::size_t len_bytes);
// A stream_message of a peer; false: it makes no sense. Takes the GPU lock itself.
bool stage_message_from(mca_btl_base_endpoint_t *endpoint, const unsigned char *payload,
                        std::size_t bytes);
// The same of any stream, and how such a message is sent, with what is behind it.
bool stream_message_for(stream_sender *streams, mca_btl_base_endpoint_t *from,
                        const unsigned char *payload, std::size_t bytes);
status post_stream_message(peer &to, frag_kind kind, const stream_message &message,
                           const stream_memory *memory);
// A copy_part::stage has ended. Under the GPU lock.
void stage_copied(copy_request *copy);
// Are several messages being streamed? A snapshot.
bool stages_several();
// Moves streams and waiting gets on. Under the GPU lock, in a process that has a GPU side. Returns
// how many gets have ended.
int progress_stage();
void release_stage();           // everything; cancels copies
std::size_t stage_ring_bytes(); // what its rings may take of our segment

} // namespace gpusm

#endif
