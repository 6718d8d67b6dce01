// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_cache.h: the importer's side of sharing device memory: which allocations of
// which peers are mapped here, how many users each mapping has, and when it is closed.
//
//   mapping_key        what is mapped; never an address alone
//   mapping            one open mapping, lent to the caller while it holds a reference
//   mapping_callbacks  how a mapping is opened and closed; the cache itself knows no driver
//   cache_limits       how much may stay open that nobody uses
//   cache_statistics   counters since construction, and what is open now
//   mapping_cache      the cache
#ifndef GPUSM_RCACHE_CACHE_H
#define GPUSM_RCACHE_CACHE_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "opal/mca/btl/gpusm/base/status.h"

namespace gpusm {

struct mapping_key {
    std::uint32_t owner;      // importer's number for the exporting peer
    std::uint32_t device;     // local device whose context opened it
    std::uint32_t slot;       // slot in the owner's export directory
    std::uint64_t generation; // of that slot

    bool operator==(const mapping_key &) const = default;
};

// One open mapping. Owned by the cache; callers read it, and only between acquire() and the
// matching release(). An address X of the owner is found here at local_base + (X - remote_base).
struct mapping {
    mapping_key key{};
    std::uint64_t remote_base = 0; // start of the allocation in the owner's address space
    std::uint64_t len_bytes = 0;
    std::uint64_t local_base = 0; // what open() answered
    std::uint32_t references = 0;
    bool stale = false; // never given out again; closed at the last release

  private:
    friend class mapping_cache;
    std::uint64_t last_use_ = 0; // counts releases
    std::uint64_t epoch_ = 0;    // of the last release
};

// Neither callback may call the cache that calls it, nor throw.
struct mapping_callbacks {
    void *context; // handed back untouched

    // Opens what `key` names and writes *local_base, on success only. `open_argument` is the one
    // that acquire() was given, and only valid during the call.
    status (*open)(void *context, const mapping_key &key, std::uint64_t remote_base,
                   std::uint64_t len_bytes, const void *open_argument, std::uint64_t *local_base);

    // Called exactly once for each successful open, when nobody has a reference. Cannot fail: it
    // reports what it cannot close and goes on.
    void (*close)(void *context, const mapping_key &key, std::uint64_t local_base);
};

// 0 = no bound.
struct cache_limits {
    std::size_t max_entries;
    std::size_t max_bytes;
};

struct cache_statistics {
    std::uint64_t hits;
    std::uint64_t misses;       // acquisitions that had to open, also when the opening failed
    std::uint64_t evictions;    // closed unused: too many, too old, or to make an open succeed
    std::uint64_t stale_closed; // closed because the export was over or its owner was gone
    std::size_t entries;        // open now, stale ones included
    std::size_t bytes;          // their bytes
    std::size_t referenced;     // how many of them somebody uses
};

// Not thread-safe: the caller holds the lock that guards its GPU state. A hit allocates nothing; it
// costs one comparison when the same mapping was asked for last, else O(log n). All else is linear
// in the number of mappings, which is little beside the driver calls that come with it.
//
// Between calls: no two mappings of one owner and device that are not stale overlap in the owner's
// address space, nor share a slot. A mapping with a reference is never closed.
class mapping_cache {
  public:
    mapping_cache(mapping_callbacks callbacks, cache_limits limits)
        : callbacks_(callbacks), limits_(limits)
    {
    }

    // Closes every mapping that has no reference. Those that have one stay open, as somebody may be
    // copying through them; how many is logged, and the caller's pointers to them die here.
    ~mapping_cache();

    mapping_cache(const mapping_cache &) = delete;
    mapping_cache &operator=(const mapping_cache &) = delete;

    // Lends the mapping of `key`, opened if it is not open yet, and adds one reference to it; each
    // success needs one release(). [remote_base, remote_base + len_bytes) is the allocation; when
    // the key is mapped already it may be any part of it. *out is written on success only.
    //
    // On a miss, in this order: mappings of the same owner and device that overlap the range or
    // have the same slot with another generation become stale (closed now if unused); unused
    // mappings are evicted, least recently used first, until the limits hold with the newcomer
    // counted; open() is called; if it answers no_memory while unused mappings are left, these are
    // all evicted and open() is called once more. The limits are therefore exceeded by mappings in
    // use only, never by unused ones.
    //
    // bad_argument: empty range, or one that wraps around. bad_peer: the key is mapped, and the
    // range is not inside that mapping. Else what open() said.
    status acquire(const mapping_key &key, std::uint64_t remote_base, std::uint64_t len_bytes,
                   const void *open_argument, mapping **out);

    // Takes back one reference. With the last one a stale mapping is closed, and any other becomes
    // the most recently used of the unused ones, which are then evicted until the limits hold:
    // one that is larger than max_bytes by itself is closed here.
    void release(mapping *used);

    // Makes the mappings of `owner` stale for which is_stale(argument, key) answers true: closes
    // the unused ones now, the others at their last release.
    void invalidate(std::uint32_t owner, bool (*is_stale)(void *argument, const mapping_key &key),
                    void *argument);

    // The peer is gone: the same for all its mappings.
    void drop_owner(std::uint32_t owner);

    // The caller's time, in steps of its own choice.
    void begin_epoch() { ++epoch_; }
    // Closes the least recently used mapping if nobody has used it for more than so many whole
    // epochs. False: there is none such.
    bool close_idle(std::uint64_t epochs);

    const cache_statistics &statistics() const { return statistics_; }

  private:
    using owned = std::unique_ptr<mapping>;
    using index = std::vector<owned>;

    mapping *lookup(const mapping_key &key);
    status open(mapping *node, const void *open_argument);
    template <typename Ends> void end_if(index::iterator first, index::iterator last, Ends &&ends);
    void close(const mapping &entry);
    void evict_to_fit(std::size_t more_entries, std::uint64_t more_bytes);
    index::iterator oldest();
    bool evict_oldest();

    const mapping_callbacks callbacks_;
    const cache_limits limits_;
    cache_statistics statistics_{};
    index live_;                  // not stale, by owner, device and slot
    index stale_;                 // in use
    mapping *last_hit_ = nullptr; // null or in live_
    std::uint64_t uses_ = 0;
    std::uint64_t epoch_ = 0;
};

} // namespace gpusm

#endif
