// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// peer_pages.h: pages of peers' segments that are registered with the driver, so that devices of
// this process read and write them without a processor.
#ifndef GPUSM_PEER_PAGES_H
#define GPUSM_PEER_PAGES_H

#include "opal/mca/common/gpusm/base/reach.h"
#include "opal/mca/common/gpusm/gpu/device.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpusm {

class gpu_side;

// Not thread-safe: the caller holds the GPU lock.
class peer_pages {
  public:
    explicit peer_pages(gpu_side &side) : side_(side) {}
    ~peer_pages();
    peer_pages(const peer_pages &) = delete;
    peer_pages &operator=(const peer_pages &) = delete;

    // The pages of the system that these bytes lie in are registered, which is done if it is not.
    // Other memory that is registered must not lie in them. Where the driver refuses it is asked
    // again after a while.
    bool registers(std::uint64_t address, std::size_t bytes, device &in);
    // Those that begin in that memory, which is unmapped next, are not any more. False: some still
    // are, as kernels run for which that would have to wait.
    bool forget(const unsigned char *begin, std::size_t len_bytes);

  private:
    void unregister(std::uint64_t pages, const device &in) const;

    gpu_side &side_;
    std::vector<std::pair<std::uint64_t, device *>> registered_; // and in whose context
    reach_table<std::uint64_t> refused_;
};

} // namespace gpusm

#endif
