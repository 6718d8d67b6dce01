// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frags.cc: the lists of fragments, a list for each size of payload.
//
// The lines of a fragment that the peer has just read are in both processors' caches, and writing
// to them again waits for the other one, line by line. Lines that have left both caches are written
// to at twice to three times that speed. So fragments are used in turns, and those of a turn are
// more than a cache holds: a list grows so far before what peers have read is used again, and that
// in the order in which it was read (docs/performance-host.md has what that brings).
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_bounce.h"
#include "opal/mca/btl/gpusm/btl_gpusm_get.h"
#include "opal/mca/btl/gpusm/btl_gpusm_limits.h"

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/base/prefetch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace {

using gpusm::frag_size;

constexpr unsigned frag_sizes = static_cast<unsigned>(frag_size::count);

// Payload that a control message or an inline send of ob1 (256 bytes and a header) needs.
constexpr std::size_t small_payload_bytes = 288;

// What peers have read and that takes turns, oldest first, for each list; under the component's
// lock.
struct read_frags {
    gpusm::outgoing *oldest;
    gpusm::outgoing *newest; // valid if there is an oldest one
};
read_frags read_ones[frag_sizes];
// Fragments taken from each list that might have taken turns, as long as they are few.
std::array<std::atomic<std::uint32_t>, frag_sizes> first_ones;

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

int frags_at_most(unsigned size)
{
    const int most = mca_btl_gpusm_component.free_list_max;
    return static_cast<unsigned>(frag_size::gpu) == size ? std::max(most / 8, 1) : most;
}

// The large ones come in smaller numbers: what is added has memory behind it from then on.
int frags_to_add(unsigned size)
{
    constexpr int parts[frag_sizes] = {2, 16, 8, 8, 8};
    return std::max(mca_btl_gpusm_component.free_list_inc / parts[size], 1);
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
    frag->touched_bytes = 0;
    frag->takes_turns = false;
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
    frag->takes_turns = false;
    frag->segment.seg_addr.pval = frag + 1;
    return OPAL_SUCCESS;
}

// A round is memory of every process that has sent so much. Short messages are few lines, and would
// have to find a page each; so many peers' rounds are more pages than a processor has at hand.
void limit_round()
{
    constexpr std::size_t least_with_one_peer = 2048;
    constexpr std::size_t least_with_more = 8192;
    constexpr std::size_t most_of_all_bytes = 16U << 20;
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    const std::size_t processes = opal_process_info.num_local_peers + 1;
    const std::size_t segment_bytes = component.node->own().view().header->segment_bytes;
    // Processes that take turns on a processor find their fragments in its cache.
    component.round_bytes =
        component.crowded
            ? 0
            : std::min({component.round_bytes, most_of_all_bytes / processes, segment_bytes / 8});
    component.least_in_turns = 0 == component.round_bytes ? SIZE_MAX
                               : processes > 2            ? least_with_more
                                                          : least_with_one_peer;
    gpusm::log_line(gpusm::log_level::info,
                    "host messages take fragments of up to %zu bytes in turns",
                    component.round_bytes);
}

} // namespace

OBJ_CLASS_INSTANCE(mca_btl_gpusm_frag_t, mca_btl_base_descriptor_t, construct_frag, nullptr);

