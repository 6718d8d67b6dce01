// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/mapping_cache.h: the importer's registration cache: which allocations of which peers are
// mapped here, how many users each mapping has, and when it is closed. It knows no driver.
#ifndef GPUSM_IPC_MAPPING_CACHE_H
#define GPUSM_IPC_MAPPING_CACHE_H

#include "opal/mca/common/gpusm/base/status.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

namespace gpusm {

// What is mapped; never an address alone.
struct mapping_key {
    std::uint32_t owner;                // importer's number for the exporting peer
    std::uint32_t device;               // local device whose context opened it
    std::uint32_t slot;                 // slot in the owner's export directory
    std::uint64_t generation;           // of that slot; never used again for it
    share_kind kind = share_kind::none; // of the memory, says the peer's handle

    auto operator<=>(const mapping_key &) const = default;
};

// One open mapping. Owned by the cache; callers read it, and only between acquire() and the
// matching release(). An address X of the owner is found here at local_base + (X - remote_base).
struct mapping {
    mapping_key key{};
    std::uint64_t remote_base = 0; // start of the allocation in the owner's address space
    std::uint64_t len_bytes = 0;
    std::uint64_t local_base = 0;
    void *pool = nullptr; // that it is of, if it is of one; the opener's
    std::array<std::uint8_t, device_uuid_bytes> device_uuid{}; // where it lies
    // False: not now, and nothing has happened; with `by_force` it cannot fail.
    std::function<bool(const mapping &, bool by_force)> close;
    std::uint32_t anchor_slot = no_export_slot; // of an anchor that is not mapped yet
    std::uint32_t references = 0;
    bool stale = false;         // never given out again; closed at the last release
    std::uint64_t last_use = 0; // counts releases
    std::uint64_t epoch = 0;    // of the last release, or in which it was to be closed
};

// What is open now, stale mappings and those that are to be closed included.
struct cache_statistics {
    std::size_t entries;
    std::size_t bytes;
};

// Not thread-safe: the caller holds the lock that guards its GPU state. A hit allocates nothing.
// All but hits is linear in the number of mappings, which is little beside the driver calls that
// come with it. A mapping with a reference is never closed. A stale one, but for those mapped by a
// descriptor, is closed in close_postponed(), a whole epoch later, as closing it now would hold up
// the messages that go on; or earlier, the oldest first, while these are more than max_kept_bytes
// or max_kept_entries. One that its opener cannot close now is closed later as well, or by force
// when these are more than max_postponed_bytes. When there is no memory for others, all of them go;
// and when another allocation of their owner cannot be opened because it overlaps them, these, if
// they can.
class mapping_cache {
  public:
    static constexpr std::size_t max_kept_entries = 16; // they take slots of their owners, too

    // At most `max_bytes` stay mapped that nobody uses; 0: no bound.
    explicit mapping_cache(std::size_t max_bytes) : max_bytes_(max_bytes) {}
    // Of what is to be closed; both are 0 at first. `max_postponed_bytes` SIZE_MAX: no bound.
    void bound_postponed(std::size_t max_postponed_bytes, std::size_t max_kept_bytes)
    {
        max_postponed_bytes_ = max_postponed_bytes;
        max_kept_bytes_ = max_kept_bytes;
    }
    // Closes every mapping that has no reference. Those that have one stay open, as somebody may be
    // copying through them; the caller's pointers to them die here.
    ~mapping_cache()
    {
        (void)evict_all();
        (void)close_postponed(0);
    }
    mapping_cache(const mapping_cache &) = delete;
    mapping_cache &operator=(const mapping_cache &) = delete;

