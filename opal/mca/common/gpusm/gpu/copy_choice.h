// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_choice.h: which way copies take, and when those that wait go out. The figures behind
// the constants are printed by bench/copy_bench; docs/performance.md has a table of them.
#ifndef GPUSM_GPU_COPY_CHOICE_H
#define GPUSM_GPU_COPY_CHOICE_H

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpusm {

enum class copy_way : std::uint8_t {
    single, // one cuMemcpyAsync each: the least latency, and the most bandwidth of one large copy
    batch,  // one cuMemcpyBatchAsync: many large copies
    kernel, // one launch of the gather kernel: many small and middle-sized copies
    count
};

// Constants, but for kernel_blocks and batches, which are parameters; tests have their own.
struct copy_limits {
    std::uint32_t depth = 8;               // submissions in flight per device
    std::uint32_t batch_copies = 32;       // copies in one submission
    std::size_t batch_bytes = 32U << 20;   // a submission stops gathering beyond this
    std::size_t kernel_bytes = 512U << 10; // a longer copy is never one for the kernel
    std::size_t early_bytes = 2U << 20;    // see is_due
    std::uint32_t streams = 2;             // that the driver's copies take turns on
    std::uint32_t kernel_blocks = 32;      // the kernel's grid; 0: no kernel
    bool batches = true;                   // cuMemcpyBatchAsync may be used
    // Through NVLink the largest submission takes a kernel well under that. What takes longer waits
    // for places that kernels of the program have.
    std::chrono::milliseconds late{1};
};

// Copies that wait or are in flight together.
struct copy_load {
    std::uint32_t copies = 0;
    std::size_t bytes = 0;

    void add(const copy_load &other)
    {
        copies += other.copies;
        bytes += other.bytes;
    }
    void take(const copy_load &other)
    {
        copies -= other.copies;
        bytes -= other.bytes;
    }
};

// The way for `copies` copies none of which is longer than `longest`, where the device has these.
// `behind_large`: large copies are in flight, behind which a single one would wait in their stream.
inline copy_way choose_way(std::uint32_t copies, std::size_t longest, const copy_limits &limits,
                           bool has_kernel, bool has_batch, bool behind_large = false)
{
    const bool by_kernel = has_kernel && longest <= limits.kernel_bytes;
    if (copies < 2) {
        return by_kernel && behind_large ? copy_way::kernel : copy_way::single;
    }
    return by_kernel ? copy_way::kernel : has_batch ? copy_way::batch : copy_way::single;
}

// While the caller still hands in copies, that many times early_bytes go out before it has ended.
constexpr std::size_t held_factor = 4;

// Submissions of copies between device and host memory that are in flight together before further
// ones gather: while one is on the bus the next one is begun. What they bring is waited for by a
// processor, and takes longer than between devices.
constexpr std::uint32_t bus_submissions = 2;

enum class copy_pace : std::uint8_t {
    usual,
    held,    // more are expected at any moment, so that few wait on an idle device, too
    hurried, // they go out as if nothing were in flight
    patient, // nobody waits for them yet: until patient_copies wait they gather
};

inline constexpr std::uint32_t patient_copies = 16;

// Are the copies that wait to go out now? At once when nothing is in flight: a lone message waits
// for nothing. While something is, they gather: for small copies the processor's time for a
// submission is what counts, and the longer they gather the fewer submissions there are. For large
// ones the device must not run dry, so they follow as soon as they are as many bytes as the
// device still has before it; the size of submissions doubles until it reaches batch_bytes.
inline bool is_due(const copy_load &waiting, const copy_load &in_flight,
                   std::uint32_t submissions_in_flight, const copy_limits &limits,
                   copy_pace pace = copy_pace::usual)
{
    if (0 == waiting.copies || submissions_in_flight >= limits.depth) {
        return false;
    }
    if (waiting.copies >= limits.batch_copies || copy_pace::hurried == pace) {
        return true;
    }
    if (copy_pace::patient == pace) {
        return waiting.copies >= patient_copies;
    }
    const bool held = copy_pace::held == pace;
    if (0 == in_flight.copies && !held) {
        return true;
    }
    const std::size_t early = held ? held_factor * limits.early_bytes : limits.early_bytes;
    return waiting.bytes >= std::min(std::max(early, in_flight.bytes), limits.batch_bytes);
}

} // namespace gpusm

#endif
