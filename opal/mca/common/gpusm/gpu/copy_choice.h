// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_choice.h: when copies that wait go out, and by which executor on which of its streams:
// one function of facts, decide(). The figures behind the constants are printed by
// bench/copy_bench; docs/performance.md has a table of them.
#ifndef GPUSM_GPU_COPY_CHOICE_H
#define GPUSM_GPU_COPY_CHOICE_H

#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpusm {

// Who carries out a submission; gpu/executor.h says what one more needs.
enum class copy_way : std::uint8_t {
    single,  // one cuMemcpyAsync each: the least latency, and the most bandwidth of one large copy
    batch,   // one cuMemcpyBatchAsync: many large copies
    kernel,  // one launch of the gather kernel: many small and middle-sized copies
    strided, // one launch of the strided kernel: copies of memory with gaps
    count
};

// A few of them.
struct copy_ways {
    std::uint8_t bits = 0; // by copy_way

    constexpr bool has(copy_way way) const { return 0 != (bits >> static_cast<unsigned>(way) & 1); }
    constexpr copy_ways with(copy_way way, bool on = true) const
    {
        const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(way));
        return {static_cast<std::uint8_t>(on ? bits | bit : bits & ~bit)};
    }
    constexpr copy_ways without(copy_way way) const { return with(way, false); }
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
    // The same as kernel_bytes within a device, where no link holds the kernel up: windows of 1 to
    // 8 MiB take 0.3 to 0.8 of the time of the driver's copies, of 16 MiB 1.4 (H200).
    std::size_t within_device_bytes = 8U << 20;
};

// The ways that the parameters allow.
inline copy_ways allowed_ways(const copy_limits &limits)
{
    return copy_ways{}
        .with(copy_way::single)
        .with(copy_way::batch, limits.batches)
        .with(copy_way::kernel, limits.kernel_blocks > 0)
        .with(copy_way::strided, limits.kernel_blocks > 0);
}

// Launches take turns on that many streams, so that the next one starts while the last warps of the
// one before still wait for their loads.
inline constexpr std::uint32_t kernel_streams = 2;

// While further copies are expected at any moment, that many times early_bytes go out without them.
inline constexpr std::size_t expecting_factor = 4;

// Submissions for which a processor waits that are in flight together before further ones gather:
// while one is on the bus the next one is begun, as the bus takes longer than a link between
// devices.
inline constexpr std::uint32_t bus_submissions = 2;

// Copies that gather while no processor waits for them yet.
inline constexpr std::uint32_t unawaited_copies = 16;

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

// Copies of a kind gather together and go out in their order; the kinds do not wait for each other.
enum class copy_kind : std::uint8_t {
    small,     // the gather kernel may do it
    large,     // all others
    with_gaps, // for the strided kernel, whatever their size
};

// `reached`: a kernel may touch both buffers. `waits`: for an event.
inline copy_kind kind_of(std::size_t len_bytes, bool reached, bool waits, bool within_device,
                         const copy_limits &limits)
{
    const std::size_t most = within_device ? limits.within_device_bytes : limits.kernel_bytes;
    return reached && !waits && len_bytes > 0 && len_bytes <= most ? copy_kind::small
                                                                   : copy_kind::large;
}

// As many copies of that kind as one submission may have.
inline std::uint32_t most_copies(copy_kind kind, const copy_limits &limits)
{
    return copy_kind::with_gaps == kind
               ? std::min<std::uint32_t>(limits.batch_copies, strided_most_copies)
               : limits.batch_copies;
}

// About the copies of one kind on one device.
struct kind_facts {
    copy_load waiting;
    std::uint32_t for_processor = 0;  // of those: copies for whose end a processor waits
    std::size_t first_bytes = 0;      // of the oldest one that waits
    bool first_for_processor = false; // likewise
    copy_load in_flight;
    std::uint32_t submissions = 0; // in flight
};

// About one device, and about what the callers of its engine do.
struct copy_facts {
    kind_facts small;
    kind_facts large;
    kind_facts with_gaps;
    bool large_is_next = false;  // where small and large ones are due; they take turns
    bool gaps_were_last = false; // then others come first that are due, too
    // The executors that can be told something at the moment, as far as is known.
    copy_ways usable;
    std::uint32_t driver_streams = 1; // that the driver's copies take turns on
    std::uint32_t driver_turn = 0;    // stream of the last ones
    std::uint32_t kernel_turn = 0;    // stream of the last launch of the gather kernel
    std::uint32_t strided_turn = 0;   // likewise of the strided kernel
    bool more_expected = false;       // further copies at any moment
    bool processor_has_work = false;  // with what has been copied, and waits for nothing else yet

    std::uint32_t submissions() const
    {
        return small.submissions + large.submissions + with_gaps.submissions;
    }
    const kind_facts &of(copy_kind kind) const
    {
        return copy_kind::small == kind ? small : copy_kind::large == kind ? large : with_gaps;
    }
    kind_facts &of(copy_kind kind)
    {
        return copy_kind::small == kind ? small : copy_kind::large == kind ? large : with_gaps;
    }
};

