// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_send.cc: messages through shared memory. A send copies nothing: the payload is in
// the fragment already. It counts as done when the fragment is posted, and the fragment is
// taken back later, without a message from the peer (shm/peer.h).
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

namespace gpusm {

namespace {

// Gives a fragment that the peer is done with back to whom it belongs.
void complete(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag, int result)
{
    // The callback may free the descriptor, so ask first whose it is.
    const bool ours = 0 != (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (frag->call_back && frag->base.des_cbfunc != nullptr) {
        frag->base.des_cbfunc(&mca_btl_gpusm.super, endpoint, &frag->base, result);
    }
    if (ours) {
        frag_return(frag);
    }
}

int result_of(const mca_btl_base_endpoint_t *endpoint)
{
    return endpoint->peer->closed() ? OPAL_ERR_UNREACH : OPAL_SUCCESS;
}

// The i-th entry of a list that other threads append to; null past its end.
mca_btl_base_endpoint_t *at(const std::vector<mca_btl_base_endpoint_t *> &list, std::size_t i)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    return i < list.size() ? list[i] : nullptr;
}

// Keeps a complete control message that has no place in the segment yet.
status defer(mca_btl_gpusm_frag_t *frag, frag_kind kind, mca_btl_base_tag_t tag)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    frag->kind = kind;
    frag->tag = tag;
    frag->call_back = 0 == (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP) ||
                      0 != (frag->base.des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK);
    frag->out.next = nullptr;
    const std::lock_guard guard(*component.lock);
    (nullptr == component.deferred ? component.deferred : component.last_deferred->next) =
        &frag->out;
    component.last_deferred = &frag->out;
    component.sends_to_look_after.store(true, std::memory_order_relaxed);
    return status::busy;
}

// Only send_deferred takes from the front, so what this returns stays there.
outgoing *first_deferred()
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    return mca_btl_gpusm_component.deferred;
}

// Sends what was kept, as fragments come back. Returns how many went.
int send_deferred()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    int sent = 0;
    while (first_deferred() != nullptr) {
        mca_btl_gpusm_frag_t *place =
            frag_get(component.frag_capacity[static_cast<unsigned>(frag_size::small)]);
        if (nullptr == place) {
            break;
        }
        mca_btl_gpusm_frag_t *waiting = frag_around(first_deferred());
        fire_and_forget(place, waiting->segment.seg_len);
        std::memcpy(place->segment.seg_addr.pval, waiting->segment.seg_addr.pval,
                    waiting->segment.seg_len);
        const status s = post(waiting->endpoint, place, waiting->kind, waiting->tag);
        const bool sent_now = status::ok == s || status::busy == s;
        if (!sent_now) {
            frag_return(place);
        }
        if (status::system_failed == s) {
            break; // passing: the same message again with the next progress
        }
        {
            const std::lock_guard guard(*component.lock);
            component.deferred = component.deferred->next;
        }
        complete(waiting->endpoint, waiting, sent_now ? OPAL_SUCCESS : OPAL_ERR_UNREACH);
        ++sent;
    }
    return sent;
}

// The oldest of the fragments whose callback had to wait, or null.
outgoing *late_one(mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    outgoing *out = endpoint->called_back_late;
    if (out != nullptr) {
        endpoint->called_back_late = out->next;
    }
    return out;
}

// We are inside somebody's send: the callback of a fragment that has come back waits for progress.
void call_back_late(mca_btl_base_endpoint_t *endpoint, outgoing *out)
{
    {
        const std::lock_guard guard(*mca_btl_gpusm_component.lock);
        outgoing **end = &endpoint->called_back_late;
        while (*end != nullptr) {
            end = &(*end)->next;
        }
        *end = out;
    }
    mark_active(endpoint);
}

} // namespace

mca_btl_base_endpoint_t *endpoint_at(std::size_t number)
{
    return at(*mca_btl_gpusm_component.endpoints, number);
}

status post_bound(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag, frag_kind kind,
                  mca_btl_base_tag_t tag, std::size_t lead_bytes)
{
    frag->endpoint = endpoint;
    frag->out.header->lead_bytes = static_cast<std::uint32_t>(lead_bytes);
    frag->out.header->payload_bytes = static_cast<std::uint32_t>(frag->segment.seg_len);
    frag->out.header->kind = kind;
    frag->out.header->tag = tag;
    const bool watch = frag->call_back;
    const status s = endpoint->peer->post(&frag->out);
    if (status::busy == s || (status::ok == s && watch)) {
        mark_active(endpoint);
    }
    return s;
}

