// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frags.h: the free lists of fragments, one for each size of payload.
//
// Of short fragments the one that was used last is used next. Long ones are used in the order in
// which they came back, and there come to be 2 MiB of them: lines that the peer's cache still holds
// would have to be taken from it one by one when they are written again.
#ifndef BTL_GPUSM_FRAGS_H
#define BTL_GPUSM_FRAGS_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <cstddef>

namespace gpusm {

// Fixes the payload of each size of fragments. Returns the bytes that all of them together, and
// what longer messages need besides, can come to take of the segment.
std::size_t plan_frags();
// Makes the lists, when there is a segment. False: no memory; release_frag_lists() is due anyway.
bool make_frag_lists();
void release_frag_lists();

// The fragment whose `out` that is.
inline mca_btl_gpusm_frag_t *frag_around(outgoing *out)
{
    return enclosing<mca_btl_gpusm_frag_t>(out, offsetof(mca_btl_gpusm_frag_t, out));
}

// A fragment that can hold `bytes`, or null when none can be had now.
mca_btl_gpusm_frag_t *frag_get(std::size_t bytes);
// The same for ob1's control messages (up to the size of a small fragment): never null for want
// of shared memory. ob1 of Open MPI 5.0 keeps a FIN or ACK that could not be sent until some
// callback of ours lets it try again, and there may be none to come.
mca_btl_gpusm_frag_t *frag_get_for_control(std::size_t bytes);

// Gives back a fragment that is in nobody's hands any more.
void frag_return(mca_btl_gpusm_frag_t *frag);

// Before a message to that peer takes a fragment: takes back those that the peer has read, if it
// has sent something since, so that the one that is used next is the one that was used last.
inline void reclaim_warm_frags(mca_btl_base_endpoint_t *endpoint)
{
    if (!mca_btl_gpusm_component.threads && endpoint->peer->may_have_given_back()) {
        reclaim_frags_of(endpoint);
    }
}

} // namespace gpusm

#endif
