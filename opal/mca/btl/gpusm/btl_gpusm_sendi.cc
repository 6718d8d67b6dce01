// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_sendi.cc: messages that ob1 gives us whole, to be taken at once: those of the user's up
// to the eager limit, and its own control messages. The fewer questions a message needs answered,
// the shorter its way: send_short, send_plain, sendi_other.
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/btl/gpusm/btl_gpusm_limits.h"

#include "opal/mca/btl/gpusm/base/short_copy.h"

#include <chrono>
#include <cstring>
#include <utility>

namespace gpusm {

namespace {

// Is this a message of the user's as most of them are? Its bytes lie together in host memory, which
// *user is set to, the header is the one that ob1 gives short messages, and there is no other
// thread.
[[gnu::always_inline]] inline bool is_plain(const mca_btl_base_endpoint_t *endpoint,
                                            const opal_convertor_t *convertor,
                                            std::size_t header_size, std::size_t payload_size,
                                            const unsigned char **user)
{
    if (!suits_header_copy(header_size) || nullptr == convertor || endpoint->bundle != nullptr ||
        mca_btl_gpusm_component.threads) {
        return false;
    }
    *user = nullptr;
    // An empty message may come with a convertor that nobody has set up: do not look at it.
    if (payload_size > 0) {
        constexpr std::uint32_t plain = CONVERTOR_HOMOGENEOUS | OPAL_DATATYPE_FLAG_NO_GAPS;
        if (plain != (convertor->flags & (plain | CONVERTOR_ACCELERATOR))) {
            return false;
        }
        void *current = nullptr;
        opal_convertor_get_current_pointer(convertor, &current);
        *user = static_cast<const unsigned char *>(current);
    }
    return true;
}

void count_host_message(std::size_t payload_size)
{
    count_alone(counter::host_messages, 1);
    count_alone(counter::host_bytes, payload_size);
}

// A plain message of short_copy_most bytes at most, for which there is a place in the mailbox.
// False: nothing has happened. Makes no call, so that its caller has nothing to put away.
[[gnu::always_inline]] inline bool send_short(mca_btl_base_endpoint_t *endpoint,
                                              const opal_convertor_t *convertor, const void *header,
                                              std::size_t header_size, std::size_t payload_size,
                                              mca_btl_base_tag_t tag)
{
    const unsigned char *user = nullptr;
    if (!is_plain(endpoint, convertor, header_size, payload_size, &user) ||
        !endpoint->peer->send_inline_at_hand(frag_kind::active_message, tag,
                                             header_size + payload_size, [=](unsigned char *to) {
                                                 header_copy(to, header, header_size);
                                                 short_copy(to + header_size, user, payload_size);
                                             })) {
        return false;
    }
    count_host_message(payload_size);
    return true;
}

// A control message of ob1's, for which there is a place in the mailbox. False: nothing has
// happened.
[[gnu::always_inline]] inline bool send_control(mca_btl_base_endpoint_t *endpoint,
                                                const void *header, std::size_t header_size,
                                                mca_btl_base_tag_t tag)
{
    return header_size <= short_copy_most && !mca_btl_gpusm_component.threads &&
           !mca_btl_gpusm_component.bundles_are_open && nullptr == endpoint->bundle &&
           endpoint->peer->send_inline_at_hand(
               frag_kind::active_message, tag, header_size,
               [=](unsigned char *to) { short_copy(to, header, header_size); });
}

// Do its two copies teach anything?
bool is_watched(std::size_t size)
{
    return size >= two_copies::timed_from_bytes ||
           size > mca_btl_gpusm_component.device_samples.beyond_bytes();
}

// The first of the two copies of a message of `size` bytes, of which the user's are from `user` on.
// Where the system has to get memory first, it says nothing about copies.
template <typename Fill>
inline void fill_fragment(mca_btl_gpusm_frag_t *frag, std::size_t size, const void *user,
                          std::size_t payload_size, const Fill &fill)
{
    auto *at = static_cast<unsigned char *>(frag->segment.seg_addr.pval);
    if (size > frag->touched_bytes) [[unlikely]] {
        frag->touched_bytes = static_cast<std::uint32_t>(size);
        fill(at);
        return;
    }
    if (!is_watched(size) || !watch_copies(size, user, payload_size)) [[likely]] {
        fill(at);
        return;
    }
    using clock = std::chrono::steady_clock;
    const auto begin = clock::now();
    fill(at);
    const auto took = std::chrono::nanoseconds(clock::now() - begin).count();
    watch_timed(size, static_cast<std::uint64_t>(took));
}

// A plain message of any size up to the eager limit, to a peer with a mailbox: in it, or in a
// fragment. False: nothing has happened.
bool send_plain(mca_btl_base_endpoint_t *endpoint, const opal_convertor_t *convertor,
                const void *header, std::size_t header_size, std::size_t payload_size,
                mca_btl_base_tag_t tag)
{
    const unsigned char *user = nullptr;
    peer &to = *endpoint->peer;
    const std::size_t size = header_size + payload_size;
    if (!is_plain(endpoint, convertor, header_size, payload_size, &user) || !to.takes_inline() ||
        size > mca_btl_gpusm.super.btl_eager_limit) {
        return false;
    }
    const auto fill = [=](unsigned char *at) {
        header_copy(at, header, header_size);
        if (user != nullptr) {
            std::memcpy(at + header_size, user, payload_size);
        }
    };
    if (to.send_inline(frag_kind::active_message, tag, size, fill)) {
        mca_btl_gpusm_component.next_inline = {&to, size, 0};
    } else {
        mca_btl_gpusm_frag_t *frag = frag_get(size);
        if (nullptr == frag) {
            return false;
        }
        fill_fragment(frag, size, user, payload_size, fill);
        if (mca_btl_gpusm_component.message_rows.concerns(size)) [[unlikely]] {
            watch_row(endpoint);
        }
        fire_and_forget(frag, size);
        frag->call_back = false;
        const status s = post_bound(endpoint, frag, frag_kind::active_message, tag);
        if (status::ok != s && status::busy != s) {
            frag_return(frag);
            return false;
        }
        // Now, not before: so short messages to and fro take two fragments by turns, and the one
        // that is next has been read by the time that this one is answered.
        reclaim_warm_frags(endpoint, size);
        own_next_frag(frag);
    }
    count_host_message(payload_size);
    return true;
}

} // namespace

void own_next_inline()
{
    // The reader's processor fetches lines ahead by itself, these among them, as long as it reads
    // the message before them. Then they would have to come twice.
    constexpr std::uint32_t rounds_of_reader = 4;
    next_inline &next = mca_btl_gpusm_component.next_inline;
    if (++next.idle_rounds >= rounds_of_reader) {
        std::exchange(next.to, nullptr)->own_next_inline(next.bytes);
    }
}

} // namespace gpusm

