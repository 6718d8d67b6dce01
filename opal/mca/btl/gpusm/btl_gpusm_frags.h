// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frags.h: the lists of fragments and their sizes.
#ifndef BTL_GPUSM_FRAGS_H
#define BTL_GPUSM_FRAGS_H

#include "opal/mca/btl/gpusm/btl_gpusm.h"

#include <atomic>
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
inline constexpr std::size_t frag_sizes = 5;

// All fragments of a transport, and what is to be done for those that have been sent. Any thread,
// unless it says otherwise.
class frag_store {
  public:
    explicit frag_store(transport &of);
    ~frag_store();
    frag_store(const frag_store &) = delete;
    frag_store &operator=(const frag_store &) = delete;

    // Makes the fragments that there have to be. False: there is no memory for them.
    bool make_first();

    // A fragment that can hold `bytes`, or null when none can be had now.
    mca_btl_gpusm_frag_t *get(std::size_t bytes);
    // The same for control messages (up to the size of a small fragment), never null. ob1 of Open
    // MPI 5.0 keeps a FIN or ACK that could not be sent until some callback of ours lets it try
    // again, and there may be none to come.
    // One that `waits` lies outside the segment.
    mca_btl_gpusm_frag_t *get_for_control(std::size_t bytes, bool waits = false);
    // The same as get() for a part of a message, which may be shorter than *bytes where there is no
    // memory for a single fragment of that size; then *bytes is how long.
    mca_btl_gpusm_frag_t *get_for_part(std::size_t *bytes);
    // Gives back a fragment that is in nobody's hands any more.
    void give(mca_btl_gpusm_frag_t *frag);

    // Posts a complete fragment, a small one in the fast box; as peer::post, and remembers to
    // flush. One outside the segment is kept until there is a fragment for it.
    status post(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag, frag_kind kind,
                mca_btl_base_tag_t tag);
    // Sends a message between the glue of two processes, of the size of a small fragment at most.
    // Anything but `ok` and `busy`: it has not gone, and will not.
    status post_control(mca_btl_base_endpoint_t *endpoint, frag_kind kind, const void *message,
                        std::size_t bytes);

    // Takes all of a closed peer's back. False: not yet; again later.
    bool take_back(mca_btl_base_endpoint_t *from);
    // May there be something for progress()?
    bool has_work() const { return has_work_.load(std::memory_order_relaxed); }
    // Do control messages to that peer wait for fragments outside the segment?
    bool must_wait(const mca_btl_base_endpoint_t *endpoint);
    // From now on nobody is called back: who would be has ended.
    void call_nobody_back() { calls_nobody_back_ = true; }
    // Hands fragments that came back to their callbacks and lists, posts what had to wait. Returns
    // how many completed. One thread at a time.
    int progress();

  private:
    void add(frag_list &list, std::size_t count);
    void lengthen_queue(frag_list &list, std::size_t bytes);
    void reclaim_from(mca_btl_base_endpoint_t *endpoint);
    void complete(mca_btl_gpusm_frag_t *frag, int result);
    void mark_active(mca_btl_base_endpoint_t *endpoint);
    mca_btl_gpusm_frag_t *first_deferred();
    int send_deferred();

    transport &transport_;
    std::atomic<bool> has_work_{false};
    bool calls_nobody_back_ = false;
    // Under the transport's lock, but for what does not change in `lists_`.
    frag_list lists_[frag_sizes];                    // by length
    std::deque<mca_btl_gpusm_frag_t *> deferred_;    // control messages outside the segment
    std::vector<mca_btl_base_endpoint_t *> active_;  // have fragments to post or to call back for
    std::vector<mca_btl_base_endpoint_t *> visited_; // by progress() only
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
void plan(frag_list (&lists)[frag_sizes]);

} // namespace gpusm

#endif
