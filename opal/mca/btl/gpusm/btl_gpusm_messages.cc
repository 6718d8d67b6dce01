// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_messages.cc: what ob1 calls for every message, and progress, where the layers meet.
//
// What ob1 gives sendi is taken at once: messages of the user's up to the eager limit, and ob1's
// own control messages. They go in the peer's fast box if they fit, else in a fragment. What lies
// in a fragment already (alloc, prepare_src) is sent without a copy: it counts as done when it is
// posted. Longer messages ob1 registers and offers; the receiver calls get.
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"
#include "opal/mca/btl/gpusm/btl_gpusm_views.h"

#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/short_copy.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <sched.h>

namespace gpusm {

namespace {

// Does the payload lie together in host memory? Then *user is where; null if there is none.
[[gnu::always_inline]] inline bool lies_together(const opal_convertor_t *convertor,
                                                 std::size_t payload_size,
                                                 const unsigned char **user)
{
    *user = nullptr;
    // An empty message may come with a convertor that nobody has set up: do not look at it.
    if (0 == payload_size || nullptr == convertor) {
        return true;
    }
    constexpr std::uint32_t plain = CONVERTOR_HOMOGENEOUS | OPAL_DATATYPE_FLAG_NO_GAPS;
    if (plain != (convertor->flags & (plain | CONVERTOR_ACCELERATOR))) {
        return false;
    }
    void *current = nullptr;
    opal_convertor_get_current_pointer(convertor, &current);
    *user = static_cast<const unsigned char *>(current);
    return true;
}

bool of_device(const opal_convertor_t *convertor)
{
    return 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
}

// Payload that has to be packed: of a derived datatype, in device memory, or a part of a message.
// *bytes: at most so many, then so many. False: it could not be.
bool pack(mca_btl_base_endpoint_t *endpoint, opal_convertor_t *convertor, unsigned char *to,
          std::size_t *bytes)
{
    if (of_device(convertor)) { // ob1 may have made its endpoint later than it called add_procs
        enable_get(endpoint);
        (void)is_offered_to(endpoint);
        if (gpu_side *side = endpoint->transport->process.gpu_if_made(); side != nullptr) {
            side->packs_fragments();
        }
    }
    struct iovec iov = {to, *bytes};
    uint32_t iov_count = 1;
    return opal_convertor_pack(convertor, &iov, &iov_count, bytes) >= 0;
}

void count_message(const mca_btl_base_endpoint_t *to, const opal_convertor_t *convertor,
                   std::size_t bytes, bool first = true)
{
    if (nullptr == convertor) { // a control message of ob1's
        return;
    }
    const bool gpu = bytes > 0 && of_device(convertor);
    count(to, gpu ? counter::device_fragments_messages : counter::host_fragments_messages, first);
    count(to, gpu ? counter::device_fragments_bytes : counter::host_fragments_bytes, bytes);
    if (gpu && to->summary != nullptr) [[unlikely]] {
        to->summary->went_in_fragments(to->link->fetches.state(), first, bytes);
    }
}

mca_btl_base_descriptor_t *hand_out(mca_btl_gpusm_frag_t *frag, std::size_t bytes,
                                    std::uint8_t order, std::uint32_t flags)
{
    frag->segment.seg_len = bytes;
    frag->base.des_flags = flags;
    frag->base.des_cbfunc = nullptr;
    frag->base.order = order;
    return &frag->base;
}

// Sender's side, before the receiver's buffer is known: `offered` or `fragments`.
mode choose_to_offer(mca_btl_base_endpoint_t *endpoint, memory_kind source, std::size_t len_bytes)
{
    facts known{source, memory_kind::unknown, len_bytes};
    return choose(&known, [endpoint](fact asked) {
        switch (asked) {
        case fact::peer_fetches:
            return is_offered_to(endpoint);
        case fact::uses_device:
            return endpoint->transport->process.gpu_if_made() != nullptr;
        case fact::two_copies_are_faster:
            return two_copies_are_faster_to(endpoint);
        default:
            return false;
        }
    });
}

// The same of device memory, once ob1 has been told that it may offer some.
bool is_to_be_offered(const mca_btl_base_endpoint_t *endpoint, std::size_t len_bytes)
{
    facts known{memory_kind::mappable, memory_kind::unknown, len_bytes};
    known.set(fact::peer_fetches,
              endpoint->get_enabled && ipc_state::refused != endpoint->link->fetches.state());
    return mode::offered == choose(known);
}

} // namespace

bool may_be_device_memory(const void *base, std::uint32_t flags)
{
#if OPAL_CUDA_GDR_SUPPORT
    (void)base;
    return 0 != (flags & MCA_BTL_REG_FLAG_CUDA_GPU_MEM);
#else
    (void)flags;
    int device = 0;
    uint64_t kind = 0;
    return 0 != opal_accelerator.check_addr(base, &device, &kind);
#endif
}

status post_stream_message(mca_btl_base_endpoint_t *to, frag_kind kind,
                           const stream_message &message, const stream_memory *memory)
{
    struct {
        stream_message message;
        stream_memory memory;
    } both{message, nullptr == memory ? stream_memory{} : *memory};
    static_assert(sizeof(both) == sizeof(stream_message) + sizeof(stream_memory));
    return to->transport->frags->post_control(to, kind, &both,
                                              nullptr == memory ? sizeof(message) : sizeof(both));
}

bool stream_message_for(stream_sender *streams, mca_btl_base_endpoint_t *from,
                        const unsigned char *payload, std::size_t bytes)
{
    stream_message message;
    stream_memory memory;
    const bool has_memory = sizeof(message) + sizeof(memory) == bytes;
    if (sizeof(message) != bytes && !has_memory) {
        return false;
    }
    std::memcpy(&message, payload, sizeof(message));
    if (has_memory) {
        std::memcpy(&memory, payload + sizeof(message), sizeof(memory));
    }
    return streams->take(*from->peer, message, has_memory ? &memory : nullptr);
}

} // namespace gpusm

