// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// view_directory.h: where a sender describes memory with gaps to its receivers, whose kernels then
// read the blocks themselves. The descriptions lie in the sender's segment; a handle of kind
// `strided` names one.
#ifndef GPUSM_VIEW_DIRECTORY_H
#define GPUSM_VIEW_DIRECTORY_H

#include "opal/mca/common/gpusm/gpu/strided_arguments.h"
#include "opal/mca/common/gpusm/shm/peer.h"
#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <atomic>
#include <cstdint>
#include <vector>

namespace gpusm {

// Part of the wire format. Writer: the owner. The fields belong to `generation`, as those of an
// export_slot.
struct alignas(cache_line_bytes) view_description {
    std::atomic<std::uint64_t> generation;
    remote_handle memory; // the export in which all blocks lie
    strided_side blocks;  // at addresses of the owner; in loops, not listed
};
static_assert(sizeof(strided_side) == 128);
static_assert(sizeof(view_description) == 3 * cache_line_bytes);

// Those of this process. Not thread-safe: the caller holds its GPU lock.
class view_directory {
  public:
    static constexpr std::uint32_t descriptions = 256;

    explicit view_directory(segment &own) : own_(own) {}
    view_directory(const view_directory &) = delete;
    view_directory &operator=(const view_directory &) = delete;

    // Describes the packed bytes [address, address + len_bytes) of a view for that owner, not null.
    // False: all descriptions are in use, or the segment has no memory for them.
    bool publish(const remote_handle &memory, const strided_side &blocks, std::uint64_t address,
                 std::uint64_t len_bytes, void *owner, remote_handle *named);
    void withdraw(const remote_handle &named);
    // Whose description a peer names. Null: nobody's, or nobody's any more.
    void *owner_of(const remote_handle &named) const;

    // What a peer's handle names. All of it is the peer's word; what is certain is that the blocks
    // lie in `memory`. False: nothing, or nonsense.
    static bool read(const peer &from, const remote_handle &named, remote_handle *memory,
                     strided_side *blocks);

  private:
    // Peers may write what is in the segment, so what is ours stands here.
    struct published {
        std::uint64_t generation = 0; // 0: nothing
        void *owner = nullptr;
    };

    bool carve();

    segment &own_;
    std::uint32_t first_ = 0;
    std::vector<published> published_;
    std::vector<std::uint32_t> free_; // granules
    std::uint64_t generation_ = 0;
    bool carved_ = false;
};

} // namespace gpusm

#endif
