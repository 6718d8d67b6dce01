// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frags.h: the lists of fragments and their sizes.
#ifndef BTL_GPUSM_FRAGS_H
#define BTL_GPUSM_FRAGS_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace gpusm {

// The fragments of one size. Of the smallest and of long ones the one that came back last is used
// next, as it is in this processor's cache. Those between are a queue, if each process has a
// processor: with the traffic it becomes longer than an L2 cache, as a line that the peer still has
// in its own takes up to three times as long to write as one that has gone to the shared L3 cache.
struct frag_list {
    std::size_t payload_bytes = 0;
    std::size_t most = 0; // fragments
    bool is_queue = false;
    std::size_t taken_bytes = 0; // of a queue, since it became longer
    outgoing *free = nullptr;    // the next one first
    outgoing *last = nullptr;    // valid if there is a free one
    std::deque<mca_btl_gpusm_frag_t> made;
};

struct frag_store {
    frag_list lists[5];                               // by length
    std::deque<mca_btl_gpusm_frag_t *> deferred = {}; // control messages outside the segment
    // Have fragments to post or to call back for.
    std::vector<mca_btl_base_endpoint_t *> active = {};
    std::vector<mca_btl_base_endpoint_t *> visited = {}; // by progress_sends only
};

// Payload that a control message or an inline send of ob1 (256 bytes and a header) needs.
inline constexpr std::size_t small_payload_bytes = 288;

// Long fragments keep off the ends of pages, for the same reason as the slots of rings
// (stream_slots_offset).
inline std::uint32_t skipped_granules(const frag_list &list)
{
    return list.payload_bytes < page_bytes ? 0 : 2;
}

// Of the segment, for each.
inline std::size_t frag_bytes(const frag_list &list)
{
    const std::size_t bytes = sizeof(frag_header) + list.payload_bytes;
    return ((bytes + granule_bytes - 1) / granule_bytes + skipped_granules(list)) * granule_bytes;
}

// Fixes the payload of each size, and the most of each.
void plan(frag_list *lists);

} // namespace gpusm

#endif