    // Lends the mapping of `key`, opened if it is not open yet, and adds one reference to it; each
    // success needs one release(). [remote_base, remote_base + len_bytes) is the allocation. *out
    // is written on success only.
    //
    // On a miss unused mappings are evicted, least recently used first, until the bound holds with
    // the newcomer counted, and open(mapping *) is called, which writes `local_base` and `close`;
    // it must not call the cache. If it answers no_memory while unused mappings are left, these are
    // all evicted and it is called once more; likewise if it answers not_found while mappings that
    // overlap the allocation are to be closed. So the bound is exceeded by mappings in use only.
    //
    // bad_peer: the key is mapped, and the allocation was another one. not_found: it is stale. Else
    // what open() said.
    template <typename Open>
    status acquire(const mapping_key &key, std::uint64_t remote_base, std::uint64_t len_bytes,
                   Open &&open, mapping **out)
    {
        auto place = mappings_.find(key);
        if (place == mappings_.end()) {
            evict_to_fit(len_bytes);
            mapping made{key, remote_base, len_bytes};
            status s = open(&made);
            // Unused mappings hold address space, and memory that its owner may have freed already.
            if (status::no_memory == s) {
                const bool any = evict_all();
                if (close_postponed(0) || any) {
                    s = open(&made);
                }
            }
            if (status::not_found == s && close_overlapping(key.owner, remote_base, len_bytes)) {
                s = open(&made);
            }
            if (status::ok != s) {
                return s;
            }
            bytes_ += len_bytes;
            place = mappings_.emplace(key, std::move(made)).first;
        }
        mapping *found = &place->second;
        if (found->stale) {
            return status::not_found;
        }
        if (found->remote_base != remote_base || found->len_bytes != len_bytes) {
            return status::bad_peer;
        }
        ++found->references;
        *out = found;
        return status::ok;
    }

    // One more reference to a mapping that acquire() has given out, which has not been closed nor
    // become stale since: as long as changes() is what it was then.
    static mapping *hold(mapping *found)
    {
        ++found->references;
        return found;
    }
    std::uint64_t changes() const { return changes_; }

    // Takes back one reference. With the last one a stale mapping is to be closed, and any other
    // becomes the most recently used of the unused ones, which are then evicted until the bound
    // holds: one that is larger by itself is closed here.
    void release(mapping *used);

    // Makes the mappings of `owner` stale for which is_over(key) answers true. The unused ones are
    // to be closed from now on, the others from their last release.
    void invalidate(std::uint32_t owner, const std::function<bool(const mapping_key &)> &is_over);

    // Closes the least recently used mapping if nobody has used it for more than so many whole
    // epochs. False: there is none such, or it cannot be closed now. An epoch is the time from a
    // call with one `time` to the next call with another.
    bool close_idle(std::int64_t time, std::uint64_t epochs);

    // Closes what can be closed by now of what is to be closed.
    void close_postponed() { (void)close_postponed(max_postponed_bytes_); }

    cache_statistics statistics() const
    {
        return {mappings_.size() + postponed_.size(), bytes_ + postponed_bytes_};
    }
    // Is any mapping of that owner open that is not about to be closed?
    bool has_any_of(std::uint32_t owner) const
    {
        const auto first = mappings_.lower_bound({owner, 0, 0, 0});
        return first != mappings_.end() && first->first.owner == owner;
    }

  private:
    using index = std::map<mapping_key, mapping>;

    index::iterator forget(index::iterator at);
    index::iterator close(index::iterator at);
    index::iterator retire(index::iterator at);
    index::iterator postpone(index::iterator at);
    index::iterator oldest();
    bool evict_oldest();
    bool evict_all();
    void evict_to_fit(std::uint64_t more_bytes);
    bool close_postponed(std::size_t most_bytes);
    bool close_overlapping(std::uint32_t owner, std::uint64_t base, std::uint64_t len_bytes);

    const std::size_t max_bytes_;
    std::size_t max_postponed_bytes_ = 0;
    std::size_t max_kept_bytes_ = 0;
    index mappings_;
    std::uint64_t changes_ = 0; // mappings that went out of the index, and calls of invalidate()
    std::size_t bytes_ = 0;
    std::deque<mapping> postponed_; // out of mappings_, still open; oldest first
    std::size_t postponed_bytes_ = 0;
    std::uint64_t uses_ = 0;
    std::uint64_t epoch_ = 0;
    std::int64_t time_ = 0; // of the latest close_idle
};

} // namespace gpusm

#endif
