// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_limits.h: up to which length host messages go in two copies, through a fragment, which
// Open MPI knows as btl_eager_limit (btl_gpusm_limits.cc).
#ifndef BTL_GPUSM_LIMITS_H
#define BTL_GPUSM_LIMITS_H

#include <cstddef>

namespace gpusm {

// It is never less: ob1's headers have to fit.
inline constexpr std::size_t least_eager_limit = 1024;
// Messages of 8 KiB, with ob1's header, go at once unless there are many peers: the two copies of a
// fragment take no longer than a rendezvous and the system call of a single copy.
inline constexpr std::size_t eager_frag_bytes = 8 * 1024 + 256;
// Sets the limits that the user has not set: btl_eager_limit by what that system call costs here,
// and by the number of peers. It follows component.two_copies and component.message_rows from then
// on.
void choose_limits(bool threads);
// One of them has another limit now. Called under component.watching.
void follow_limits();
// A peer has asked for the pieces of a host message, which it does for its devices only.
void host_messages_go_to_devices();

} // namespace gpusm

#endif
