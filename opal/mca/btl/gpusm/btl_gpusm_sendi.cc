// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_sendi.cc: messages that ob1 gives us whole, to be taken at once: those of the user's up
// to the eager limit, and ob1's own control messages. In the peer's fast box if they fit, else in a
// fragment.
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"

#include "opal/mca/btl/gpusm/base/short_copy.h"

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

[[gnu::always_inline]] inline void copy(unsigned char *to, const void *from, std::size_t bytes)
{
    if (bytes <= short_copy_most) {
        short_copy(to, from, bytes);
    } else {
        std::memcpy(to, from, bytes);
    }
}

// Payload that has to be packed: of a derived datatype, or in device memory.
status pack(mca_btl_base_endpoint_t *endpoint, opal_convertor_t *convertor, unsigned char *to,
            std::size_t payload_size)
{
    if (0 != (convertor->flags & CONVERTOR_ACCELERATOR)) {
        gpu_message_to(endpoint, convertor->pBaseBuf);
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

} // namespace

} // namespace gpusm

extern "C" int mca_btl_gpusm_sendi(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                                   opal_convertor_t *convertor, void *header, size_t header_size,
                                   size_t payload_size, uint8_t order, uint32_t flags,
                                   mca_btl_base_tag_t tag, mca_btl_base_descriptor_t **descriptor)
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
    if (mca_btl_gpusm_component.bundles_are_open && nullptr == convertor && 0 == payload_size &&
        gpusm::add_to_bundle(endpoint, header, header_size, tag)) {
        return OPAL_SUCCESS;
    }
    if (endpoint->bundle != nullptr) [[unlikely]] {
        gpusm::post_bundle(endpoint); // what came first goes first
    }
    const auto fill = [=](unsigned char *to) {
        gpusm::copy(to, header, header_size);
        if (user != nullptr) {
            gpusm::copy(to + header_size, user, payload_size);
        }
    };
    if (together && endpoint->peer->send_inline(frag_kind::active_message, tag, size, fill)) {
        gpusm::count_message(convertor, payload_size);
        return OPAL_SUCCESS;
    }
    gpusm::reclaim_warm_frags(endpoint);
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
