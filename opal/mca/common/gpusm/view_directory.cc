// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/view_directory.h"

#include "opal/mca/common/gpusm/gpu/strided.h"

namespace gpusm {

// At the first use. Where the segment has no memory now it may have some later.
bool view_directory::carve()
{
    static_assert(0 == sizeof(view_description) % granule_bytes);
    std::uint32_t first = 0;
    if (carved_ || status::ok != own_.carve(descriptions * sizeof(view_description), &first)) {
        return false;
    }
    carved_ = true;
    for (std::uint32_t i = descriptions; i-- > 0;) {
        free_.push_back(first +
                        i * static_cast<std::uint32_t>(sizeof(view_description) / granule_bytes));
    }
    return true;
}

bool view_directory::publish(const remote_handle &memory, const strided_side &blocks,
                             std::uint64_t address, std::uint64_t len_bytes, remote_handle *named)
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
    *named = {at,      memory.event_slot, share_kind::strided, memory.flags, generation_,
              address, len_bytes};
    return true;
}

void view_directory::withdraw(const remote_handle &named)
{
    reinterpret_cast<view_description *>(own_.at(named.slot))
        ->generation.store(0, std::memory_order_relaxed);
    free_.push_back(named.slot);
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
