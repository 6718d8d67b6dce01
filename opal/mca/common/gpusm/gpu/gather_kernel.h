// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/gather_kernel.h: many copies with one launch. A copy kernel reads peers' memory through the
// links with the device's own loads and stores; for 64 messages of 8 bytes to 64 KiB one launch
// takes a tenth of the time of 64 driver copies (docs/performance.md).
#ifndef GPUSM_GPU_GATHER_KERNEL_H
#define GPUSM_GPU_GATHER_KERNEL_H

#include "opal/mca/common/gpusm/gpu/driver.h"
#include "opal/mca/common/gpusm/gpu/gather_arguments.h"

#include <atomic>
#include <cstdint>

namespace gpusm {

// The gather kernel in one context. Not thread-safe: the caller holds its GPU lock. Everything
// but finished() is called with that context current.
class gather_kernel {
  public:
    // `blocks`: the most thread blocks that one launch may have (of gather_threads each); at
    // least 1.
    gather_kernel(const driver_api &driver, unsigned blocks) : driver_(driver), blocks_(blocks) {}
    gather_kernel(const gather_kernel &) = delete;
    gather_kernel &operator=(const gather_kernel &) = delete;
    ~gather_kernel() = default; // unload() comes first

    // Loads the embedded code for this GPU, or PTX that the driver compiles, and makes the flags.
    // Waits for kernels that run in the context. False when the driver cannot do it; the reason is
    // logged at info, and nothing is left behind.
    bool load();
    // Gives everything back. No launch may be in flight. A driver that is down is fine. Calls none
    // when the context is gone and with it what was made in it.
    void unload(bool context_lives = true);
    bool loaded() const { return flags_ != nullptr; }

    // Starts `count` copies (1 ... gather_most_copies, each of 1 ... gather_most_len bytes,
    // first_piece of no meaning) on `stream`; any order among themselves. `slot` (< gather_slots)
    // must have no launch in flight. After an error nothing has been started;
    // CUDA_ERROR_INVALID_VALUE when the arguments are out of these ranges or nothing is loaded.
    CUresult launch(CUstream stream, std::uint32_t slot, const gather_copy *copies,
                    std::uint32_t count);

    // The last launch of that slot has copied everything; true before the first one. No driver
    // call. Stays false for ever when the device failed: ask the driver about the stream now and
    // then. Call only when loaded.
    bool finished(std::uint32_t slot) const
    {
        return flags_[slot].done.load(std::memory_order_acquire) == launches_[slot];
    }

  private:
    // Apart, so that the device's write of one does not take from this processor the line in
    // which it looks for another.
    struct alignas(64) flag {
        std::atomic<std::uint32_t> done; // launches that have finished, modulo 2^32
    };
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

    bool make_flags();
    bool load_module();
    bool can(const char *what, CUresult result, const char *said = "") const;

    const driver_api &driver_;
    const unsigned blocks_;
    CUmodule module_ = nullptr;
    CUfunction few_ = nullptr;
    CUfunction most_ = nullptr;
    flag *flags_ = nullptr;                     // gather_slots of them, registered
    CUdeviceptr device_flags_ = 0;              // the same for the device
    std::uint32_t launches_[gather_slots] = {}; // so far, by slot, modulo 2^32
    // What a launch hands over: room made once. The driver takes a copy.
    gather_arguments<gather_most_copies> arguments_ = {};
};

} // namespace gpusm

#endif
