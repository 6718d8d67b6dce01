// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/kernel_module.h: what every kernel of this library has: its code loaded in a context, and
// flags in host memory by which launches tell that they have ended.
#ifndef GPUSM_GPU_KERNEL_MODULE_H
#define GPUSM_GPU_KERNEL_MODULE_H

#include "opal/mca/common/gpusm/gpu/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

// What is embedded in the library by gpu/make-ptx. Constants.
struct kernel_code {
    const char *name;          // for the log
    const std::uint64_t *code; // for the GPUs that nvcc knew; null: built without nvcc
    const char *ptx;
    const char *const *entries; // names of kernels
    std::size_t entry_count;
};

// In one context. Not thread-safe: the caller holds its GPU lock. Everything but finished() is
// called with that context current.
class kernel_module {
  public:
    // `slots`: launches that may be in flight together. `flags`: where their flags are to be, from
    // a page of the system on, in pages that the driver has not been told of; the caller's, and
    // stays. Null: in memory of its own.
    kernel_module(const driver_api &driver, const kernel_code &code, std::uint32_t slots,
                  void *flags = nullptr)
        : driver_(driver), code_(code), given_flags_(flags), functions_(code.entry_count),
          launches_(slots)
    {
    }
    kernel_module(const kernel_module &) = delete;
    kernel_module &operator=(const kernel_module &) = delete;
    ~kernel_module() = default; // unload() comes first

    // Loads the embedded code for this GPU, or PTX that the driver compiles, and makes the flags.
    // Waits for kernels that run in the context. False when the driver cannot do it; the reason is
    // logged at info, and nothing is left behind.
    bool load();
    // Gives everything back. No launch may be in flight. A driver that is down is fine. Calls none
    // when the context is gone and with it what was made in it.
    void unload(bool context_lives = true);
    bool loaded() const { return flags_ != nullptr; }

    // A flag is a std::atomic<std::uint32_t> with as much room. It counts the slot's launches that
    // have finished, modulo 2^32.
    static constexpr std::size_t flag_bytes = 64;
    // What it will be when the last launch of that slot has finished.
    std::uint32_t last_value(std::uint32_t slot) const { return launches_[slot]; }
    // The last launch of that slot has copied everything; true before the first one. No driver
    // call. Stays false for ever when the device failed: ask the driver about the stream now and
    // then. Call only when loaded.
    bool finished(std::uint32_t slot) const
    {
        return flags_[slot].done.load(std::memory_order_acquire) == launches_[slot];
    }

  protected:
    std::uint32_t slots() const { return static_cast<std::uint32_t>(launches_.size()); }
    // What the next launch of the slot writes, and where: device address of a uint32_t.
    CUdeviceptr flag_of(std::uint32_t slot) const { return device_flags_ + slot * sizeof(flag); }
    std::uint32_t next_value(std::uint32_t slot) const { return launches_[slot] + 1; }
    // Starts `blocks` blocks of `threads` threads of an entry (index in the code's list), of which
    // the last one writes that value there. `argument`: its only parameter; the driver takes a
    // copy. After an error nothing has been started.
    CUresult launch_entry(std::size_t entry, unsigned blocks, unsigned threads, CUstream stream,
                          std::uint32_t slot, void *argument);

  private:
    // Apart, so that the device's write of one does not take from this processor the line in
    // which it looks for another.
    struct alignas(flag_bytes) flag {
        std::atomic<std::uint32_t> done;
    };
    static_assert(sizeof(flag) == flag_bytes);
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

    bool make_flags();
    void free_flags(void *memory) const;
    bool load_module();
    bool can(const char *what, CUresult result, const char *said = "") const;

    const driver_api &driver_;
    const kernel_code &code_;
    void *const given_flags_;
    CUmodule module_ = nullptr;
    std::vector<CUfunction> functions_;   // by entry
    flag *flags_ = nullptr;               // by slot, registered
    CUdeviceptr device_flags_ = 0;        // the same for the device
    std::vector<std::uint32_t> launches_; // so far, by slot, modulo 2^32
};

} // namespace gpusm

#endif
