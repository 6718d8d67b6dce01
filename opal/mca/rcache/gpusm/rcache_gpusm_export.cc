// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_export.cc: the owner's table: a sorted array of the live exports, a ring of them
// for sweeping, and a list of the unused ones from which slots are taken again.
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

#include <algorithm>
#include <limits>
#include <new>

#include "opal/mca/btl/gpusm/base/log.h"

namespace gpusm {

namespace {

bool empty_or_wraps(const allocation &memory)
{
    return memory.len_bytes == 0 ||
           memory.len_bytes - 1 > std::numeric_limits<std::uint64_t>::max() - memory.base;
}

bool covers(const exported &entry, std::uint64_t address, std::uint64_t len_bytes)
{
    if (address < entry.memory.base) {
        return false;
    }
    const std::uint64_t offset = address - entry.memory.base;
    return offset < entry.memory.len_bytes && len_bytes <= entry.memory.len_bytes - offset;
}

std::uint64_t last_byte(const allocation &memory)
{
    return memory.base + (memory.len_bytes - 1);
}

// The first export that starts above `address`.
template <typename Index> auto first_above(Index &by_base, std::uint64_t address)
{
    return std::upper_bound(
        by_base.begin(), by_base.end(), address,
        [](std::uint64_t wanted, const exported *entry) { return wanted < entry->memory.base; });
}

} // namespace

export_table::export_table(export_callbacks callbacks, std::uint32_t slots) noexcept
    : callbacks_(callbacks), slots_(slots)
{
}

exported *export_table::find(std::uint64_t address, std::uint64_t len_bytes) const noexcept
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

status export_table::insert(const allocation &memory, const void *argument, exported **out) noexcept
{
    if (empty_or_wraps(memory)) {
        return status::bad_argument;
    }
    end_overlapping(memory);
    // The entry before the slot: taking a slot may cost an older export its place, so what can
    // fail without that goes first.
    exported *entry = nullptr;
    if (const status taken = take_entry(&entry); taken != status::ok) {
        return taken;
    }
    std::uint32_t slot = 0;
    if (const status taken = take_slot(&slot); taken != status::ok) {
        give_entry(entry);
        return taken;
    }
    entry->memory = memory;
    entry->slot = slot;
    entry->generation = ++last_generation_[slot];
    if (const status published = callbacks_.publish(callbacks_.context, *entry, argument);
        published != status::ok) {
        free_slots_.push_back(slot);
        give_entry(entry);
        return published;
    }
    by_base_.insert(first_above(by_base_, memory.base), entry);
    enter_round(entry);
    push_newest(entry);
    last_found_ = entry;
    *out = entry;
    return status::ok;
}

void export_table::add_reference(exported *entry) noexcept
{
    if (entry->references++ == 0 && !entry->retired) {
        unlink(entry);
    }
}

void export_table::release(exported *entry) noexcept
{
    if (entry->references == 0) {
        log_line(log_level::error, "the export in slot %u was released more often than referenced",
                 entry->slot);
        return;
    }
    if (--entry->references != 0) {
        return;
    }
    if (entry->retired) {
        give_entry(entry);
    } else {
        push_newest(entry);
    }
}

void export_table::retire(exported *entry) noexcept
{
    if (entry->retired) {
        return;
    }
    entry->retired = true;
    by_base_.erase(first_above(by_base_, entry->memory.base) - 1);
    leave_round(entry);
    if (last_found_ == entry) {
        last_found_ = nullptr;
    }
    callbacks_.retire(callbacks_.context, *entry);
    free_slots_.push_back(entry->slot);
    if (entry->references == 0) {
        unlink(entry);
        give_entry(entry);
    }
}

exported *export_table::next_for_sweep() noexcept
{
    exported *next = round_;
    if (next != nullptr) {
        round_ = next->round_next_;
    }
    return next;
}

void export_table::end_overlapping(const allocation &memory) noexcept
{
    while (true) {
        const auto above = first_above(by_base_, last_byte(memory));
        if (above == by_base_.begin() || last_byte((*(above - 1))->memory) < memory.base) {
            return;
        }
        retire(*(above - 1));
    }
}

status export_table::take_slot(std::uint32_t *slot) noexcept
{
    if (free_slots_.empty() && last_generation_.size() < slots_) {
        try {
            // Room in every array for one more slot now, so that giving one back cannot fail.
            if (last_generation_.size() == by_base_.capacity()) {
                by_base_.reserve(2 * last_generation_.size() + 1);
            }
            if (last_generation_.size() == free_slots_.capacity()) {
                free_slots_.reserve(2 * last_generation_.size() + 1);
            }
            last_generation_.push_back(0);
        } catch (const std::bad_alloc &) {
            return status::no_memory;
        }
        *slot = static_cast<std::uint32_t>(last_generation_.size() - 1);
        return status::ok;
    }
    if (free_slots_.empty()) {
        if (oldest_ == nullptr) {
            return status::no_memory;
        }
        retire(oldest_);
    }
    *slot = free_slots_.back();
    free_slots_.pop_back();
    return status::ok;
}

status export_table::take_entry(exported **entry) noexcept
{
    if (free_entries_ != nullptr) {
        *entry = free_entries_;
        free_entries_ = (*entry)->round_next_;
        **entry = exported{};
        return status::ok;
    }
    try {
        *entry = &entries_.emplace_front();
    } catch (const std::bad_alloc &) {
        return status::no_memory;
    }
    return status::ok;
}

void export_table::give_entry(exported *entry) noexcept
{
    entry->round_next_ = free_entries_;
    free_entries_ = entry;
}

// Before the next one to sweep, that is, at the end of the running round.
void export_table::enter_round(exported *entry) noexcept
{
    if (round_ == nullptr) {
        entry->round_next_ = entry;
        entry->round_previous_ = entry;
        round_ = entry;
        return;
    }
    entry->round_next_ = round_;
    entry->round_previous_ = round_->round_previous_;
    entry->round_previous_->round_next_ = entry;
    round_->round_previous_ = entry;
}

void export_table::leave_round(exported *entry) noexcept
{
    if (round_ == entry) {
        round_ = entry->round_next_ == entry ? nullptr : entry->round_next_;
    }
    entry->round_previous_->round_next_ = entry->round_next_;
    entry->round_next_->round_previous_ = entry->round_previous_;
    entry->round_next_ = nullptr;
    entry->round_previous_ = nullptr;
}

void export_table::push_newest(exported *entry) noexcept
{
    entry->newer_ = nullptr;
    entry->older_ = newest_;
    (newest_ != nullptr ? newest_->newer_ : oldest_) = entry;
    newest_ = entry;
}

void export_table::unlink(exported *entry) noexcept
{
    (entry->newer_ != nullptr ? entry->newer_->older_ : newest_) = entry->older_;
    (entry->older_ != nullptr ? entry->older_->newer_ : oldest_) = entry->newer_;
    entry->newer_ = nullptr;
    entry->older_ = nullptr;
}

} // namespace gpusm
