// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_cache.cc: the importer's cache over two sorted arrays of pointers. Arrays, because
// the number of mappings is bounded and opening one costs the driver far more than moving them.
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"

#include <algorithm>
#include <limits>
#include <new>
#include <tuple>

#include "opal/mca/btl/gpusm/base/log.h"

namespace gpusm {

namespace {

using slot_position = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
using base_position = std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>;

slot_position slot_of(const mapping_key &key)
{
    return {key.owner, key.device, key.slot};
}

base_position base_of(const mapping_key &key, std::uint64_t remote_base)
{
    return {key.owner, key.device, remote_base};
}

template <typename Index> auto find_slot(Index &index, const slot_position &wanted)
{
    return std::lower_bound(index.begin(), index.end(), wanted,
                            [](const mapping *entry, const slot_position &position) {
                                return slot_of(entry->key) < position;
                            });
}

template <typename Index> auto find_base(Index &index, const base_position &wanted)
{
    return std::lower_bound(index.begin(), index.end(), wanted,
                            [](const mapping *entry, const base_position &position) {
                                return base_of(entry->key, entry->remote_base) < position;
                            });
}

bool empty_or_wraps(std::uint64_t base, std::uint64_t len_bytes)
{
    return len_bytes == 0 || len_bytes - 1 > std::numeric_limits<std::uint64_t>::max() - base;
}

// Both ranges are sound (see above), so neither last byte wraps.
bool covers(const mapping &outer, std::uint64_t base, std::uint64_t len_bytes)
{
    return base >= outer.remote_base &&
           base + (len_bytes - 1) <= outer.remote_base + (outer.len_bytes - 1);
}

bool over(std::size_t limit, std::size_t used, std::uint64_t more)
{
    return limit != 0 && (more > limit || used > limit - more);
}

} // namespace

mapping_cache::mapping_cache(mapping_callbacks callbacks, cache_limits limits) noexcept
    : callbacks_(callbacks), limits_(limits)
{
}

mapping_cache::~mapping_cache()
{
    while (evict_oldest()) {
    }
    if (statistics_.entries != 0) {
        log_line(log_level::warn,
                 "%zu mapping(s) of peers' device memory are still in use and stay open",
                 statistics_.entries);
    }
}

status mapping_cache::acquire(const mapping_key &key, std::uint64_t remote_base,
                              std::uint64_t len_bytes, const void *open_argument,
                              mapping **out) noexcept
{
    if (empty_or_wraps(remote_base, len_bytes)) {
        return status::bad_argument;
    }
    if (mapping *hit = lookup(key); hit != nullptr) {
        if (!covers(*hit, remote_base, len_bytes)) {
            return status::bad_peer;
        }
        if (hit->references++ == 0) {
            unlink(hit);
            statistics_.referenced++;
        }
        statistics_.hits++;
        last_hit_ = hit;
        *out = hit;
        return status::ok;
    }

    statistics_.misses++;
    displace(key, remote_base, len_bytes);
    evict_to_fit(1, len_bytes);
    mapping *node = take_node();
    if (node == nullptr) {
        return status::no_memory;
    }
    node->key = key;
    node->remote_base = remote_base;
    node->len_bytes = len_bytes;
    if (const status opened = open(node, open_argument); opened != status::ok) {
        give_node(node);
        return opened;
    }
    insert(node);
    last_hit_ = node;
    *out = node;
    return status::ok;
}

void mapping_cache::release(mapping *used) noexcept
{
    if (used->references == 0) {
        log_line(log_level::error, "a mapping of slot %u was released more often than acquired",
                 used->key.slot);
        return;
    }
    if (--used->references != 0) {
        return;
    }
    statistics_.referenced--;
    if (used->stale) {
        statistics_.stale_closed++;
        close(used);
        return;
    }
    push_newest(used);
    evict_to_fit(0, 0);
}

void mapping_cache::invalidate(std::uint32_t owner,
                               bool (*is_stale)(void *argument, const mapping_key &key),
                               void *argument) noexcept
{
    // The owner's mappings are neighbours in both arrays. Each array is compacted once, however
    // many go; what is unused is strung on a list of its own meanwhile.
    mapping *to_close = nullptr;
    const auto first = find_slot(by_slot_, slot_position{owner, 0, 0});
    for (auto at = first; at != by_slot_.end() && (*at)->key.owner == owner; ++at) {
        mapping *entry = *at;
        if (!is_stale(argument, entry->key)) {
            continue;
        }
        mark_stale(entry);
        if (entry->references == 0) {
            entry->older_ = to_close;
            to_close = entry;
        }
    }
    const auto stale = [](const mapping *entry) { return entry->stale; };
    std::erase_if(by_slot_, stale);
    std::erase_if(by_base_, stale);
    while (to_close != nullptr) {
        mapping *entry = to_close;
        to_close = entry->older_;
        statistics_.stale_closed++;
        close(entry);
    }
}

void mapping_cache::drop_owner(std::uint32_t owner) noexcept
{
    invalidate(
        owner, [](void *, const mapping_key &) { return true; }, nullptr);
}

cache_statistics mapping_cache::statistics() const noexcept
{
    return statistics_;
}

mapping *mapping_cache::lookup(const mapping_key &key) const noexcept
{
    if (last_hit_ != nullptr && last_hit_->key == key) {
        return last_hit_;
    }
    const auto at = find_slot(by_slot_, slot_of(key));
    return at != by_slot_.end() && (*at)->key == key ? *at : nullptr;
}

// Also makes sure that insert() cannot fail.
mapping *mapping_cache::take_node() noexcept
{
    try {
        if (by_slot_.size() == by_slot_.capacity()) {
            by_slot_.reserve(2 * by_slot_.size() + 1);
        }
        if (by_base_.size() == by_base_.capacity()) {
            by_base_.reserve(2 * by_base_.size() + 1);
        }
        if (free_nodes_ == nullptr) {
            return &nodes_.emplace_front();
        }
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
    mapping *node = free_nodes_;
    free_nodes_ = node->older_;
    *node = mapping{};
    return node;
}

void mapping_cache::give_node(mapping *node) noexcept
{
    node->older_ = free_nodes_;
    free_nodes_ = node;
}

status mapping_cache::open(mapping *node, const void *open_argument) noexcept
{
    std::uint64_t local_base = 0;
    status opened = callbacks_.open(callbacks_.context, node->key, node->remote_base,
                                    node->len_bytes, open_argument, &local_base);
    // Unused mappings hold address space, and memory that its owner may have freed already.
    if ((opened == status::no_memory || opened == status::driver_failed) && evict_oldest()) {
        while (evict_oldest()) {
        }
        opened = callbacks_.open(callbacks_.context, node->key, node->remote_base, node->len_bytes,
                                 open_argument, &local_base);
    }
    if (opened == status::ok) {
        node->local_base = local_base;
    }
    return opened;
}

// The node's first reference is the caller's.
void mapping_cache::insert(mapping *node) noexcept
{
    by_slot_.insert(find_slot(by_slot_, slot_of(node->key)), node);
    by_base_.insert(find_base(by_base_, base_of(node->key, node->remote_base)), node);
    node->references = 1;
    statistics_.entries++;
    statistics_.bytes += node->len_bytes;
    statistics_.referenced++;
}

void mapping_cache::unindex(mapping *entry) noexcept
{
    by_slot_.erase(find_slot(by_slot_, slot_of(entry->key)));
    by_base_.erase(find_base(by_base_, base_of(entry->key, entry->remote_base)));
}

// Makes room for a newcomer among the indexed mappings: nothing that it contradicts stays.
void mapping_cache::displace(const mapping_key &key, std::uint64_t remote_base,
                             std::uint64_t len_bytes) noexcept
{
    const auto remove = [this](mapping *entry) {
        unindex(entry);
        mark_stale(entry);
        if (entry->references == 0) {
            statistics_.stale_closed++;
            close(entry);
        }
    };
    if (const auto at = find_slot(by_slot_, slot_of(key));
        at != by_slot_.end() && slot_of((*at)->key) == slot_of(key)) {
        remove(*at);
    }
    // Going down from the last one that starts inside the range: the mappings do not overlap each
    // other, so the first one that ends before it has nothing but earlier ones below.
    const std::uint64_t last_byte = remote_base + (len_bytes - 1);
    while (true) {
        auto at = std::upper_bound(by_base_.begin(), by_base_.end(), base_of(key, last_byte),
                                   [](const base_position &position, const mapping *entry) {
                                       return position < base_of(entry->key, entry->remote_base);
                                   });
        if (at == by_base_.begin()) {
            return;
        }
        mapping *below = *--at;
        if (below->key.owner != key.owner || below->key.device != key.device ||
            below->remote_base + (below->len_bytes - 1) < remote_base) {
            return;
        }
        remove(below);
    }
}

void mapping_cache::mark_stale(mapping *entry) noexcept
{
    if (entry->references == 0) {
        unlink(entry);
    }
    entry->stale = true;
    if (last_hit_ == entry) {
        last_hit_ = nullptr;
    }
}

// The entry is unused, and in no index or list any more.
void mapping_cache::close(mapping *entry) noexcept
{
    callbacks_.close(callbacks_.context, entry->key, entry->local_base);
    statistics_.entries--;
    statistics_.bytes -= entry->len_bytes;
    give_node(entry);
}

void mapping_cache::evict_to_fit(std::size_t more_entries, std::uint64_t more_bytes) noexcept
{
    while (over(limits_.max_entries, statistics_.entries, more_entries) ||
           over(limits_.max_bytes, statistics_.bytes, more_bytes)) {
        if (!evict_oldest()) {
            return;
        }
    }
}

bool mapping_cache::evict_oldest() noexcept
{
    mapping *entry = oldest_;
    if (entry == nullptr) {
        return false;
    }
    unindex(entry);
    mark_stale(entry);
    statistics_.evictions++;
    close(entry);
    return true;
}

void mapping_cache::push_newest(mapping *entry) noexcept
{
    entry->newer_ = nullptr;
    entry->older_ = newest_;
    (newest_ != nullptr ? newest_->newer_ : oldest_) = entry;
    newest_ = entry;
}

void mapping_cache::unlink(mapping *entry) noexcept
{
    (entry->newer_ != nullptr ? entry->newer_->older_ : newest_) = entry->older_;
    (entry->older_ != nullptr ? entry->older_->newer_ : oldest_) = entry->newer_;
    entry->newer_ = nullptr;
    entry->older_ = nullptr;
}

} // namespace gpusm
