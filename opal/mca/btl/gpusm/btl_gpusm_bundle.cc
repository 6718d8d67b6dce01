// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_bundle.cc: control messages to one peer in one fragment. Copies that were gathered are
// done together, and ob1 answers each with a FIN. Sent one by one those would cost both sides more
// than the rest of a small message: every fragment moves several cache lines between processors.
//
// While a bundle is open its messages have not been posted. It is closed when the callbacks of one
// round of copies are over, and before anything else goes to that peer, so the order stays. Only
// in programs without threads.
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cstring>
#include <utility>

namespace gpusm {

namespace {

constexpr std::size_t entry_bytes(std::size_t message_bytes)
{
    return (sizeof(bundle_entry) + message_bytes + 7) / 8 * 8;
}

mca_btl_base_endpoint_t *with_bundle = nullptr; // linked by next_with_bundle

} // namespace

void open_bundles()
{
    mca_btl_gpusm_component.bundles_are_open = !mca_btl_gpusm_component.threads;
}

bool add_to_bundle(mca_btl_base_endpoint_t *endpoint, const void *message, std::size_t bytes,
                   mca_btl_base_tag_t tag)
{
    const std::size_t capacity =
        mca_btl_gpusm_component.frag_capacity[static_cast<unsigned>(frag_size::eager)];
    const std::size_t needed = entry_bytes(bytes);
    if (!mca_btl_gpusm_component.bundles_are_open || needed > capacity || bytes > UINT16_MAX) {
        return false;
    }
    if (endpoint->bundle != nullptr && endpoint->bundle->segment.seg_len + needed > capacity) {
        post_bundle(endpoint);
    }
    if (nullptr == endpoint->bundle) {
        if (endpoint->peer->closed() || nullptr == (endpoint->bundle = frag_get(capacity))) {
            return false;
        }
        fire_and_forget(endpoint->bundle, 0);
        endpoint->next_with_bundle = std::exchange(with_bundle, endpoint);
    }
    mca_btl_base_segment_t &filled = endpoint->bundle->segment;
    auto *at = static_cast<unsigned char *>(filled.seg_addr.pval) + filled.seg_len;
    const bundle_entry entry{static_cast<std::uint16_t>(bytes), tag, {}};
    std::memcpy(at, &entry, sizeof(entry));
    std::memcpy(at + sizeof(entry), message, bytes);
    filled.seg_len += needed;
    return true;
}

void post_bundle(mca_btl_base_endpoint_t *endpoint)
{
    mca_btl_gpusm_frag_t *frag = std::exchange(endpoint->bundle, nullptr);
    for (mca_btl_base_endpoint_t **each = &with_bundle; *each != nullptr;
         each = &(*each)->next_with_bundle) {
        if (*each == endpoint) {
            *each = endpoint->next_with_bundle;
            break;
        }
    }
    const status s = post(endpoint, frag, frag_kind::bundle, 0);
    if (status::ok != s && status::busy != s) {
        log_line(log_level::info, "control messages to process %u were lost: %s",
                 static_cast<unsigned>(endpoint->peer->identity().vpid), to_string(s));
        frag_return(frag);
    }
}

void close_bundles()
{
    mca_btl_gpusm_component.bundles_are_open = false;
    while (with_bundle != nullptr) {
        post_bundle(with_bundle);
    }
}

void deliver_bundle(mca_btl_base_endpoint_t *from, const unsigned char *at, std::size_t bytes)
{
    while (bytes >= sizeof(bundle_entry)) {
        bundle_entry entry; // a copy, as the peer can still write
        std::memcpy(&entry, at, sizeof(entry));
        const std::size_t taken = entry_bytes(entry.bytes);
        if (taken > bytes) {
            break;
        }
        deliver(from, entry.tag, at + sizeof(entry), entry.bytes);
        at += taken;
        bytes -= taken;
    }
    if (bytes > 0) {
        log_line(
            log_level::error,
            "%zu bytes of control messages from process %u make no sense; nothing more is sent "
            "to it or taken from it",
            bytes, static_cast<unsigned>(from->peer->identity().vpid));
        from->peer->close();
    }
}

} // namespace gpusm
