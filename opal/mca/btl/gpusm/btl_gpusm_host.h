// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_host.h: messages longer than the eager limit between host memories.
//
// The sender offers them. Where they are streamed the first bytes come along with the offer, as a
// lead, and are copied out while the sender is asked for the rest (protocol/stream.h). Else the
// receiver reads them by a single copy (btl_gpusm_smsc.h), long ones together with the sender.
#ifndef BTL_GPUSM_HOST_H
#define BTL_GPUSM_HOST_H

#include "opal/mca/btl/gpusm/btl_gpusm_get.h"

namespace gpusm {

// Makes the streams, when there is a node; measures what a system call costs.
void setup_host();
void release_host();

// Is host memory streamed to a peer that can (`single`) or cannot read it by single copies?
bool streams_to(bool single);
// What `given` names, which was streamed, is not to be read any more.
void forget_source(registration *given);

// An offer has come in, with a lead behind it.
void deliver_with_lead(mca_btl_base_endpoint_t *from, const frag_header &header,
                       const unsigned char *payload);
// A fragment of kind `lead` has come in.
void lead_from(mca_btl_base_endpoint_t *from, const unsigned char *payload, std::size_t bytes);

// No more of them will come from that peer: what waits for some ends as failed.
void end_lead(mca_btl_base_endpoint_t *from);

// A stream_message has come in; false: it makes no sense.
bool stream_message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                         std::size_t bytes);
// Copies pieces, and calls back for messages that are complete; returns how many.
int progress_streams();

// As btl_get, for host memory that is fetched into host memory.
int get_host(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
             std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
             mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int flags,
             int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata);

} // namespace gpusm

#endif
