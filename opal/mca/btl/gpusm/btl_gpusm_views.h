// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_views.h: messages of which one end is a view (views.h). The sender packs its own into
// device memory that the peer can map, before it offers the message. The receiver's kernel writes
// into the gaps' memory what it reads out of the peer's; where no kernel can, the bytes come into
// packed memory, in whatever mode, and are unpacked from there.
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

// A view is named to peers by its own address: where what was packed of it lies there.
std::uint64_t address_of_packed(const remote_handle &handle, std::uint64_t address);

// --- of gets into a view (`into_view`), under the GPU lock

// Mode mapped, and the source is known: hands a launch that writes into the view to the engine.
// Anything but `ok`: it cannot be.
status start_strided(transfer *get);
// The get goes into packed memory first: names that as its destination. False: there is none.
bool pack_first(transfer *get);
// A strided copy of it has failed. True: another one is under way; false: it ends, as its outcome
// says.
bool strided_otherwise(transfer *get);
// What has come into packed memory goes on. `busy`: on its way; else that is how it has ended.
status unpack(transfer *get);

// --- of messages to oneself

// For btl_get of that module, where one of the two lies in a view: one launch if both are of one
// device; else the bytes are packed or unpacked before this returns. Takes the GPU lock.
int copy_view_for_self(const registration &from, const registration &into, std::uint64_t source,
                       const get_arguments &given, mca_btl_base_endpoint_t *endpoint,
                       std::size_t size);

} // namespace gpusm

#endif
