// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>

#include "opal/mca/btl/gpusm/base/log.h"

namespace gpusm {

namespace {

// Where the mappings of a key's slot are, whatever their generation.
auto place_of(const mapping_key &key)
{
    return std::make_tuple(key.owner, key.device, key.slot);
}

template <typename Index> auto find_place(Index &live, const mapping_key &key)
{
    return std::lower_bound(
        live.begin(), live.end(), place_of(key),
        [](const auto &entry, const auto &wanted) { return place_of(entry->key) < wanted; });
}

bool empty_or_wraps(std::uint64_t base, std::uint64_t len_bytes)
{
    return len_bytes == 0 || len_bytes - 1 > UINT64_MAX - base;
}

// All ranges are sound (see above), so no last byte wraps.
std::uint64_t last_byte(std::uint64_t base, std::uint64_t len_bytes)
{
    return base + (len_bytes - 1);
}

bool over(std::size_t limit, std::size_t used, std::uint64_t more)
{
    return limit != 0 && (more > limit || used > limit - more);
}

} // namespace

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
                              std::uint64_t len_bytes, const void *open_argument, mapping **out)
{
    if (empty_or_wraps(remote_base, len_bytes)) {
        return status::bad_argument;
    }
    const std::uint64_t last = last_byte(remote_base, len_bytes);
    if (mapping *hit = lookup(key); hit != nullptr) {
        if (remote_base < hit->remote_base || last > last_byte(hit->remote_base, hit->len_bytes)) {
            return status::bad_peer;
        }
        statistics_.referenced += 0 == hit->references++ ? 1 : 0;
        statistics_.hits++;
        *out = last_hit_ = hit;
        return status::ok;
    }

    statistics_.misses++;
    // Nothing that the newcomer contradicts stays.
    const auto first = find_place(live_, {key.owner, key.device, 0, 0});
    const auto end = std::find_if(first, live_.end(), [&](const owned &each) {
        return each->key.owner != key.owner || each->key.device != key.device;
    });
    end_if(first, end, [&](const mapping &each) {
        return each.key.slot == key.slot ||
               (each.remote_base <= last &&
                remote_base <= last_byte(each.remote_base, each.len_bytes));
    });
    evict_to_fit(1, len_bytes);
    auto made = std::make_unique<mapping>();
    made->key = key;
    made->remote_base = remote_base;
    made->len_bytes = len_bytes;
    made->references = 1;
    if (const status opened = open(made.get(), open_argument); opened != status::ok) {
        return opened;
    }
    statistics_.entries++;
    statistics_.bytes += len_bytes;
    statistics_.referenced++;
    *out = last_hit_ = made.get();
    live_.insert(find_place(live_, key), std::move(made));
    return status::ok;
}

void mapping_cache::release(mapping *used)
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
        close(*used);
        std::erase_if(stale_, [=](const owned &each) { return each.get() == used; });
        return;
    }
    used->last_use_ = ++uses_;
    used->epoch_ = epoch_;
    evict_to_fit(0, 0);
}

void mapping_cache::invalidate(std::uint32_t owner,
                               bool (*is_stale)(void *argument, const mapping_key &key),
                               void *argument)
{
    const auto first = find_place(live_, {owner, 0, 0, 0});
    const auto end = std::find_if(first, live_.end(),
                                  [=](const owned &each) { return each->key.owner != owner; });
    end_if(first, end, [=](const mapping &each) { return is_stale(argument, each.key); });
}

void mapping_cache::drop_owner(std::uint32_t owner)
{
    invalidate(
        owner, [](void *, const mapping_key &) { return true; }, nullptr);
}

bool mapping_cache::close_idle(std::uint64_t epochs)
{
    const auto at = oldest();
    return at != live_.end() && epoch_ - (*at)->epoch_ > epochs && evict_oldest();
}

mapping *mapping_cache::lookup(const mapping_key &key)
{
    if (last_hit_ != nullptr && last_hit_->key == key) {
        return last_hit_;
    }
    const auto at = find_place(live_, key);
    return at != live_.end() && (*at)->key == key ? at->get() : nullptr;
}

status mapping_cache::open(mapping *node, const void *open_argument)
{
    const auto try_it = [&] {
        return callbacks_.open(callbacks_.context, node->key, node->remote_base, node->len_bytes,
                               open_argument, &node->local_base);
    };
    status opened = try_it();
    // Unused mappings hold address space, and memory that its owner may have freed already.
    if (opened == status::no_memory && evict_oldest()) {
        while (evict_oldest()) {
        }
        opened = try_it();
    }
    return opened;
}

// Takes those out of the index for which `ends` is true, and closes what nobody uses.
template <typename Ends>
void mapping_cache::end_if(index::iterator first, index::iterator last, Ends &&ends)
{
    last_hit_ = nullptr;
    const auto ended =
        std::stable_partition(first, last, [&](const owned &each) { return !ends(*each); });
    for (auto at = ended; at != last; ++at) {
        (*at)->stale = true;
        if ((*at)->references != 0) {
            stale_.push_back(std::move(*at));
        } else {
            statistics_.stale_closed++;
            close(**at);
        }
    }
    live_.erase(ended, last);
}

void mapping_cache::close(const mapping &entry)
{
    callbacks_.close(callbacks_.context, entry.key, entry.local_base);
    statistics_.entries--;
    statistics_.bytes -= entry.len_bytes;
}

void mapping_cache::evict_to_fit(std::size_t more_entries, std::uint64_t more_bytes)
{
    while ((over(limits_.max_entries, statistics_.entries, more_entries) ||
            over(limits_.max_bytes, statistics_.bytes, more_bytes)) &&
           evict_oldest()) {
    }
}

// The least recently used of the unused ones.
mapping_cache::index::iterator mapping_cache::oldest()
{
    auto found = live_.end();
    for (auto at = live_.begin(); at != live_.end(); ++at) {
        if (0 == (*at)->references &&
            (found == live_.end() || (*at)->last_use_ < (*found)->last_use_)) {
            found = at;
        }
    }
    return found;
}

bool mapping_cache::evict_oldest()
{
    const auto at = oldest();
    if (at == live_.end()) {
        return false;
    }
    if (last_hit_ == at->get()) {
        last_hit_ = nullptr;
    }
    statistics_.evictions++;
    close(**at);
    live_.erase(at);
    return true;
}

} // namespace gpusm
