// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_bounce.h"
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"

#include <algorithm>
#include <cstdint>
#include <mutex>

namespace {

using gpusm::frag_size;

constexpr unsigned frag_sizes = static_cast<unsigned>(frag_size::count);

// Payload that a control message or an inline send of ob1 (256 bytes and a header) needs.
constexpr std::size_t small_payload_bytes = 288;
// 2 KiB with a header of ob1's.
constexpr std::size_t short_eager_bytes = 2048 + 64;
// Long fragments of a size become so many bytes with time: more than the second-level caches of two
// processors hold.
constexpr std::size_t recycled_bytes = 2048 * 1024;
// Fresh memory costs more than a message: one more fragment for so many that are sent.
constexpr unsigned messages_for_a_frag = 32;
// Of each size that is not long: made at start, as a process has few peers to begin with, and added
// when they run out; what is added has memory behind it from then on.
constexpr int frags_at_start = 4;
constexpr int frags_to_add = 16;

void construct_frag(mca_btl_gpusm_frag_t *frag)
{
    frag->base.des_segments = &frag->segment;
    frag->base.des_segment_count = 1;
    frag->base.order = MCA_BTL_NO_ORDER;
    frag->out = gpusm::outgoing{};
    frag->endpoint = nullptr;
    frag->list = nullptr;
    frag->call_back = false;
}

constexpr std::size_t frag_bytes(std::size_t payload_bytes)
{
    const std::size_t bytes = sizeof(gpusm::frag_header) + payload_bytes;
    return (bytes + gpusm::granule_bytes - 1) / gpusm::granule_bytes * gpusm::granule_bytes;
}

constexpr bool is_long(unsigned size)
{
    return size >= static_cast<unsigned>(frag_size::eager) &&
           size < static_cast<unsigned>(frag_size::gpu); // to which devices write
}

int frags_at_most(unsigned size)
{
    const int most = mca_btl_gpusm_component.free_list_max;
    return static_cast<unsigned>(frag_size::gpu) == size ? most / 8 : most;
}

// Binds a new descriptor of a free list to a piece of the segment, for good.
int bind_frag(opal_free_list_item_t *item, void *size_of_list)
{
    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(item);
    const auto size = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(size_of_list));
    gpusm::segment &own = mca_btl_gpusm_component.node->own();
    const std::size_t payload_bytes = mca_btl_gpusm_component.frag_capacity[size];
    std::uint32_t granule = 0;
    const std::lock_guard guard(*mca_btl_gpusm_component.lock); // several lists, one segment
    if (gpusm::status::ok != own.carve(frag_bytes(payload_bytes), &granule)) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    frag->list = &mca_btl_gpusm_component.frags[size];
    frag->out.granule = granule;
    frag->out.header = reinterpret_cast<gpusm::frag_header *>(own.at(granule));
    frag->segment.seg_addr.pval = frag->out.header + 1;
    frag->segment.seg_len = payload_bytes;
    return OPAL_SUCCESS;
}

// A descriptor outside the segment, its payload behind it: for control messages that find all
// fragments in flight.
int keep_private(opal_free_list_item_t *item, void *)
{
    auto *frag = reinterpret_cast<mca_btl_gpusm_frag_t *>(item);
    frag->list = &mca_btl_gpusm_component.unbound;
    frag->segment.seg_addr.pval = frag + 1;
    return OPAL_SUCCESS;
}

} // namespace

OBJ_CLASS_INSTANCE(mca_btl_gpusm_frag_t, mca_btl_base_descriptor_t, construct_frag, nullptr);

