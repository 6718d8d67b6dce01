// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_export.h: the owner's side of sharing device memory: which of this process's
// allocations are exported, under which slot and generation, and which slot the next one gets.
//
//   allocation        one device allocation, as the driver describes it
//   exported          one export of it
//   export_callbacks  how a slot of the directory is written and struck out
//   export_table      the table
#ifndef GPUSM_RCACHE_EXPORT_H
#define GPUSM_RCACHE_EXPORT_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "opal/mca/btl/gpusm/base/status.h"

namespace gpusm {

struct allocation {
    std::uint64_t base;
    std::uint64_t len_bytes;
    std::uint64_t buffer_id; // the driver's number; another allocation at `base` has another one
};

// One export. Owned by the table, which uses it again for the next one in its slot: a pointer to it
// is valid until it is retired and its last reference is gone.
struct exported {
    allocation memory{};
    std::uint32_t slot = 0;
    std::uint32_t references = 0;
    std::uint64_t generation = 0; // from 1 on; never used twice for a slot
    bool retired = true;          // the allocation is gone or the slot was needed

  private:
    friend class export_table;
    std::uint64_t last_use_ = 0; // counts insertions and releases
};

// Neither callback may call the table that calls it, nor throw.
struct export_callbacks {
    void *context; // handed back untouched

    // Writes the directory entry of the slot. `argument` is the one that insert() was given. When
    // this fails, the slot is free again and this generation of it is never used.
    status (*publish)(void *context, const exported &entry, const void *argument);

    // The generation of the slot is over; the directory must say so before this returns. Called
    // exactly once for each successful publish, the table's destruction excepted.
    void (*retire)(void *context, const exported &entry);
};

// Not thread-safe: the caller holds the lock that guards its GPU state. Memory is allocated by
// insert() only, as far as the table is really used, and is recycled.
//
// Between calls: live (= not retired) exports do not overlap, and have distinct slots.
class export_table {
  public:
    // `slots`: how many exports there can be at once, live or still referenced; numbered from 0.
    export_table(export_callbacks callbacks, std::uint32_t slots)
        : callbacks_(callbacks), slots_(slots)
    {
    }

    // Says nothing to the directory, which is about to vanish with its segment.
    ~export_table() = default;

    export_table(const export_table &) = delete;
    export_table &operator=(const export_table &) = delete;

    // The live export that covers all of [address, address + len_bytes), or nullptr. The one that
    // was found last is tried first, then O(log n). An empty range is covered by the allocation
    // that `address` is in. Whether the allocation still exists is for the caller to ask.
    exported *find(std::uint64_t address, std::uint64_t len_bytes) const;

    // Exports `memory`, with no reference yet; *out is written on success only. Every live export
    // that overlaps it is older, hence gone, and is retired first, also when the rest fails. The
    // slot is a free one, else that of the least recently used export without a reference, which
    // is retired.
    // bad_argument: empty range, or one that wraps around. no_memory: every slot is in use. Else
    // what publish() said.
    status insert(const allocation &memory, const void *argument, exported **out);

    // Retires every live export that overlaps such a range, as insert() does.
    void retire_overlapping(std::uint64_t base, std::uint64_t len_bytes);

    // An export with a reference keeps its slot. Each add_reference() needs one release(); the last
    // one makes a live export the most recently used.
    void add_reference(exported *entry) { ++entry->references; }
    void release(exported *entry);

    // The allocation is gone: the generation of the slot is over, and the slot is free, at once or
    // with the last release. Retiring a second time does nothing.
    void retire(exported *entry);

    // The next live export, in turns, each once per round; nullptr when there is none. For asking
    // a few at a time whether their allocation still exists. Retiring the one returned is fine.
    exported *next_for_sweep();

    std::size_t live() const { return by_base_.size(); }

  private:
    exported *take_slot();

    const export_callbacks callbacks_;
    const std::uint32_t slots_;
    std::vector<std::unique_ptr<exported>> entries_; // by slot, of those that were ever used
    std::vector<exported *> by_base_;                // the live exports, sorted by address
    mutable exported *last_found_ = nullptr;         // null or live
    std::uint64_t next_swept_ = 0;                   // or the first one above
    std::uint64_t uses_ = 0;
};

} // namespace gpusm

#endif
