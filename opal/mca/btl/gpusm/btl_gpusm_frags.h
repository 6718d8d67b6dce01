// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frags.h: fragments: their lists, and which one is taken next (btl_gpusm_frags.cc).
#ifndef BTL_GPUSM_FRAGS_H
#define BTL_GPUSM_FRAGS_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <cstddef>

namespace gpusm {

// Fixes the payload of each size of fragments. Returns the bytes that all of them together, and
// what GPU messages need besides, can come to take of the segment.
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
// The same for little that is written into it: if possible the one that was used last.
mca_btl_gpusm_frag_t *frag_get_warm(std::size_t bytes);
// The same for ob1's control messages (up to the size of a small fragment): never null for want
// of shared memory. ob1 of Open MPI 5.0 keeps a FIN or ACK that could not be sent until some
// callback of ours lets it try again, and there may be none to come.
mca_btl_gpusm_frag_t *frag_get_for_control(std::size_t bytes);

// Gives back a fragment that no peer has read.
void frag_return(mca_btl_gpusm_frag_t *frag);
// Gives back one that the peer has read.
void frag_return_read(mca_btl_gpusm_frag_t *frag);

// Do fragments for so many bytes take turns?
inline bool takes_turns(std::size_t bytes)
{
    return bytes >= mca_btl_gpusm_component.least_in_turns;
}
// Before or after a message of so many bytes, takes back what the peer is done with, if that is
// likely to be the fragment that was used a moment ago, and is in the cache. In a program without
// threads only.
inline void reclaim_warm_frags(mca_btl_base_endpoint_t *endpoint, std::size_t bytes)
{
    if (!takes_turns(bytes) && !mca_btl_gpusm_component.threads &&
        endpoint->peer->may_have_given_back()) {
        reclaim_frags_of(endpoint);
    }
}
// The next message is likely to be as long as this one, which has been sent. The peer that read the
// next fragment has its lines: takes them back before they are written. In a program without
// threads only.
void own_next_frag(const mca_btl_gpusm_frag_t *like);

} // namespace gpusm

#endif
