// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shared_memory.h: memory of each kind as its owner has it, and as another process opens it.
#ifndef GPUSM_INFO_SHARED_MEMORY_H
#define GPUSM_INFO_SHARED_MEMORY_H

#include "tools/gpusm_info/child.h"
#include "tools/gpusm_info/driver.h"
#include "tools/gpusm_info/wire.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace gpusm::info {

// Where a list of calls has failed that found other bytes than were written.
inline constexpr const char *reading_failed = "reading it";

// Given back in the opposite order.
class cleanup {
  public:
    ~cleanup();
    void add(std::function<void()> what) { all_.push_back(std::move(what)); }

  private:
    std::vector<std::function<void()>> all_;
};

// Memory of `kind` that device `device` can read and write; in the owner made and exported, in the
// peer opened. Every call is made in that device's context.
class shared_memory {
  public:
    shared_memory(const driver_table &driver, share_kind kind, int device)
        : driver_(driver), kind_(kind), device_(device)
    {
    }
    shared_memory(const shared_memory &) = delete;
    shared_memory &operator=(const shared_memory &) = delete;

    // In the owner: makes it, and fills in what the peer needs to open it. *fd stays ours.
    bool make(calls *work, share_request *out, int *fd);
    // In the peer. Takes the descriptor.
    bool open(calls *work, const share_request &request, descriptor fd);

    // By the device, through memory of its own if it is not the owner.
    bool write(calls *work, std::uint32_t seed);
    // `work` fails where a word is not that of the pattern.
    bool check(calls *work, std::uint32_t seed);

  private:
    bool make_device(calls *work, share_request *out);
    bool make_vmm(calls *work, share_request *out);
    bool make_pool(calls *work, share_request *out);
    bool make_page_locked(calls *work, share_request *out);
    bool open_device(calls *work, const share_request &request);
    bool open_vmm(calls *work, const share_request &request);
    bool open_pool(calls *work, const share_request &request);
    bool register_pages(calls *work, std::size_t len_bytes);
    bool map_vmm(calls *work, CUmemGenericAllocationHandle handle, std::size_t len_bytes);
    bool make_scratch(calls *work);

    const driver_table &driver_;
    const share_kind kind_;
    const int device_;
    CUdeviceptr address_ = 0;
    void *pages_ = nullptr;   // page-locked memory
    CUdeviceptr scratch_ = 0; // on the device; 0: the memory is written and read directly
    descriptor fd_;           // what stands for the memory
    cleanup cleanup_;
};

} // namespace gpusm::info

#endif
