// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/mapping_cache.h"

namespace gpusm {

void mapping_cache::release(mapping *used)
{
    if (--used->references != 0) {
        return;
    }
    if (used->stale) {
        (void)retire(mappings_.find(used->key));
        return;
    }
    used->last_use = ++uses_;
    used->epoch = epoch_;
    evict_to_fit(0);
}

void mapping_cache::invalidate(std::uint32_t owner,
                               const std::function<bool(const mapping_key &)> &is_over)
{
    ++changes_;
    auto at = mappings_.lower_bound({owner, 0, 0, 0});
    while (at != mappings_.end() && at->first.owner == owner) {
        at->second.stale = at->second.stale || is_over(at->first);
        at = at->second.stale && 0 == at->second.references ? retire(at) : std::next(at);
    }
}

bool mapping_cache::close_idle(std::int64_t time, std::uint64_t epochs)
{
    epoch_ += time != std::exchange(time_, time) ? 1 : 0;
    const auto at = oldest();
    if (at == mappings_.end() || epoch_ - at->second.epoch <= epochs ||
        !at->second.close(at->second, false)) {
        return false;
    }
    bytes_ -= at->second.len_bytes;
    (void)forget(at);
    return true;
}

mapping_cache::index::iterator mapping_cache::forget(index::iterator at)
{
    ++changes_;
    return mappings_.erase(at);
}

mapping_cache::index::iterator mapping_cache::close(index::iterator at)
{
    if (!at->second.close(at->second, false)) {
        return postpone(at);
    }
    bytes_ -= at->second.len_bytes;
    return forget(at);
}

// Of a stale one. What was mapped by a descriptor is closed at once: that takes little, and may
// hold the descriptor.
mapping_cache::index::iterator mapping_cache::retire(index::iterator at)
{
    const share_kind kind = at->first.kind;
    return share_kind::pool == kind || share_kind::descriptors == kind ? close(at) : postpone(at);
}

mapping_cache::index::iterator mapping_cache::postpone(index::iterator at)
{
    mapping &gone = at->second;
    bytes_ -= gone.len_bytes;
    gone.epoch = epoch_;
    postponed_bytes_ += gone.len_bytes;
    postponed_.push_back(std::move(gone));
    (void)close_postponed(max_postponed_bytes_);
    return forget(at);
}

// Leaves at most so many bytes postponed. True: something has been closed.
bool mapping_cache::close_postponed(std::size_t most_bytes)
{
    const std::size_t before = postponed_.size();
    while (!postponed_.empty()) {
        const mapping &oldest = postponed_.front();
        const bool by_force = postponed_bytes_ > most_bytes;
        const bool may_stay = epoch_ - oldest.epoch <= 1 && postponed_bytes_ <= max_kept_bytes_ &&
                              postponed_.size() <= max_kept_entries;
        if ((may_stay && !by_force) || !oldest.close(oldest, by_force)) {
            break;
        }
        postponed_bytes_ -= oldest.len_bytes;
        postponed_.pop_front();
    }
    return postponed_.size() < before;
}

// True: something has been closed.
bool mapping_cache::close_overlapping(std::uint32_t owner, std::uint64_t base,
                                      std::uint64_t len_bytes)
{
    return 0 != std::erase_if(postponed_, [&](const mapping &each) {
               const bool overlaps =
                   owner == each.key.owner &&
                   (each.remote_base <= base ? base - each.remote_base < each.len_bytes
                                             : each.remote_base - base < len_bytes);
               if (!overlaps || !each.close(each, false)) {
                   return false;
               }
               postponed_bytes_ -= each.len_bytes;
               return true;
           });
}

// The least recently used of the unused ones.
mapping_cache::index::iterator mapping_cache::oldest()
{
    auto found = mappings_.end();
    for (auto at = mappings_.begin(); at != mappings_.end(); ++at) {
        if (0 == at->second.references &&
            (found == mappings_.end() || at->second.last_use < found->second.last_use)) {
            found = at;
        }
    }
    return found;
}

bool mapping_cache::evict_oldest()
{
    const auto at = oldest();
    if (at == mappings_.end()) {
        return false;
    }
    (void)close(at);
    return true;
}

bool mapping_cache::evict_all()
{
    const bool any = evict_oldest();
    while (evict_oldest()) {
    }
    return any;
}

void mapping_cache::evict_to_fit(std::uint64_t more_bytes)
{
    while (max_bytes_ != 0 && (more_bytes > max_bytes_ || bytes_ > max_bytes_ - more_bytes) &&
           evict_oldest()) {
    }
}

} // namespace gpusm
