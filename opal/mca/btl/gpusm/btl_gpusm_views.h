// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_views.h: messages of which one end is a view (views.h). The sender describes its blocks
// to the peer, whose kernel reads them; where that would take longer, or cannot be, it packs them
// into device memory that the peer can map. A view at the receiver is an address like any other:
// the copy engine knows what to do.
#ifndef BTL_GPUSM_VIEWS_H
#define BTL_GPUSM_VIEWS_H

#include "opal/mca/btl/gpusm/btl_gpusm_device.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// For register_device, of an address in a view. Under the GPU lock.
status register_view(gpu_side &side, const mca_btl_base_endpoint_t *endpoint, registration *made,
                     std::uint64_t address, std::size_t size, bool for_peers);
// Gives back what that has taken. Under the GPU lock.
void deregister_view(gpu_side &side, registration *given);

// pml/ob1 names a view to peers by its own address: what that is in the memory of the handle, where
// it was packed into or, when its blocks are described, the view itself.
std::uint64_t address_in_handle(const remote_handle &handle, std::uint64_t address);

// --- of gets, under the GPU lock

// The handle is of kind `strided`: takes what it describes. False: nothing that makes sense.
bool find_blocks(transfer *get);
// The memory in which the blocks lie is mapped: makes them the source of the copy.
status map_blocks(transfer *get);

// How much of a message of `size` bytes has room from that address in a view on; all of it if that
// is null. 0: nothing has.
std::size_t size_in_view(const view *into, std::uint64_t address, std::size_t size);

} // namespace gpusm

#endif
