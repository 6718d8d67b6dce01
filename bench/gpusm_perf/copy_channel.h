// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_channel.h: bare copies that this process makes, by the driver or by memcpy. What messages
// are compared with.
#ifndef GPUSM_PERF_COPY_CHANNEL_H
#define GPUSM_PERF_COPY_CHANNEL_H

#include "bench/common/buffer.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gpusm::bench {

// Device memory to copy from: of this process, or of another by its handle.
struct copy_source {
    CUdeviceptr mine = 0; // 0: open the handle
    CUipcMemHandle handle = {};
};

// One copy, from a source of the channel to its destination; offsets in bytes.
struct copy_piece {
    std::size_t source = 0;
    std::size_t from_offset = 0;
    std::size_t to_offset = 0;
};

// Copies in one direction, all on one stream. A direction has one or two ways to be copied
// (variants); the limit is the better one. Functions that return a string return an empty one, or
// one sentence.
class copy_channel {
  public:
    explicit copy_channel(const device *gpu) : gpu_(gpu) {}
    ~copy_channel();
    copy_channel(const copy_channel &) = delete;
    copy_channel &operator=(const copy_channel &) = delete;

    // From these sources into len_bytes of device memory. Memory of this process stays its owner's.
    std::string open_sources(std::span<const copy_source> sources, std::size_t len_bytes);
    // From one piece of memory to another, both allocated here and len_bytes long; source 0 only.
    std::string open_local(memory_kind from, memory_kind to, std::size_t len_bytes);

    int variants() const { return variants_; }
    // Submits copies of len_bytes each, then one event.
    std::string start(int variant, std::span<const copy_piece> pieces, std::size_t len_bytes);
    std::string finish(); // polls until what start() submitted is done

  private:
    std::string make_stream();

    const device *gpu_;
    int variants_ = 1;
    bool by_driver_ = false;
    bool registered_ = false;           // host_[1] is registered with the driver
    std::vector<CUdeviceptr> imported_; // to be closed
    std::unique_ptr<buffer> near_;      // source or destination on the device
    std::unique_ptr<buffer> host_[2];   // pageable, registered; variant 0 may be the latter
    std::vector<CUdeviceptr> from_[2];  // by variant: the sources
    CUdeviceptr to_[2] = {};            // by variant: the destination
    CUstream stream_ = nullptr;
    CUevent event_ = nullptr;
};

} // namespace gpusm::bench

#endif