namespace gpusm {

std::size_t plan_frags()
{
    mca_btl_base_module_t &module = mca_btl_gpusm.super;
    const std::size_t payloads[frag_sizes] = {
        small_payload_bytes, std::min(module.btl_eager_limit, short_eager_bytes),
        module.btl_eager_limit, module.btl_max_send_size, module.btl_accelerator_max_send_size};
    std::size_t bytes = host_ring_bytes() + bounce_bytes();
    for (unsigned size = 0; size < frag_sizes; ++size) {
        mca_btl_gpusm_component.frag_capacity[size] = payloads[size];
        bytes += frag_bytes(payloads[size]) * static_cast<std::size_t>(frags_at_most(size));
    }
    return bytes;
}

bool make_frag_lists()
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    constexpr int no_limit = -1;
    OBJ_CONSTRUCT(&component.unbound, opal_free_list_t);
    bool made =
        OPAL_SUCCESS ==
        opal_free_list_init(&component.unbound, sizeof(mca_btl_gpusm_frag_t) + small_payload_bytes,
                            opal_cache_line_size, OBJ_CLASS(mca_btl_gpusm_frag_t), 0, 0, 0,
                            no_limit, 64, nullptr, 0, nullptr, keep_private, nullptr);
    for (unsigned size = 0; size < frag_sizes; ++size) {
        const bool at_once = !is_long(size);
        const int most = frags_at_most(size);
        opal_free_list_t *list = &component.frags[size];
        OBJ_CONSTRUCT(list, opal_free_list_t);
        made = made &&
               OPAL_SUCCESS ==
                   opal_free_list_init(list, sizeof(mca_btl_gpusm_frag_t), opal_cache_line_size,
                                       OBJ_CLASS(mca_btl_gpusm_frag_t), 0, 0,
                                       at_once ? std::min(frags_at_start, most) : 0, most,
                                       at_once ? frags_to_add : 1, nullptr, 0, nullptr, bind_frag,
                                       reinterpret_cast<void *>(static_cast<std::uintptr_t>(size)));
    }
    return made;
}

void release_frag_lists()
{
    for (auto &recycled : mca_btl_gpusm_component.recycled) {
        recycled = {};
    }
    for (opal_free_list_t &list : mca_btl_gpusm_component.frags) {
        OBJ_DESTRUCT(&list);
    }
    OBJ_DESTRUCT(&mca_btl_gpusm_component.unbound);
}

static mca_btl_gpusm_frag_t *first_of(opal_free_list_t *list)
{
    return reinterpret_cast<mca_btl_gpusm_frag_t *>(opal_free_list_get(list));
}

// The long fragment that has been back for longest; null: there is none, or, where *grow is asked
// for, it is time for one more.
static mca_btl_gpusm_frag_t *recycled_frag(unsigned size, bool *grow)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const std::lock_guard guard(*component.lock);
    auto &recycled = component.recycled[size];
    if (grow != nullptr) {
        *grow =
            0 == ++recycled.taken % messages_for_a_frag &&
            component.frags[size].fl_num_allocated * component.frag_capacity[size] < recycled_bytes;
        if (*grow) {
            return nullptr;
        }
    }
    outgoing *out = recycled.oldest;
    if (nullptr == out) {
        return nullptr;
    }
    recycled.oldest = out->next;
    return frag_around(out);
}

mca_btl_gpusm_frag_t *frag_get(std::size_t bytes)
{
    unsigned size = 0;
    while (size < frag_sizes && bytes > mca_btl_gpusm_component.frag_capacity[size]) {
        ++size;
    }
    if (frag_sizes == size) {
        return nullptr;
    }
    opal_free_list_t *list = &mca_btl_gpusm_component.frags[size];
    mca_btl_gpusm_frag_t *frag = nullptr;
    if (is_long(size)) {
        bool grow = false;
        frag = recycled_frag(size, &grow);
        if (grow) {
            frag = first_of(list);
        }
        if (nullptr == frag) {
            reclaim_frags(); // before the list grows, or because it cannot
            frag = recycled_frag(size, nullptr);
        }
    } else if (opal_lifo_is_empty(&list->super)) {
        reclaim_frags();
    }
    return nullptr == frag ? first_of(list) : frag;
}

void frag_return(mca_btl_gpusm_frag_t *frag)
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const auto size = static_cast<unsigned>(frag->list - component.frags);
    if (frag->list == &component.unbound || !is_long(size)) {
        opal_free_list_return(frag->list, &frag->base.super);
        return;
    }
    const std::lock_guard guard(*component.lock);
    auto &recycled = component.recycled[size];
    frag->out.next = nullptr;
    (nullptr == recycled.oldest ? recycled.oldest : recycled.newest->next) = &frag->out;
    recycled.newest = &frag->out;
}

mca_btl_gpusm_frag_t *frag_get_for_control(std::size_t bytes)
{
    mca_btl_gpusm_frag_t *frag = frag_get(bytes);
    constexpr auto small = static_cast<unsigned>(frag_size::small);
    if (nullptr == frag && bytes <= mca_btl_gpusm_component.frag_capacity[small]) {
        frag = first_of(&mca_btl_gpusm_component.unbound);
    }
    return frag;
}

} // namespace gpusm
