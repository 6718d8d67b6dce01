// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_send.cc: messages through shared memory. What ob1 gives sendi is taken at once:
// messages of the user's up to the eager limit, and ob1's own control messages. They go in the
// peer's fast box if they fit, else in a fragment. What lies in a fragment already (alloc,
// prepare_src) is sent without a copy: it counts as done when it is posted.
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/short_copy.h"

#include <algorithm>
#include <cstring>

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

// Payload that has to be packed: of a derived datatype, or in device memory.
status pack(mca_btl_base_endpoint_t *endpoint, opal_convertor_t *convertor, unsigned char *to,
            std::size_t payload_size)
{
    if (0 != (convertor->flags & CONVERTOR_ACCELERATOR)) {
        gpu_message_to(endpoint);
    }
    struct iovec iov = {to, payload_size};
    uint32_t iov_count = 1;
    size_t packed = payload_size;
    return opal_convertor_pack(convertor, &iov, &iov_count, &packed) < 0 || packed != payload_size
               ? status::driver_failed
               : status::ok;
}

void count_message(const opal_convertor_t *convertor, std::size_t payload_size)
{
    if (nullptr == convertor) {
        return; // a control message of ob1's, not the user's
    }
    const bool gpu = payload_size > 0 && 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
    count(gpu ? counter::staged_messages : counter::host_messages, 1);
    count(gpu ? counter::staged_bytes : counter::host_bytes, payload_size);
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

} // namespace

status post(mca_btl_base_endpoint_t *endpoint, mca_btl_gpusm_frag_t *frag, frag_kind kind,
            mca_btl_base_tag_t tag)
{
    // A copy of so few bytes costs less than a fragment that has to come back.
    constexpr std::size_t copied_bytes = 248;
    if (frag->segment.seg_len <= copied_bytes && !calls_back(frag) &&
        endpoint->peer->send_inline(kind, tag, frag->segment.seg_len, [&](unsigned char *to) {
            std::memcpy(to, frag->segment.seg_addr.pval, frag->segment.seg_len);
        })) {
        frag_return(frag);
        return status::ok;
    }
    return post_bound(endpoint, frag, kind, tag);
}

status post_control(mca_btl_base_endpoint_t *endpoint, frag_kind kind, const void *message,
                    std::size_t bytes)
{
    // These are handled in the order of their sending, so none may pass one that waits. (Of ob1's
    // messages some may.)
    const bool waits = must_wait(endpoint);
    mca_btl_gpusm_frag_t *frag = frag_get_for_control(bytes, waits);
    if (nullptr == frag) {
        return status::no_memory;
    }
    std::memcpy(frag->segment.seg_addr.pval, message, bytes);
    fire_and_forget(frag, bytes);
    const status s = waits ? post_bound(endpoint, frag, kind, 0) : post(endpoint, frag, kind, 0);
    if (status::ok != s && status::busy != s) {
        frag_return(frag);
    }
    return s;
}

} // namespace gpusm