namespace gpusm {

std::size_t plan_frags()
{
    mca_btl_base_module_t &module = mca_btl_gpusm.super;
    const std::size_t payloads[frag_sizes] = {
        small_payload_bytes, std::min(module.btl_eager_limit, eager_frag_bytes),
        std::min(module.btl_max_send_size, middle_frag_bytes), module.btl_max_send_size,
        module.btl_accelerator_max_send_size};
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
    limit_round();
    constexpr int no_limit = -1;
    OBJ_CONSTRUCT(&component.unbound, opal_free_list_t);
    bool made =
        OPAL_SUCCESS ==
        opal_free_list_init(&component.unbound, sizeof(mca_btl_gpusm_frag_t) + small_payload_bytes,
                            opal_cache_line_size, OBJ_CLASS(mca_btl_gpusm_frag_t), 0, 0, 0,
                            no_limit, 64, nullptr, 0, nullptr, keep_private, nullptr);
    for (unsigned size = 0; size < frag_sizes; ++size) {
        const bool at_once = size <= static_cast<unsigned>(frag_size::eager);
        const int most = frags_at_most(size);
        opal_free_list_t *list = &component.frags[size];
        OBJ_CONSTRUCT(list, opal_free_list_t);
        made = made &&
               OPAL_SUCCESS ==
                   opal_free_list_init(list, sizeof(mca_btl_gpusm_frag_t), opal_cache_line_size,
                                       OBJ_CLASS(mca_btl_gpusm_frag_t), 0, 0,
                                       at_once ? std::min(component.free_list_num, most) : 0, most,
                                       frags_to_add(size), nullptr, 0, nullptr, bind_frag,
                                       reinterpret_cast<void *>(static_cast<std::uintptr_t>(size)));
    }
    return made;
}

void release_frag_lists()
{
    std::fill_n(read_ones, frag_sizes, read_frags{});
    for (std::atomic<std::uint32_t> &each : first_ones) {
        each.store(0, std::memory_order_relaxed);
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

static mca_btl_gpusm_frag_t *take_oldest(read_frags *read)
{
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    outgoing *out = read->oldest;
    if (nullptr == out) {
        return nullptr;
    }
    read->oldest = out->next;
    return frag_around(out);
}

static unsigned size_of(const mca_btl_gpusm_frag_t *frag)
{
    return static_cast<unsigned>(frag->list - mca_btl_gpusm_component.frags);
}

// Is the list to grow before what has been read is used again?
static bool is_round_short(unsigned size)
{
    const mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    return component.frags[size].fl_num_allocated * component.frag_capacity[size] <
           component.round_bytes;
}

// The fragment that is likely to be taken next. Null: it has to be made, or taken back.
static const mca_btl_gpusm_frag_t *next_frag(unsigned size, bool by_turns)
{
    if (outgoing *oldest = read_ones[size].oldest; by_turns && oldest != nullptr) {
        return frag_around(oldest);
    }
    const opal_lifo_t &list = mca_btl_gpusm_component.frags[size].super;
    const auto *first = reinterpret_cast<const opal_list_item_t *>(list.opal_lifo_head.data.item);
    return &list.opal_lifo_ghost == first ? nullptr
                                          : reinterpret_cast<const mca_btl_gpusm_frag_t *>(first);
}

static void own_ahead(const mca_btl_gpusm_frag_t *frag, std::size_t bytes)
{
    if (frag != nullptr) {
        const auto *at = reinterpret_cast<const unsigned char *>(frag->out.header);
        for (std::size_t line = 0; line < bytes; line += cache_line_bytes) {
            prefetch_to_write(at + line);
        }
    }
}

void own_next_frag(const mca_btl_gpusm_frag_t *like)
{
    own_ahead(next_frag(size_of(like), like->takes_turns),
              sizeof(frag_header) + like->segment.seg_len);
}

// The memory of a round costs more than it brings to a program that sends few messages.
static bool is_one_of_few(unsigned size)
{
    constexpr std::uint32_t few = 64;
    return first_ones[size].load(std::memory_order_relaxed) < few &&
           first_ones[size].fetch_add(1, std::memory_order_relaxed) < few;
}

static mca_btl_gpusm_frag_t *take(unsigned size, bool by_turns)
{
    opal_free_list_t &list = mca_btl_gpusm_component.frags[size];
    read_frags *read = &read_ones[size];
    mca_btl_gpusm_frag_t *frag = nullptr;
    if (by_turns ? is_round_short(size) : !opal_lifo_is_empty(&list.super)) {
        frag = first_of(&list);
    }
    if (nullptr == frag && nullptr == (frag = take_oldest(read))) {
        reclaim_frags(); // before the list grows, or because it cannot
        frag = take_oldest(read);
    }
    return frag != nullptr ? frag : first_of(&list);
}

static mca_btl_gpusm_frag_t *frag_get(std::size_t bytes, bool by_turns)
{
    unsigned size = 0;
    while (size < frag_sizes && bytes > mca_btl_gpusm_component.frag_capacity[size]) {
        ++size;
    }
    if (frag_sizes == size) {
        return nullptr;
    }
    // Devices write to those for device memory.
    by_turns = by_turns && static_cast<unsigned>(frag_size::gpu) != size && !is_one_of_few(size);
    mca_btl_gpusm_frag_t *frag = take(size, by_turns);
    if (frag != nullptr) {
        frag->takes_turns = by_turns;
        if (!mca_btl_gpusm_component.threads) {
            own_ahead(next_frag(size, by_turns), fetched_ahead_bytes);
        }
    }
    return frag;
}

mca_btl_gpusm_frag_t *frag_get(std::size_t bytes)
{
    return frag_get(bytes, takes_turns(bytes));
}

mca_btl_gpusm_frag_t *frag_get_warm(std::size_t bytes)
{
    return frag_get(bytes, false);
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

void frag_return(mca_btl_gpusm_frag_t *frag)
{
    opal_free_list_return(frag->list, &frag->base.super);
}

void frag_return_read(mca_btl_gpusm_frag_t *frag)
{
    if (!frag->takes_turns) {
        frag_return(frag);
        return;
    }
    const std::lock_guard guard(*mca_btl_gpusm_component.lock);
    read_frags &read = read_ones[size_of(frag)];
    frag->out.next = nullptr;
    (nullptr == read.oldest ? read.oldest : read.newest->next) = &frag->out;
    read.newest = &frag->out;
}

} // namespace gpusm
