// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frags.cc: the fragments that messages lie in: made, taken, posted, and taken back when
// the peer has read them (shm/peer.h).
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

namespace gpusm {

namespace {

// L2 caches have half of that, or all of it. New memory takes some times as long as what is copied
// into it, so a queue gets a fragment more when so many times as much was sent.
constexpr std::size_t queue_bytes = 2 * 1024 * 1024;
constexpr std::size_t sent_for_one_more = 32;
// When they run out there come so many bytes of them, or one.
constexpr std::size_t added_bytes = 32 * 1024;

// A descriptor outside the segment.
struct private_frag {
    mca_btl_gpusm_frag_t frag; // first, so that its address is ours
    unsigned char payload[small_payload_bytes];
};

// Made at the start, where an error can still be reported: whatever memory there is later, messages
// up to the eager limit can go in these, one after the other.
constexpr std::size_t first_small_frags = 16;
constexpr std::size_t first_short_frags = 2;
constexpr std::size_t first_eager_frags = 1; // of a longer eager limit

std::uint32_t off_page_ends(std::uint32_t granule, std::uint32_t skipped)
{
    constexpr std::uint32_t granules = page_bytes / granule_bytes;
    return granule + ((granule + 1) % granules < skipped ? skipped : 0);
}

mca_btl_gpusm_frag_t *frag_around(outgoing *out)
{
    return enclosing<mca_btl_gpusm_frag_t>(out, offsetof(mca_btl_gpusm_frag_t, out));
}

void set_up(mca_btl_gpusm_frag_t *frag, frag_list *list, void *payload)
{
    OBJ_CONSTRUCT(&frag->base, mca_btl_base_descriptor_t);
    frag->base.des_segments = &frag->segment;
    frag->base.des_segment_count = 1;
    frag->base.order = MCA_BTL_NO_ORDER;
    frag->segment.seg_addr.pval = payload;
    frag->list = list;
}

// The next four: under the transport's lock.
void put_back(frag_list &list, outgoing *out)
{
    out->next = nullptr;
    if (nullptr == list.free) {
        list.free = list.last = out;
    } else if (list.is_queue) {
        list.last = list.last->next = out;
    } else {
        out->next = std::exchange(list.free, out);
    }
}

// Makes more, each bound to a piece of the segment for good; fewer where there is no memory.
void add_frags(frag_list &list, std::size_t count)
{
    segment &own = here().node->own();
    std::uint32_t granule = 0;
    for (; count > 0 && list.made.size() < list.most &&
           status::ok == own.carve(frag_bytes(list), &granule);
         --count) {
        mca_btl_gpusm_frag_t &made = list.made.emplace_back();
        made.out.granule = off_page_ends(granule, skipped_granules(list));
        made.out.header = reinterpret_cast<frag_header *>(own.at(made.out.granule));
        set_up(&made, &list, made.out.header + 1);
        put_back(list, &made.out);
    }
}

// `bytes` more are sent. Short messages leave it as it is: they gain nothing by a long one.
void lengthen_queue(frag_list &list, std::size_t bytes)
{
    list.taken_bytes += list.is_queue && bytes > list.payload_bytes / 4 ? bytes : 0;
    if (list.taken_bytes > sent_for_one_more * list.payload_bytes) {
        list.taken_bytes = 0;
        add_frags(list, list.made.size() * list.payload_bytes < queue_bytes ? 1 : 0);
    }
}

mca_btl_gpusm_frag_t *take_free(frag_list &list)
{
    outgoing *out = list.free;
    if (nullptr == out) {
        return nullptr;
    }
    list.free = out->next;
    return frag_around(out);
}

void reclaim_frags_of(mca_btl_base_endpoint_t *endpoint)
{
    for (outgoing *out = endpoint->peer->reclaim(); out != nullptr;) {
        outgoing *next = out->next;
        frag_return(frag_around(out));
        out = next;
    }
}

// Gives a fragment that the peer is done with back to whom it belongs.
void complete(mca_btl_gpusm_frag_t *frag, int result)
{
    // The callback may free the descriptor, so ask first whose it is.
    const bool ours = 0 != (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (frag->out.stays && frag->base.des_cbfunc != nullptr) {
        frag->base.des_cbfunc(&mca_btl_gpusm.super, frag->endpoint, &frag->base, result);
    }
    if (ours) {
        frag_return(frag);
    }
}

// The endpoint needs attention in progress.
void mark_active(mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(here().lock);
    if (!endpoint->active) {
        endpoint->active = true;
        here().sends_to_look_after.store(true, std::memory_order_relaxed);
        here().frags->active.push_back(endpoint);
    }
}

// Do control messages to that peer wait for fragments outside the segment?
bool must_wait(const mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(here().lock);
    return endpoint->deferred > 0;
}

// Only send_deferred takes some out.
mca_btl_gpusm_frag_t *first_deferred()
{
    const std::lock_guard guard(here().lock);
    const auto &all = here().frags->deferred;
    return all.empty() ? nullptr : all.front();
}

// Sends what was kept, as fragments come back. Returns how many went.
int send_deferred()
{
    int sent = 0;
    while (mca_btl_gpusm_frag_t *waiting = first_deferred()) {
        mca_btl_gpusm_frag_t *place = frag_get(small_payload_bytes);
        if (nullptr == place) {
            break;
        }
        fire_and_forget(place, waiting->segment.seg_len);
        std::memcpy(place->segment.seg_addr.pval, waiting->segment.seg_addr.pval,
                    waiting->segment.seg_len);
        const status s = post(waiting->endpoint, place, waiting->kind, waiting->tag);
        const int answer = opal_answer(s);
        if (OPAL_SUCCESS != answer) {
            frag_return(place);
        }
        {
            const std::lock_guard guard(here().lock);
            std::erase(here().frags->deferred, waiting);
            --waiting->endpoint->deferred;
        }
        complete(waiting, answer);
        ++sent;
    }
    return sent;
}

} // namespace

void plan_frags()
{
    here().frags = new frag_store;
    plan(here().frags->lists);
}

bool make_first_frags()
{
    const std::lock_guard guard(here().lock);
    frag_list *lists = here().frags->lists;
    add_frags(lists[2], first_eager_frags);
    add_frags(lists[1], first_short_frags);
    add_frags(lists[0], first_small_frags);
    return lists[0].free != nullptr && lists[1].free != nullptr &&
           (0 == lists[2].most || lists[2].free != nullptr);
}

void release_frags()
{
    if (nullptr == here().frags) {
        return;
    }
    for (mca_btl_gpusm_frag_t *each : here().frags->deferred) {
        frag_return(each);
    }
    delete std::exchange(here().frags, nullptr);
}

mca_btl_gpusm_frag_t *frag_get(std::size_t bytes)
{
    for (frag_list &list : here().frags->lists) {
        if (bytes > list.payload_bytes) {
            continue;
        }
        {
            const std::lock_guard guard(here().lock);
            lengthen_queue(list, bytes);
            if (mca_btl_gpusm_frag_t *frag = take_free(list); frag != nullptr) {
                return frag;
            }
        }
        for (std::size_t i = 0; mca_btl_base_endpoint_t *endpoint = live_endpoint_at(i); ++i) {
            reclaim_frags_of(endpoint);
        }
        const std::lock_guard guard(here().lock);
        if (nullptr == list.free) {
            add_frags(list, std::max<std::size_t>(1, added_bytes / list.payload_bytes));
        }
        return take_free(list);
    }
    return nullptr;
}

mca_btl_gpusm_frag_t *frag_get_for_part(std::size_t *bytes)
{
    frag_list *lists = here().frags->lists;
    std::size_t i = std::size(here().frags->lists) - 1;
    while (i > 1 && *bytes <= lists[i - 1].payload_bytes) {
        --i;
    }
    mca_btl_gpusm_frag_t *frag = frag_get(*bytes);
    while (nullptr == frag && i > 1) {
        {
            const std::lock_guard guard(here().lock);
            if (!lists[i].made.empty()) {
                break; // one will come back
            }
        }
        *bytes = lists[--i].payload_bytes;
        frag = frag_get(*bytes);
    }
    return frag;
}

mca_btl_gpusm_frag_t *frag_get_for_control(std::size_t bytes, bool waits)
{
    mca_btl_gpusm_frag_t *frag = waits ? nullptr : frag_get(bytes);
    if (nullptr == frag && bytes <= small_payload_bytes) {
        auto *made = new private_frag{};
        set_up(&made->frag, nullptr, made->payload);
        frag = &made->frag;
    }
    return frag;
}

void frag_return(mca_btl_gpusm_frag_t *frag)
{
    if (nullptr == frag->list) {
        delete reinterpret_cast<private_frag *>(frag);
        return;
    }
    const std::lock_guard guard(here().lock);
    put_back(*frag->list, &frag->out);
}

int opal_answer(status of_post)
{
    switch (of_post) {
    case status::ok:
    case status::busy:
        return OPAL_SUCCESS;
    case status::peer_gone:
    case status::bad_peer:
        return OPAL_ERR_UNREACH;
    default:
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
}

status post(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag, frag_kind kind,
            mca_btl_base_tag_t tag)
{
    // A copy of so few bytes costs less than a fragment that has to come back.
    constexpr std::size_t copied_bytes = 248;
    // Decided before the post: after it the fragment may come back at any time.
    const bool watch = calls_back(frag);
    const bool in_segment = frag->out.header != nullptr;
    if (frag->segment.seg_len <= copied_bytes && !watch && (in_segment || !must_wait(endpoint)) &&
        endpoint->peer->send_inline(kind, tag, frag->segment.seg_len, [&](unsigned char *to) {
            std::memcpy(to, frag->segment.seg_addr.pval, frag->segment.seg_len);
        })) {
        frag_return(frag);
        return status::ok;
    }
    frag->endpoint = endpoint;
    frag->out.stays = watch;
    if (!in_segment) {
        frag->kind = kind;
        frag->tag = tag;
        const std::lock_guard guard(here().lock);
        here().frags->deferred.push_back(frag);
        ++endpoint->deferred;
        here().sends_to_look_after.store(true, std::memory_order_relaxed);
        return status::busy;
    }
    frag->out.header->payload_bytes = static_cast<std::uint32_t>(frag->segment.seg_len);
    frag->out.header->kind = kind;
    frag->out.header->tag = tag;
    const status s = endpoint->peer->post(&frag->out);
    if (status::busy == s || (status::ok == s && watch)) {
        mark_active(endpoint);
    }
    return s;
}

status post_control(mca_btl_base_endpoint_t *endpoint, frag_kind kind, const void *message,
                    std::size_t bytes)
{
    // These are handled in the order of their sending, so none may pass one that waits. (Of ob1's
    // messages some may.)
    mca_btl_gpusm_frag_t *frag = frag_get_for_control(bytes, must_wait(endpoint));
    if (nullptr == frag) {
        return status::no_memory;
    }
    std::memcpy(frag->segment.seg_addr.pval, message, bytes);
    fire_and_forget(frag, bytes);
    const status s = post(endpoint, frag, kind, 0);
    if (OPAL_SUCCESS != opal_answer(s)) {
        frag_return(frag);
    }
    return s;
}

bool take_frags_back(mca_btl_base_endpoint_t *from)
{
    while (outgoing *out = from->peer->reap()) {
        complete(frag_around(out), OPAL_ERR_UNREACH);
    }
    return from->peer->idle() && !must_wait(from);
}

int progress_sends()
{
    int completed = send_deferred();
    auto &[lists, deferred, active, visited] = *here().frags;
    {
        const std::lock_guard guard(here().lock);
        visited.swap(active);
        for (mca_btl_base_endpoint_t *endpoint : visited) {
            endpoint->active = false;
        }
        here().sends_to_look_after.store(!deferred.empty(), std::memory_order_relaxed);
    }
    for (mca_btl_base_endpoint_t *endpoint : visited) {
        (void)endpoint->peer->flush();
        while (outgoing *out = endpoint->peer->reap()) {
            complete(frag_around(out), endpoint->peer->closed() ? OPAL_ERR_UNREACH : OPAL_SUCCESS);
            ++completed;
        }
        if (!endpoint->peer->idle()) {
            mark_active(endpoint);
        }
    }
    visited.clear();
    return completed;
}

} // namespace gpusm