// All messages that send_short and send_plain have left.
[[gnu::noinline]] static int sendi_other(mca_btl_base_module_t *btl,
                                         mca_btl_base_endpoint_t *endpoint,
                                         opal_convertor_t *convertor, void *header,
                                         size_t header_size, size_t payload_size, uint8_t order,
                                         uint32_t flags, mca_btl_base_tag_t tag,
                                         mca_btl_base_descriptor_t **descriptor)
{
    using gpusm::counter;
    using gpusm::status;

    // An empty message may come with a convertor that nobody has set up: do not look at it.
    const bool has_payload = payload_size > 0 && convertor != nullptr;
    const bool gpu = has_payload && 0 != (convertor->flags & CONVERTOR_ACCELERATOR);
    if (descriptor != nullptr) {
        *descriptor = nullptr;
    }
    // Only an inline send gives no place for a descriptor, and goes another way when this one is
    // closed to it; where there is one, ob1 would try again for ever.
    if (gpu && endpoint->get_enabled && nullptr == descriptor) {
        gpusm::will_ask_again(convertor->pBaseBuf);
        return OPAL_ERR_OUT_OF_RESOURCE; // ob1 then takes the way through get, one copy less
    }
    endpoint->peer->expect_post();
    const size_t size = header_size + payload_size;
    if (nullptr == convertor && 0 == payload_size &&
        gpusm::add_to_bundle(endpoint, header, header_size, tag)) {
        return OPAL_SUCCESS;
    }
    void *user = nullptr; // where the payload is, if it lies together in host memory
    if (has_payload && !gpu && !opal_convertor_need_buffers(convertor)) {
        opal_convertor_get_current_pointer(convertor, &user);
    }
    const auto fill = [=](unsigned char *to) {
        std::memcpy(to, header, header_size);
        if (user != nullptr) {
            std::memcpy(to + header_size, user, payload_size);
        }
    };
    if (!has_payload || user != nullptr) {
        if (endpoint->bundle != nullptr) {
            gpusm::post_bundle(endpoint); // what came first goes first
        }
        if (endpoint->peer->send_inline(gpusm::frag_kind::active_message, tag, size, fill)) {
            if (convertor != nullptr) {
                gpusm::count(counter::host_messages, 1);
                gpusm::count(counter::host_bytes, payload_size);
            }
            return OPAL_SUCCESS;
        }
    }
    gpusm::reclaim_warm_frags(endpoint, size);
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
    if (user != nullptr) {
        gpusm::fill_fragment(frag, size, user, payload_size, fill);
    } else {
        fill(payload);
    }
    if (has_payload && nullptr == user) {
        struct iovec iov = {payload + header_size, payload_size};
        uint32_t iov_count = 1;
        size_t packed = payload_size;
        if (gpu) {
            gpusm::gpu_message_to(endpoint, convertor->pBaseBuf);
        }
        if (opal_convertor_pack(convertor, &iov, &iov_count, &packed) < 0 ||
            packed != payload_size) {
            gpusm::frag_return(frag);
            return OPAL_ERROR;
        }
    }
    gpusm::fire_and_forget(frag, size);
    const status s = gpusm::post(endpoint, frag, gpusm::frag_kind::active_message, tag);
    if (status::ok != s && status::busy != s) {
        gpusm::frag_return(frag);
        return OPAL_ERR_UNREACH;
    }
    if (nullptr == convertor) {
        return OPAL_SUCCESS; // a control message of ob1's, not the user's
    }
    if (!gpu && !mca_btl_gpusm_component.threads) {
        gpusm::own_next_frag(frag);
    }
    gpusm::count(gpu ? counter::staged_messages : counter::host_messages, 1);
    gpusm::count(gpu ? counter::staged_bytes : counter::host_bytes, payload_size);
    return OPAL_SUCCESS;
}