// Are the copies of that kind to go out now? At once when nothing is in flight: a lone message
// waits for nothing. While something is, they gather: for small copies, and those with gaps, the
// processor's time for a submission is what counts, and the longer they gather the fewer
// submissions there are. For large ones the device must not run dry, so they follow as soon as they
// are as many bytes as the device still has before it; the size of submissions doubles until it
// reaches batch_bytes.
inline bool is_due(const copy_facts &facts, copy_kind kind, const copy_limits &limits)
{
    const kind_facts &of = facts.of(kind);
    const bool is_large = copy_kind::large == kind;
    if (0 == of.waiting.copies || facts.submissions() >= limits.depth) {
        return false;
    }
    // Large ones may take long, so they leave a place to the small ones.
    if (is_large && limits.depth > 1 && of.submissions + 1 >= limits.depth) {
        return false;
    }
    if (of.waiting.copies >= most_copies(kind, limits)) {
        return true;
    }
    // Each submission costs the processor microseconds, which it needs for what it works on.
    if (is_large && facts.processor_has_work && of.for_processor == of.waiting.copies) {
        return of.waiting.copies >= unawaited_copies;
    }
    const bool bus_is_free = of.first_for_processor && of.submissions < bus_submissions;
    if (!facts.more_expected && (0 == of.in_flight.copies || bus_is_free)) {
        return true;
    }
    const std::size_t early = limits.early_bytes * (facts.more_expected ? expecting_factor : 1);
    return of.waiting.bytes >= std::min(std::max(early, of.in_flight.bytes), limits.batch_bytes);
}

// Who carries out a submission of `copies` copies of that kind. `behind_large`: large ones are in
// flight, behind which a single one would wait in their stream.
inline copy_way way_for(std::uint32_t copies, copy_kind kind, bool behind_large, copy_ways usable)
{
    if (copy_kind::with_gaps == kind) {
        return copy_way::strided; // the only one there is
    }
    const bool by_kernel = copy_kind::small == kind && usable.has(copy_way::kernel);
    if (copies < 2) {
        return by_kernel && behind_large ? copy_way::kernel : copy_way::single;
    }
    return by_kernel                     ? copy_way::kernel
           : usable.has(copy_way::batch) ? copy_way::batch
                                         : copy_way::single;
}

// On which of its streams. A lone submission of the driver's takes the first one, which is the
// device's own. Copies of one submission follow each other with gaps, which the others' fill.
inline std::uint32_t turn_of(copy_way way, const copy_facts &facts)
{
    return copy_way::kernel == way             ? (facts.kernel_turn + 1) % kernel_streams
           : copy_way::strided == way          ? (facts.strided_turn + 1) % kernel_streams
           : 0 == facts.large.in_flight.copies ? 0
                                               : (facts.driver_turn + 1) % facts.driver_streams;
}

struct copy_decision {
    bool goes = false;                 // false: all wait, and the rest has no meaning
    copy_kind kind = copy_kind::small; // whose oldest copies go out, as many as fit a submission
    copy_way way = copy_way::single;
    std::uint32_t turn = 0; // of the way's streams

    bool operator==(const copy_decision &) const = default;
};

// By whom so many copies of that kind, which are due, go out. Where an executor then refuses, the
// same facts without it give the next one. Single copies, which need nothing, are always usable.
inline copy_decision decide_way(copy_kind kind, std::uint32_t copies, const copy_facts &facts)
{
    const copy_way way = way_for(copies, kind, facts.large.in_flight.copies > 0, facts.usable);
    return {true, kind, way, turn_of(way, facts)};
}

// What is to be done next on that device.
inline copy_decision decide(const copy_facts &facts, const copy_limits &limits)
{
    // By turns, or endless copies of one kind would keep the others waiting for ever.
    const bool gaps_are_due = is_due(facts, copy_kind::with_gaps, limits);
    copy_kind kind = copy_kind::large;
    if (gaps_are_due && !facts.gaps_were_last) {
        kind = copy_kind::with_gaps;
    } else if (facts.large_is_next && is_due(facts, copy_kind::large, limits)) {
        kind = copy_kind::large;
    } else if (is_due(facts, copy_kind::small, limits)) {
        kind = copy_kind::small;
    } else if (is_due(facts, copy_kind::large, limits)) {
        kind = copy_kind::large;
    } else if (gaps_are_due) {
        kind = copy_kind::with_gaps;
    } else {
        return {};
    }
    const kind_facts &of = facts.of(kind);
    // A submission ends with the copy that fills it, which the first one may do.
    const bool is_lone = limits.batch_copies < 2 || of.first_bytes >= limits.batch_bytes;
    return decide_way(kind, is_lone ? 1 : of.waiting.copies, facts);
}

} // namespace gpusm

#endif