extern "C" {

int mca_btl_gpusm_sendi(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                        opal_convertor_t *convertor, void *header, size_t header_size,
                        size_t payload_size, uint8_t order, uint32_t flags, mca_btl_base_tag_t tag,
                        mca_btl_base_descriptor_t **descriptor)
{
    using gpusm::frag_kind;
    using gpusm::status;

    const size_t size = header_size + payload_size;
    const unsigned char *user = nullptr;
    const bool together = gpusm::lies_together(convertor, payload_size, &user);
    if (descriptor != nullptr) {
        *descriptor = nullptr;
    }
    // Only an inline send gives no place for a descriptor, and goes another way when this one is
    // closed to it; where there is one, ob1 would try again for ever.
    if (!together && 0 != (convertor->flags & CONVERTOR_ACCELERATOR) && endpoint->get_enabled &&
        nullptr == descriptor) {
        gpusm::will_ask_again(convertor->pBaseBuf);
        return OPAL_ERR_OUT_OF_RESOURCE; // ob1 then takes the way through get, one copy less
    }
    const auto fill = [=](unsigned char *to) {
        gpusm::short_copy(to, header, header_size);
        if (user != nullptr) {
            gpusm::short_copy(to + header_size, user, payload_size);
        }
    };
    if (together && endpoint->peer->send_inline(frag_kind::active_message, tag, size, fill)) {
        gpusm::count_message(convertor, payload_size);
        return OPAL_SUCCESS;
    }
    mca_btl_gpusm_frag_t *frag = nullptr;
    if (size <= mca_btl_gpusm.super.btl_eager_limit && !endpoint->peer->closed()) {
        frag = nullptr == convertor ? gpusm::frag_get_for_control(size) : gpusm::frag_get(size);
    }
    if (nullptr == frag) {
        if (descriptor != nullptr) {
            *descriptor = mca_btl_gpusm_alloc(btl, endpoint, order, size, flags);
        }
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    auto *payload = static_cast<unsigned char *>(frag->segment.seg_addr.pval);
    fill(payload);
    if (!together &&
        status::ok != gpusm::pack(endpoint, convertor, payload + header_size, payload_size)) {
        gpusm::frag_return(frag);
        return OPAL_ERROR;
    }
    gpusm::fire_and_forget(frag, size);
    const status s = gpusm::post(endpoint, frag, frag_kind::active_message, tag);
    if (status::ok != s && status::busy != s) {
        gpusm::frag_return(frag);
        return OPAL_ERR_UNREACH;
    }
    gpusm::count_message(convertor, payload_size);
    return OPAL_SUCCESS;
}

mca_btl_base_descriptor_t *mca_btl_gpusm_alloc(mca_btl_base_module_t *, mca_btl_base_endpoint_t *,
                                               uint8_t order, size_t size, uint32_t flags)
{
    mca_btl_gpusm_frag_t *frag = gpusm::frag_get_for_control(size);
    if (nullptr == frag) {
        return nullptr;
    }
    return gpusm::hand_out(frag, size, order, flags);
}

mca_btl_base_descriptor_t *mca_btl_gpusm_prepare_src(mca_btl_base_module_t *btl,
                                                     mca_btl_base_endpoint_t *endpoint,
                                                     opal_convertor_t *convertor, uint8_t order,
                                                     size_t reserve, size_t *size, uint32_t flags)
{
    using gpusm::counter;

    const bool gpu = 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
    const size_t most = gpu ? btl->btl_accelerator_max_send_size : btl->btl_max_send_size;
    if (reserve >= most) {
        return nullptr;
    }
    size_t bytes = reserve + std::min(*size, most - reserve);
    mca_btl_gpusm_frag_t *frag = gpusm::frag_get_for_part(&bytes);
    if (nullptr == frag) {
        return nullptr;
    }
    size_t packed = bytes - reserve;
    const bool first = 0 == convertor->bConverted;
    if (gpu) { // not only at its start: beside another BTL, ob1 gives us parts of messages
        gpusm::gpu_message_to(endpoint);
    }
    struct iovec iov = {static_cast<unsigned char *>(frag->segment.seg_addr.pval) + reserve,
                        packed};
    uint32_t iov_count = 1;
    if (opal_convertor_pack(convertor, &iov, &iov_count, &packed) < 0) {
        gpusm::frag_return(frag);
        return nullptr;
    }
    gpusm::count(gpu ? counter::staged_messages : counter::host_messages, first ? 1 : 0);
    gpusm::count(gpu ? counter::staged_bytes : counter::host_bytes, packed);
    *size = packed;
    return gpusm::hand_out(frag, reserve + packed, order, flags);
}

int mca_btl_gpusm_send(mca_btl_base_module_t *, mca_btl_base_endpoint_t *endpoint,
                       mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    using gpusm::status;

    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(descriptor);
    const bool calls_back = gpusm::calls_back(frag); // it may be gone after the post
    const status s = gpusm::post(endpoint, frag, gpusm::frag_kind::active_message, tag);
    if (status::ok != s && status::busy != s) {
        return OPAL_ERR_UNREACH; // final: OUT_OF_RESOURCE would make ob1 try for ever
    }
    // 1: done, and nobody will be called. Also when the fragment still waits for room in the
    // peer's FIFO: the payload has been taken, and it goes out in order.
    return calls_back ? OPAL_SUCCESS : 1;
}

} // extern "C"
