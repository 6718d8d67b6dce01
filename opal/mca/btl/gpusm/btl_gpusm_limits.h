// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_limits.h: up to which length host messages go in two copies, through a fragment, which
// Open MPI knows as btl_eager_limit (btl_gpusm_limits.cc).
#ifndef BTL_GPUSM_LIMITS_H
#define BTL_GPUSM_LIMITS_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// No header of ob1's is longer. The limits are of messages with their headers.
inline constexpr std::size_t header_bytes = 256;
// It is never less: ob1's headers have to fit.
inline constexpr std::size_t least_eager_limit = 1024;
// What goes at once in btl/sm (4 KiB with its header) does so here, whatever the messages teach:
// there are programs that count on it, though MPI does not let them.
inline constexpr std::size_t sm_eager_bytes = 4 * 1024 + header_bytes;
// Messages of 8 KiB, with ob1's header, go at once unless there are many peers: the two copies of a
// fragment take no longer than a rendezvous and the system call of a single copy.
inline constexpr std::size_t eager_frag_bytes = two_copies::least_unless_slow_bytes;
// Messages of 32 KiB, which go so in rows, and pieces of longer ones.
inline constexpr std::size_t middle_frag_bytes = 32 * 1024 + header_bytes;
// Messages of 28 KiB: longer ones that come alone are read by single copies of both sides. So those
// that have been written anew go at once up to there, and others at first: as long as nobody knows
// that they do not go to devices.
inline constexpr std::size_t unshared_bytes = 28 * 1024 + header_bytes;
// Sets the limits that the user has not set: btl_eager_limit by what that system call costs here,
// and by the number of peers. It follows component.two_copies, host_messages, message_rows,
// written_messages, device_rows and device_samples from then on.
void choose_limits(bool threads);

// What messages teach. All of it is kept under component.watching, which these take.

// A host message, so many bytes from `data` on, was offered; `single`: for a single copy. Do lines
// of cache come slowly here?
bool watch_offer(const void *data, std::size_t len_bytes, bool single);
// A peer has asked for the pieces of one of that length, which it does for its devices only.
void watch_device(std::uint64_t len_bytes);
// A host message, `len_bytes` from `data` on, goes in two copies, of `bytes` with its header. Is
// the first copy to be timed? If so, watch_timed has to follow.
bool watch_copies(std::size_t bytes, const void *data, std::size_t len_bytes);
void watch_timed(std::size_t bytes, std::uint64_t ns);
// It is one that component.message_rows concerns, and will be posted next.
void watch_row(const mca_btl_base_endpoint_t *endpoint);

} // namespace gpusm

#endif
