// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_smsc.h: single copies between host memory of this process and of a peer: what Open
// MPI's framework smsc does for us. Any thread.
#ifndef BTL_GPUSM_SMSC_H
#define BTL_GPUSM_SMSC_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// May this process make single copies?
bool smsc_reads_plainly();
// Can the peer read this process's host memory by itself? It has not said that it cannot.
bool smsc_reaches_us(mca_btl_base_endpoint_t *endpoint);
// Reads host memory of the peer into host memory, and returns when that is done; `remote_address`
// need not have been checked. Anything but `ok`: nothing, or a part, has been read.
status smsc_read(mca_btl_base_endpoint_t *endpoint, void *local, std::uint64_t remote_address,
                 std::size_t bytes);
// Counts a message that has been read so.
inline void count_single_copy(std::size_t bytes)
{
    count(counter::single_copy_messages, 1);
    count(counter::single_copy_bytes, bytes);
}
// The other way round; counted nowhere.
status smsc_write(mca_btl_base_endpoint_t *endpoint, const void *local,
                  std::uint64_t remote_address, std::size_t bytes);
// Has that not failed some times in a row?
bool smsc_writes_to(const mca_btl_base_endpoint_t *endpoint);
// Forgets what is known of the peer; nothing of it may be under way.
void smsc_release(mca_btl_base_endpoint_t *endpoint);

} // namespace gpusm

#endif
