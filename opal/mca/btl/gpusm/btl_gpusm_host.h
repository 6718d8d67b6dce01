// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_host.h: messages longer than the eager limit between host memories.
//
// The sender offers them, and the receiver reads them by single copies (btl_gpusm_smsc.h), long
// ones together with the sender (protocol/stream.h). Where there are none ob1 sends fragments.
#ifndef BTL_GPUSM_HOST_H
#define BTL_GPUSM_HOST_H

#include "opal/mca/btl/gpusm/btl_gpusm_get.h"

namespace gpusm {

// Makes what both sides need to copy, when there is a node.
void setup_host();
void release_host();

// What `given` names, of which peers may be copying parts, is not to be read any more.
void forget_source(registration *given);

// A frag_kind::cooperative has come in; false: it makes no sense.
bool cooperative_message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                              std::size_t bytes);
// Copies parts, and calls back for messages that are complete; returns how many.
int progress_host();

// As btl_get, for host memory that is fetched into host memory.
int get_host(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint, void *local_address,
             std::uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
             mca_btl_base_registration_handle_t *remote_handle, std::size_t size, int flags,
             int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext, void *cbdata);

} // namespace gpusm

#endif