[[gnu::noinline]] static int sendi_plain(mca_btl_base_module_t *btl,
                                         mca_btl_base_endpoint_t *endpoint,
                                         opal_convertor_t *convertor, void *header,
                                         size_t header_size, size_t payload_size, uint8_t order,
                                         uint32_t flags, mca_btl_base_tag_t tag,
                                         mca_btl_base_descriptor_t **descriptor)
{
    if (gpusm::send_plain(endpoint, convertor, header, header_size, payload_size, tag)) [[likely]] {
        return OPAL_SUCCESS;
    }
    return sendi_other(btl, endpoint, convertor, header, header_size, payload_size, order, flags,
                       tag, descriptor);
}

[[gnu::noinline]] static int sendi_short(mca_btl_base_module_t *btl,
                                         mca_btl_base_endpoint_t *endpoint,
                                         opal_convertor_t *convertor, void *header,
                                         size_t header_size, size_t payload_size, uint8_t order,
                                         uint32_t flags, mca_btl_base_tag_t tag,
                                         mca_btl_base_descriptor_t **descriptor)
{
    const bool sent =
        nullptr == descriptor
            ? gpusm::send_short(endpoint, convertor, header, header_size, payload_size, tag)
            : nullptr == convertor && 0 == payload_size &&
                  gpusm::send_control(endpoint, header, header_size, tag);
    if (sent) [[likely]] {
        return OPAL_SUCCESS;
    }
    return sendi_plain(btl, endpoint, convertor, header, header_size, payload_size, order, flags,
                       tag, descriptor);
}

// This and the three before have the same parameters, so that one ends with a jump to the other.
extern "C" int mca_btl_gpusm_sendi(mca_btl_base_module_t *btl, mca_btl_base_endpoint_t *endpoint,
                                   opal_convertor_t *convertor, void *header, size_t header_size,
                                   size_t payload_size, uint8_t order, uint32_t flags,
                                   mca_btl_base_tag_t tag, mca_btl_base_descriptor_t **descriptor)
{
    if (payload_size <= gpusm::short_copy_most) {
        return sendi_short(btl, endpoint, convertor, header, header_size, payload_size, order,
                           flags, tag, descriptor);
    }
    return sendi_plain(btl, endpoint, convertor, header, header_size, payload_size, order, flags,
                       tag, descriptor);
}
