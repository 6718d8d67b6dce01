// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_transfer.h: a message that this process fetches: one btl_get on its way, in whatever
// mode, and its end. Only single copies between host memories are over within the call, and have
// none.
#ifndef BTL_GPUSM_TRANSFER_H
#define BTL_GPUSM_TRANSFER_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include "opal/mca/common/gpusm/base/queue.h"
#include "opal/mca/common/gpusm/choose.h"
#include "opal/mca/common/gpusm/delegated_copies.h"
#include "opal/mca/common/gpusm/gpu/bounce_copies.h"
#include "opal/mca/common/gpusm/gpu/copy_list.h"
#include "opal/mca/common/gpusm/protocol/stream.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// What ob1 has given btl_get, for the callback.
struct get_arguments {
    mca_btl_base_module_t *btl;
    void *local_address;
    mca_btl_base_registration_handle_t *local_handle;
    mca_btl_base_rdma_completion_fn_t cbfunc;
    void *cbcontext;
    void *cbdata;

    void call_back(mca_btl_base_endpoint_t *from, int result) const
    {
        cbfunc(btl, from, local_address, local_handle, cbcontext, cbdata, result);
    }
};

// Ends in complete(), exactly once.
struct transfer {
    opal_free_list_item_t super;
    mca_btl_base_endpoint_t *endpoint;
    get_arguments given;
    std::uint64_t remote_address;
    remote_handle remote;
    facts known; // of this message
    mode goes;   // what follows from them
    bool from_blocks;
    bool has_waited;     // for descriptors, once
    bool kernel_reads;   // a kernel in the context of `into` may read the source
    struct device *into; // in whose context it is copied; null: by processors alone
    // Referenced while it is copied; null before, for what is not mapped, and for memory of this
    // process.
    struct mapping *mapping;
    // Referenced while another process may write there by itself, and read what this one sends to
    // itself; else null.
    struct exported *target;
    struct exported *source;
    view *into_view;     // in which the buffer lies, or null
    view *from_view;     // which stands for mapped blocks of the peer's; owned; or null
    transfer *next;      // in the list that it waits in
    packed_block packed; // that it writes there in the place of a buffer with gaps; or none
    bounce job; // its length, destination and outcome; modes mapped, bounced, self: its copy
    // What few messages have comes last: a plain copy touches fewer lines of the caches so.
    stream_fetch stream;         // modes with a ring or a target (docs/streams.md)
    delegated_request delegated; // mode delegated
    strided_side blocks;         // of the source, at the peer's addresses, if `from_blocks`
    remote_handle described;     // what has named them

    // The devices' side of the process; there is one if either memory is a device's.
    gpu_side &gpu() const { return *endpoint->transport->process.gpu_if_made(); }
};

// Under the GPU lock, but for `all`, which locks itself.
struct transfers {
    free_list<transfer> all;
    // Those to or from a device that have ended and whose callback is due; oldest first.
    queue<transfer> ended;
    std::uint32_t progress_calls = 0;
};

// One with what is the same for all modes. Null: there is no memory.
transfer *new_transfer(mca_btl_base_endpoint_t *endpoint, const get_arguments &given,
                       const facts &known);

inline transfer *transfer_of(const stream_fetch *stream)
{
    return enclosing<transfer>(const_cast<stream_fetch *>(stream), offsetof(transfer, stream));
}

// Its stream, of which nothing has been asked for yet.
stream_fetch &new_stream(transfer *get, stream_pool *pool);

// Gives back the mapping and the export that it holds. Under the GPU lock, if it holds some.
void release_memory(transfer *get);
// It has ended, as `outcome` says: queues it for the next progress_gets, which completes it without
// the GPU lock. Under that lock.
void finish(transfer *get, status outcome);
// Again, when what it has waited for has come or failed; ends it where that is not to be. Of a
// source that has ended nothing is written from then on: with fault tolerance ob1 ends the receives
// from it at once, and their memory is the program's again.
void start_get_again(transfer *get);
// Whether that process has. Asks the system.
bool source_has_ended(const transfer *get);
// Counts it by its mode, gives it back, and tells ob1. Holds nothing any more. Without the GPU
// lock: ob1 may call from within.
void complete(transfer *get, status outcome);

} // namespace gpusm

#endif