status post(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag, frag_kind kind,
            mca_btl_base_tag_t tag)
{
    if (endpoint->bundle != nullptr) {
        post_bundle(endpoint); // what came first goes first
    }
    const bool ours = 0 != (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    const bool always = 0 != (frag->base.des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK);
    // A copy of so few bytes costs less than a fragment that has to come back.
    constexpr std::size_t copied_bytes = 248;
    if (ours && !always && frag->segment.seg_len <= copied_bytes &&
        endpoint->peer->send_inline(kind, tag, frag->segment.seg_len, [&](unsigned char *to) {
            std::memcpy(to, frag->segment.seg_addr.pval, frag->segment.seg_len);
        })) {
        frag_return(frag);
        return status::ok;
    }
    if (nullptr == frag->out.header) {
        frag->endpoint = endpoint;
        return defer(frag, kind, tag);
    }
    // Decided before the post: after it the fragment may come back at any time. A descriptor
    // that stays the caller's is only free to reuse once the peer has read it.
    frag->call_back = always || !ours;
    return post_bound(endpoint, frag, kind, tag);
}

status post_control(mca_btl_base_endpoint_t *endpoint, frag_kind kind, const void *message,
                    std::size_t bytes)
{
    mca_btl_gpusm_frag_t *frag = frag_get_for_control(bytes);
    if (nullptr == frag) {
        return status::no_memory;
    }
    std::memcpy(frag->segment.seg_addr.pval, message, bytes);
    fire_and_forget(frag, bytes);
    const status s = post(endpoint, frag, kind, 0);
    if (status::ok != s && status::busy != s) {
        frag_return(frag);
    }
    return s;
}

void mark_active(mca_btl_base_endpoint_t *endpoint)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    if (!endpoint->active) {
        endpoint->active = true;
        mca_btl_gpusm_component.sends_to_look_after.store(true, std::memory_order_relaxed);
        mca_btl_gpusm_component.active->push_back(endpoint);
    }
}

int progress_sends()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    int completed = send_deferred();
    std::size_t i = 0;
    // Only this function removes entries, so a place stays what it is in between.
    while (mca_btl_base_endpoint_t *endpoint = at(*component.active, i)) {
        if (endpoint->peer->waiting()) {
            (void)endpoint->peer->flush();
        }
        while (outgoing *out = late_one(endpoint)) {
            complete(endpoint, frag_around(out), result_of(endpoint));
            ++completed;
        }
        while (outgoing *out = endpoint->peer->reap()) {
            complete(endpoint, frag_around(out), result_of(endpoint));
            ++completed;
        }
        const std::lock_guard guard(*component.lock);
        if (!endpoint->peer->idle() || endpoint->called_back_late != nullptr) {
            ++i;
            continue;
        }
        endpoint->active = false;
        (*component.active)[i] = component.active->back();
        component.active->pop_back();
    }
    const std::lock_guard guard(*component.lock);
    component.sends_to_look_after.store(!component.active->empty() || component.deferred != nullptr,
                                        std::memory_order_relaxed);
    return completed;
}

void reclaim_frags_of(mca_btl_base_endpoint_t *endpoint)
{
    while (outgoing *out = endpoint->peer->reap_chain(SIZE_MAX)) {
        while (out != nullptr) {
            mca_btl_gpusm_frag_t *frag = frag_around(out);
            outgoing *next = std::exchange(out->next, nullptr);
            if (frag->call_back) { // else it is ours
                call_back_late(endpoint, out);
            } else {
                frag_return(frag);
            }
            out = next;
        }
    }
}

void reclaim_frags()
{
    for (std::size_t i = 0; mca_btl_base_endpoint_t *endpoint = endpoint_at(i); ++i) {
        reclaim_frags_of(endpoint);
    }
}

} // namespace gpusm

extern "C" int mca_btl_gpusm_send(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint,
                                  mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    using gpusm::status;

    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(descriptor);
    if (gpusm::send_with_lead(endpoint, frag, tag)) {
        return 1;
    }
    constexpr uint32_t ours = MCA_BTL_DES_FLAGS_BTL_OWNERSHIP;
    const uint32_t flags = descriptor->des_flags; // the descriptor may be gone after the post
    const status s = gpusm::post(endpoint, frag, gpusm::frag_kind::active_message, tag);
    if (status::ok != s && status::busy != s) {
        return OPAL_ERR_UNREACH; // final: OUT_OF_RESOURCE would make ob1 try for ever
    }
    // 1: done, and nobody will be called. Also when the fragment still waits for room in the
    // peer's FIFO: the payload has been taken, and it goes out in order.
    return ours == (flags & (ours | MCA_BTL_DES_SEND_ALWAYS_CALLBACK)) ? 1 : OPAL_SUCCESS;
}
