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

// The next three: under the transport's lock.
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

mca_btl_gpusm_frag_t *take_free(frag_list &list)
{
    outgoing *out = list.free;
    if (nullptr == out) {
        return nullptr;
    }
    list.free = out->next;
    return frag_around(out);
}

} // namespace

frag_store::frag_store(transport &of) : transport_(of)
{
    plan(lists_);
}

frag_store::~frag_store()
{
    for (mca_btl_gpusm_frag_t *each : deferred_) {
        give(each);
    }
}

bool frag_store::make_first()
{
    const std::lock_guard guard(transport_.lock);
    add(lists_[2], first_eager_frags);
    add(lists_[1], first_short_frags);
    add(lists_[0], first_small_frags);
    return lists_[0].free != nullptr && lists_[1].free != nullptr &&
           (0 == lists_[2].most || lists_[2].free != nullptr);
}

// Makes more, each bound to a piece of the segment for good; fewer where there is no memory. This
// and the next one: under the transport's lock.
void frag_store::add(frag_list &list, std::size_t count)
{
    segment &own = transport_.process.own_node().own();
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
void frag_store::lengthen_queue(frag_list &list, std::size_t bytes)
{
    list.taken_bytes += list.is_queue && bytes > list.payload_bytes / 4 ? bytes : 0;
    if (list.taken_bytes > sent_for_one_more * list.payload_bytes) {
        list.taken_bytes = 0;
        add(list, list.made.size() * list.payload_bytes < queue_bytes ? 1 : 0);
    }
}

void frag_store::reclaim_from(mca_btl_base_endpoint_t *endpoint)
{
    for (outgoing *out = endpoint->peer->reclaim(); out != nullptr;) {
        outgoing *next = out->next;
        give(frag_around(out));
        out = next;
    }
}

// Gives a fragment that the peer is done with back to whom it belongs.
void frag_store::complete(mca_btl_gpusm_frag_t *frag, int result)
{
    // The callback may free the descriptor, so ask first whose it is.
    const bool ours =
        calls_nobody_back_ || 0 != (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (frag->out.stays && frag->base.des_cbfunc != nullptr && !calls_nobody_back_) {
        frag->base.des_cbfunc(&mca_btl_gpusm.super, frag->endpoint, &frag->base, result);
    }
    if (ours) {
        give(frag);
    }
}

// The endpoint needs attention in progress.
void frag_store::mark_active(mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(transport_.lock);
    if (!endpoint->active) {
        endpoint->active = true;
        has_work_.store(true, std::memory_order_relaxed);
        active_.push_back(endpoint);
    }
}

bool frag_store::must_wait(const mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(transport_.lock);
    return endpoint->deferred > 0;
}

// Only send_deferred takes some out.
mca_btl_gpusm_frag_t *frag_store::first_deferred()
{
    const std::lock_guard guard(transport_.lock);
    return deferred_.empty() ? nullptr : deferred_.front();
}

// Sends what was kept, as fragments come back. Returns how many went.
int frag_store::send_deferred()
{
    int sent = 0;
    while (mca_btl_gpusm_frag_t *waiting = first_deferred()) {
        mca_btl_gpusm_frag_t *place = get(small_payload_bytes);
        if (nullptr == place) {
            break;
        }
        fire_and_forget(place, waiting->segment.seg_len);
        std::memcpy(place->segment.seg_addr.pval, waiting->segment.seg_addr.pval,
                    waiting->segment.seg_len);
        const status s = post(waiting->endpoint, place, waiting->kind, waiting->tag);
        const int answer = opal_answer(s);
        if (OPAL_SUCCESS != answer) {
            give(place);
        }
        {
            const std::lock_guard guard(transport_.lock);
            std::erase(deferred_, waiting);
            --waiting->endpoint->deferred;
        }
        complete(waiting, answer);
        ++sent;
    }
    return sent;
}

mca_btl_gpusm_frag_t *frag_store::get(std::size_t bytes)
{
    for (frag_list &list : lists_) {
        if (bytes > list.payload_bytes) {
            continue;
        }
        {
            const std::lock_guard guard(transport_.lock);
            lengthen_queue(list, bytes);
            if (mca_btl_gpusm_frag_t *frag = take_free(list); frag != nullptr) {
                return frag;
            }
        }
        for (std::size_t i = 0; mca_btl_base_endpoint_t *endpoint = transport_.live_endpoint_at(i);
             ++i) {
            reclaim_from(endpoint);
        }
        const std::lock_guard guard(transport_.lock);
        if (nullptr == list.free) {
            add(list, std::max<std::size_t>(1, added_bytes / list.payload_bytes));
        }
        return take_free(list);
    }
    return nullptr;
}

mca_btl_gpusm_frag_t *frag_store::get_for_part(std::size_t *bytes)
{
    std::size_t i = frag_sizes - 1;
    while (i > 1 && *bytes <= lists_[i - 1].payload_bytes) {
        --i;
    }
    mca_btl_gpusm_frag_t *frag = get(*bytes);
    while (nullptr == frag && i > 1) {
        {
            const std::lock_guard guard(transport_.lock);
            if (!lists_[i].made.empty()) {
                break; // one will come back
            }
        }
        *bytes = lists_[--i].payload_bytes;
        frag = get(*bytes);
    }
    return frag;
}

mca_btl_gpusm_frag_t *frag_store::get_for_control(std::size_t bytes, bool waits)
{
    mca_btl_gpusm_frag_t *frag = waits ? nullptr : get(bytes);
    if (nullptr == frag && bytes <= small_payload_bytes) {
        auto *made = new private_frag{};
        set_up(&made->frag, nullptr, made->payload);
        frag = &made->frag;
    }
    return frag;
}

void frag_store::give(mca_btl_gpusm_frag_t *frag)
{
    if (nullptr == frag->list) {
        delete reinterpret_cast<private_frag *>(frag);
        return;
    }
    const std::lock_guard guard(transport_.lock);
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

status frag_store::post(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag,
                        frag_kind kind, mca_btl_base_tag_t tag)
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
        give(frag);
        return status::ok;
    }
    frag->endpoint = endpoint;
    frag->out.stays = watch;
    if (!in_segment) {
        frag->kind = kind;
        frag->tag = tag;
        const std::lock_guard guard(transport_.lock);
        deferred_.push_back(frag);
        ++endpoint->deferred;
        has_work_.store(true, std::memory_order_relaxed);
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

status frag_store::post_control(mca_btl_base_endpoint_t *endpoint, frag_kind kind,
                                const void *message, std::size_t bytes)
{
    // These are handled in the order of their sending, so none may pass one that waits. (Of ob1's
    // messages some may.)
    mca_btl_gpusm_frag_t *frag = get_for_control(bytes, must_wait(endpoint));
    if (nullptr == frag) {
        return status::no_memory;
    }
    std::memcpy(frag->segment.seg_addr.pval, message, bytes);
    fire_and_forget(frag, bytes);
    const status s = post(endpoint, frag, kind, 0);
    if (OPAL_SUCCESS != opal_answer(s)) {
        give(frag);
    }
    return s;
}

bool frag_store::take_back(mca_btl_base_endpoint_t *from)
{
    while (outgoing *out = from->peer->reap()) {
        complete(frag_around(out), OPAL_ERR_UNREACH);
    }
    return from->peer->idle() && !must_wait(from);
}

int frag_store::progress()
{
    int completed = send_deferred();
    {
        const std::lock_guard guard(transport_.lock);
        visited_.swap(active_);
        for (mca_btl_base_endpoint_t *endpoint : visited_) {
            endpoint->active = false;
        }
        has_work_.store(!deferred_.empty(), std::memory_order_relaxed);
    }
    for (mca_btl_base_endpoint_t *endpoint : visited_) {
        (void)endpoint->peer->flush();
        while (outgoing *out = endpoint->peer->reap()) {
            complete(frag_around(out), endpoint->peer->closed() ? OPAL_ERR_UNREACH : OPAL_SUCCESS);
            ++completed;
        }
        if (!endpoint->peer->idle()) {
            mark_active(endpoint);
        }
    }
    visited_.clear();
    return completed;
}

} // namespace gpusm
