// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/view_directory.h"

#include "opal/mca/common/gpusm/gpu/strided.h"

namespace gpusm {

constexpr std::uint32_t granules_each = sizeof(view_description) / granule_bytes;
static_assert(0 == sizeof(view_description) % granule_bytes);

// At the first use. Where the segment has no memory now it may have some later.
bool view_directory::carve()
{
    if (carved_ || status::ok != own_.carve(descriptions * sizeof(view_description), &first_)) {
        return false;
    }
    carved_ = true;
    published_.resize(descriptions);
    for (std::uint32_t i = descriptions; i-- > 0;) {
        free_.push_back(first_ + i * granules_each);
    }
    return true;
}

bool view_directory::publish(const remote_handle &memory, const strided_side &blocks,
                             std::uint64_t address, std::uint64_t len_bytes, void *owner,
                             remote_handle *named)
{
    if (free_.empty() && !carve()) {
        return false;
    }
    const std::uint32_t at = free_.back();
    free_.pop_back();
    auto *out = reinterpret_cast<view_description *>(own_.at(at));
    out->generation.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    out->memory = memory;
    out->blocks = blocks;
    out->generation.store(++generation_, std::memory_order_release);
    published_[(at - first_) / granules_each] = {generation_, owner};
    *named = {at,      memory.event_slot, share_kind::strided, memory.flags, generation_,
              address, len_bytes};
    return true;
}

void view_directory::withdraw(const remote_handle &named)
{
    reinterpret_cast<view_description *>(own_.at(named.slot))
        ->generation.store(0, std::memory_order_relaxed);
    published_[(named.slot - first_) / granules_each] = {};
    free_.push_back(named.slot);
}

void *view_directory::owner_of(const remote_handle &named) const
{
    const std::uint32_t offset = named.slot - first_; // wraps around below the first one
    const std::uint32_t nth = offset / granules_each;
    return 0 == offset % granules_each && nth < published_.size() &&
                   published_[nth].generation == named.generation
               ? published_[nth].owner
               : nullptr;
}

bool view_directory::read(const peer &from, const remote_handle &named, remote_handle *memory,
                          strided_side *blocks)
{
    if (!from.attached() ||
        !from.shared().holds(std::uint64_t{named.slot} * granule_bytes, sizeof(view_description))) {
        return false;
    }
    const auto *there = reinterpret_cast<const view_description *>(from.shared().at(named.slot));
    const std::uint64_t before = there->generation.load(std::memory_order_acquire);
    *memory = there->memory;
    *blocks = there->blocks;
    std::atomic_thread_fence(std::memory_order_acquire);
    return 0 != before && before == named.generation &&
           before == there->generation.load(std::memory_order_relaxed) &&
           names_export(memory->kind) &&
           strided_stays_in(*blocks, named.len_bytes, memory->base, memory->len_bytes);
}

} // namespace gpusm
