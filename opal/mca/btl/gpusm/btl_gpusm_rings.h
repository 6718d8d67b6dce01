// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_rings.h: rings of streams whose pieces lie in memory of a device of this process.
#ifndef BTL_GPUSM_RINGS_H
#define BTL_GPUSM_RINGS_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/btl/gpusm/btl_gpusm_gpu.h"
#include "opal/mca/common/gpusm/protocol/stream.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace gpusm {

// The rings on each device share staging_device_bytes. Under the GPU lock.
class device_rings {
  public:
    // Null: there is none, and none can be made now.
    stream_pool *pool_on(gpu_side &side, device &on);
    // For stream_services.
    status make(gpu_side &side, const stream_pool &pool, std::size_t bytes, std::uint64_t *slots,
                stream_memory *memory);
    void name(const stream_pool &pool, std::uint64_t slots, stream_memory *memory) const;
    // At the end: nobody uses them any more.
    void free(gpu_side &side);

  private:
    struct ring {
        std::uint64_t slots;
        std::size_t len_bytes;
        exported *entry; // referenced
        remote_handle handle;
    };
    struct on_device {
        device *on;
        stream_pool pool;
        reach memory; // for a ring, that peers can map
        std::vector<ring> rings;
    };

    static status export_ring(gpu_side &side, ring *made);
    static bool are_exported(gpu_side &side, on_device *all);
    static void note_failure(on_device *all, status why);

    std::deque<on_device> devices_; // by device::index
};

} // namespace gpusm

#endif
