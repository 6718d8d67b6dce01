// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_delegate.h: messages within a device that several processes use without MPS: one of
// these copies for all (mode `delegated`).
#ifndef BTL_GPUSM_DELEGATE_H
#define BTL_GPUSM_DELEGATE_H

#include "opal/mca/btl/gpusm/btl_gpusm_transfer.h"

#include <cstddef>

namespace gpusm {

// All but delegated_message_from() under the GPU lock.

// Whether another process is to copy what this get fetches.
bool may_delegate(const transfer *get);
// Asks that one to. Anything but `ok`: it has not been asked.
status delegate(transfer *get);
// Goes on with the copies that this process has asked for, and with those that it makes for others.
// What nobody has copied this process fetches by itself.
void progress_delegated(gpu_side &side);
// A control message. False: it makes no sense. Takes the GPU lock.
bool delegated_message_from(mca_btl_base_endpoint_t *from, const unsigned char *payload,
                            std::size_t bytes);

} // namespace gpusm

#endif