extern "C" {

int mca_btl_gpusm_sendi(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                        opal_convertor_t *convertor, void *header, size_t header_size,
                        size_t payload_size, uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                        mca_btl_base_descriptor_t **descriptor) noexcept
{
    using gpusm::frag_kind;

    const size_t size = header_size + payload_size;
    const unsigned char *user = nullptr;
    const bool together = gpusm::lies_together(convertor, payload_size, &user);
    if (descriptor != nullptr) {
        *descriptor = nullptr;
    }
    // Only an inline send gives no place for a descriptor, and goes another way when this one is
    // closed to it; where there is one, ob1 would try again for ever.
    if (!together && nullptr == descriptor && gpusm::of_device(convertor) &&
        gpusm::is_to_be_offered(endpoint, payload_size)) {
        if (!gpusm::has_threads()) {
            endpoint->transport->declined = reinterpret_cast<std::uint64_t>(convertor->pBaseBuf);
        }
        return OPAL_ERR_OUT_OF_RESOURCE; // ob1 then takes the way through get, one copy less
    }
    const auto fill = [=](unsigned char *to) {
        gpusm::short_copy(to, header, header_size);
        if (user != nullptr) {
            gpusm::short_copy(to + header_size, user, payload_size);
        }
    };
    if (together && endpoint->peer->send_inline(frag_kind::active_message, tag, size, fill)) {
        gpusm::count_message(endpoint, convertor, payload_size);
        return OPAL_SUCCESS;
    }
    gpusm::frag_store &frags = *endpoint->transport->frags;
    mca_btl_gpusm_frag_t *frag = nullptr;
    if (size <= mca_btl_gpusm.super.btl_eager_limit && !endpoint->peer->closed()) {
        frag = nullptr == convertor ? frags.get_for_control(size) : frags.get(size);
    }
    if (nullptr == frag) {
        if (descriptor != nullptr) {
            *descriptor = mca_btl_gpusm_alloc(btl, endpoint, order, size, flags);
        }
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    auto *payload = static_cast<unsigned char *>(frag->segment.seg_addr.pval);
    fill(payload);
    size_t packed = payload_size;
    if (!together && (!gpusm::pack(endpoint, convertor, payload + header_size, &packed) ||
                      packed != payload_size)) {
        frags.give(frag);
        return OPAL_ERROR;
    }
    gpusm::fire_and_forget(frag, size);
    const int answer =
        gpusm::opal_answer(frags.post(endpoint, frag, frag_kind::active_message, tag));
    if (OPAL_SUCCESS != answer) {
        frags.give(frag);
        return answer;
    }
    gpusm::count_message(endpoint, convertor, payload_size);
    return OPAL_SUCCESS;
}

mca_btl_base_descriptor_t *mca_btl_gpusm_alloc(mca_btl_base_module_t *btl,
                                               mca_btl_base_endpoint_t *, uint8_t order,
                                               size_t size, uint32_t flags) noexcept
{
    mca_btl_gpusm_frag_t *frag = gpusm::transport_of(btl).frags->get_for_control(size);
    return nullptr == frag ? nullptr : gpusm::hand_out(frag, size, order, flags);
}

mca_btl_base_descriptor_t *mca_btl_gpusm_prepare_src(mca_btl_base_module_t *btl,
                                                     mca_btl_base_endpoint_t *endpoint,
                                                     opal_convertor_t *convertor, uint8_t order,
                                                     size_t reserve, size_t *size,
                                                     uint32_t flags) noexcept
{
    const size_t most =
        gpusm::of_device(convertor) ? btl->btl_accelerator_max_send_size : btl->btl_max_send_size;
    if (reserve >= most) {
        return nullptr;
    }
    size_t bytes = reserve + std::min(*size, most - reserve);
    gpusm::frag_store &frags = *endpoint->transport->frags;
    mca_btl_gpusm_frag_t *frag = frags.get_for_part(&bytes);
    if (nullptr == frag) {
        return nullptr;
    }
    *size = bytes - reserve;
    const bool first = 0 == convertor->bConverted;
    if (!gpusm::pack(endpoint, convertor,
                     static_cast<unsigned char *>(frag->segment.seg_addr.pval) + reserve, size)) {
        frags.give(frag);
        return nullptr;
    }
    gpusm::count_message(endpoint, convertor, *size, first);
    return gpusm::hand_out(frag, reserve + *size, order, flags);
}

int mca_btl_gpusm_send(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint,
                       mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag) noexcept
{
    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(descriptor);
    const bool calls_back = gpusm::calls_back(frag); // it may be gone after the post
    const int answer = gpusm::opal_answer(
        endpoint->transport->frags->post(endpoint, frag, gpusm::frag_kind::active_message, tag));
    if (OPAL_SUCCESS != answer) {
        return answer;
    }
    // 1: done, and nobody will be called. Also when the fragment still waits for room in the
    // peer's FIFO: the payload has been taken, and it goes out in order.
    return calls_back ? OPAL_SUCCESS : 1;
}

mca_btl_base_registration_handle_t *mca_btl_gpusm_register_mem(mca_btl_base_module_t *btl,
                                                               mca_btl_base_endpoint_t *endpoint,
                                                               void *base, size_t size,
                                                               uint32_t flags) noexcept
{
    using gpusm::memory_kind;
    using gpusm::status;

    gpusm::transport &ours = gpusm::transport_of(btl);
    const bool for_peers = 0 != (flags & MCA_BTL_REG_FLAG_REMOTE_READ);
    const bool ask = gpusm::may_be_device_memory(base, flags);
    gpusm::gpu_side *side = ask ? ours.process.gpu() : nullptr;
    // Handles are for one peer. Without one ob1 sends fragments.
    if (MCA_BTL_ENDPOINT_ANY == endpoint ||
        (for_peers && gpusm::mode::offered !=
                          gpusm::choose_to_offer(
                              endpoint, ask ? memory_kind::mappable : memory_kind::host, size))) {
        return nullptr;
    }
    gpusm::registration *made = ours.registrations->take();
    if (nullptr == made) {
        return nullptr;
    }
    status s = status::ok;
    if (side != nullptr) {
        s = gpusm::register_device(*side, endpoint, made, base, size, for_peers);
    } else if (ask) {
        s = status::not_ready;
    } else if (for_peers) {
        gpusm::offer_host(endpoint, made, base, size);
    }
    // The receiver's ob1 would ask again, and not say again that this is device memory: it gets a
    // handle with which gets fail.
    made->unusable = status::ok != s;
    if (made->unusable && for_peers) {
        gpusm::fell_back_to_fragments(endpoint, s, size);
        ++made->turn;
        ours.registrations->give(made);
        return nullptr;
    }
    return &gpusm::hand_over(made)->handle; // to whoever gives it back
}

int mca_btl_gpusm_deregister_mem(mca_btl_base_module_t *btl,
                                 mca_btl_base_registration_handle_t *handle) noexcept
{
    gpusm::transport &ours = gpusm::transport_of(btl);
    gpusm::registration *given = gpusm::take_over(gpusm::registration_around(handle));
    if (gpusm::gpu_side *side = ours.process.gpu_if_made(); side != nullptr) {
        gpusm::deregister_device(*side, given);
    } else {
        ++given->turn;
    }
    if (given->streamed) {
        ours.host->forget(given);
        ours.stage->forget(given);
    }
    if (gpusm::share_kind::host == handle->remote.kind) {
        ours.host_offers.add(~std::uint32_t{0}); // one less
    }
    ours.registrations->give(given);
    return OPAL_SUCCESS;
}

// This, get_device and get_host have the same parameters, so that one ends with a jump to the
// other.
int mca_btl_gpusm_get(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                      void *local_address, uint64_t remote_address,
                      mca_btl_base_registration_handle_t *local_handle,
                      mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
                      int order, mca_btl_base_rdma_completion_fn_t cbfunc, void *cbcontext,
                      void *cbdata) noexcept
{
    const gpusm::registration *local = gpusm::registration_around(local_handle);
    const bool into_host = nullptr == local || nullptr == local->device;
    if (local != nullptr && local->unusable) [[unlikely]] {
        return OPAL_ERROR; // ob1 takes fragments
    }
    if (gpusm::is_view_address(remote_address)) [[unlikely]] {
        remote_address = gpusm::address_in_handle(remote_handle->remote, remote_address);
    }
    const bool of_host =
        gpusm::memory_kind::host == gpusm::memory_named(remote_handle->remote.kind);
    return (of_host && into_host ? gpusm::get_host : gpusm::get_device)(
        btl, endpoint, local_address, remote_address, local_handle, remote_handle, size, flags,
        order, cbfunc, cbcontext, cbdata);
}

// Taken from the peers in one call of progress, so that what else waits gets its turn.
static constexpr int messages_per_progress = 64;

int mca_btl_gpusm_progress(void) noexcept
{
    // One thread at a time, and never from within a callback: the order of a peer's messages
    // depends on it. A locked instruction would be a good part of an idle round.
    gpusm::transport *ours = mca_btl_gpusm_component.transport;
    if (nullptr == ours || !ours->progressing.try_lock()) {
        return 0;
    }
    // With threads another one may be inside the engine when this one is to send out what it held.
    if (gpusm::gpu_side *side = ours->process.gpu_if_made();
        side != nullptr && !gpusm::has_threads()) {
        side->copies.expect_more(true); // until progress_gets
        ours->declined = 0;
    }
    const auto handle = [ours](gpusm::peer &from, const gpusm::frag_header &header,
                               const unsigned char *payload) {
        mca_btl_base_endpoint_t *endpoint = ours->endpoint_of(from);
        gpusm::add_to(endpoint->received_bytes, std::uint64_t{header.payload_bytes});
        if (gpusm::frag_kind::active_message == header.kind) {
            gpusm::deliver(endpoint, header.tag, payload, header.payload_bytes);
        } else {
            gpusm::take_our_own(endpoint, header, payload);
        }
    };
    int events = ours->process.own_node().poll(messages_per_progress, handle);
    if (ours->frags->has_work()) {
        events += ours->frags->progress();
    }
    if (!ours->host->idle()) {
        events += ours->host->progress();
    }
    if (ours->process.gpu_if_made() != nullptr) {
        events += gpusm::progress_gets(*ours, events > 0);
    } else if (!ours->stage->idle()) {
        ours->stage->progress();
        ++events;
    }
    constexpr std::uint32_t calls_between_looks = 1024;
    if (0 == ++ours->progress_calls % calls_between_looks) {
        events += ours->process.own_node().take_put_aside(handle);
        gpusm::look_after_peers(*ours);
    }
    // Where threads share a processor, the one that polls can keep it for a time slice from the one
    // that is to reply. Not after fewer polls: a thread that gets message after message by itself
    // would hand the polling over for nothing.
    constexpr std::uint32_t empty_polls_before_yield = 4096;
    ours->empty_polls = events > 0 ? 0 : ours->empty_polls % empty_polls_before_yield + 1;
    const bool yields = empty_polls_before_yield == ours->empty_polls && gpusm::has_threads();
    ours->progressing.unlock();
    if (yields) {
        (void)sched_yield();
    }
    return events;
}

} // extern "C"
