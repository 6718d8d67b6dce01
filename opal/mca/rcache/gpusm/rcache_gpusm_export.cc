// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

#include <algorithm>
#include <cstdint>

#include "opal/mca/btl/gpusm/base/log.h"

namespace gpusm {

namespace {

bool covers(const exported &entry, std::uint64_t address, std::uint64_t len_bytes)
{
    if (address < entry.memory.base) {
        return false;
    }
    const std::uint64_t offset = address - entry.memory.base;
    return offset < entry.memory.len_bytes && len_bytes <= entry.memory.len_bytes - offset;
}

// The first export that starts above `address`.
template <typename Index> auto first_above(Index &by_base, std::uint64_t address)
{
    return std::upper_bound(
        by_base.begin(), by_base.end(), address,
        [](std::uint64_t wanted, const exported *entry) { return wanted < entry->memory.base; });
}

} // namespace

exported *export_table::find(std::uint64_t address, std::uint64_t len_bytes) const
{
    if (last_found_ != nullptr && covers(*last_found_, address, len_bytes)) {
        return last_found_;
    }
    const auto above = first_above(by_base_, address);
    if (above == by_base_.begin() || !covers(**(above - 1), address, len_bytes)) {
        return nullptr;
    }
    last_found_ = *(above - 1);
    return last_found_;
}

status export_table::insert(const allocation &memory, const void *argument, exported **out)
{
    if (memory.len_bytes == 0 || memory.len_bytes - 1 > UINT64_MAX - memory.base) {
        return status::bad_argument;
    }
    retire_overlapping(memory.base, memory.len_bytes);
    exported *entry = take_slot();
    if (entry == nullptr) {
        return status::no_memory;
    }
    entry->memory = memory;
    entry->generation++;
    if (const status published = callbacks_.publish(callbacks_.context, *entry, argument);
        published != status::ok) {
        return published;
    }
    entry->retired = false;
    entry->last_use_ = ++uses_;
    by_base_.insert(first_above(by_base_, memory.base), entry);
    *out = last_found_ = entry;
    return status::ok;
}

void export_table::retire_overlapping(std::uint64_t base, std::uint64_t len_bytes)
{
    for (auto above = first_above(by_base_, base + (len_bytes - 1));
         above != by_base_.begin() &&
         (*(above - 1))->memory.base + ((*(above - 1))->memory.len_bytes - 1) >= base;
         above = first_above(by_base_, base + (len_bytes - 1))) {
        retire(*(above - 1));
    }
}

void export_table::release(exported *entry)
{
    if (entry->references == 0) {
        log_line(log_level::error, "the export in slot %u was released more often than referenced",
                 entry->slot);
        return;
    }
    --entry->references;
    entry->last_use_ = ++uses_;
}

void export_table::retire(exported *entry)
{
    if (entry->retired) {
        return;
    }
    entry->retired = true;
    by_base_.erase(first_above(by_base_, entry->memory.base) - 1);
    if (last_found_ == entry) {
        last_found_ = nullptr;
    }
    callbacks_.retire(callbacks_.context, *entry);
}

exported *export_table::next_for_sweep()
{
    if (by_base_.empty()) {
        return nullptr;
    }
    auto at = std::lower_bound(
        by_base_.begin(), by_base_.end(), next_swept_,
        [](const exported *entry, std::uint64_t wanted) { return entry->memory.base < wanted; });
    at = at == by_base_.end() ? by_base_.begin() : at;
    next_swept_ = (*at)->memory.base + 1;
    return *at;
}

// A slot that nobody uses, of a retired export if there is one. An insertion costs several driver
// calls, so that a look at all slots does not count.
exported *export_table::take_slot()
{
    exported *best = nullptr;
    for (const auto &each : entries_) {
        if (each->references != 0) {
            continue;
        }
        if (each->retired) {
            return each.get();
        }
        if (best == nullptr || each->last_use_ < best->last_use_) {
            best = each.get();
        }
    }
    if (entries_.size() < slots_) {
        entries_.push_back(std::make_unique<exported>());
        entries_.back()->slot = static_cast<std::uint32_t>(entries_.size() - 1);
        return entries_.back().get();
    }
    if (best != nullptr) {
        retire(best);
    }
    return best;
}

} // namespace gpusm
