// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_call.h: a collective call that moves data and calculates nothing, as one rank sees it:
// what of its send buffer goes to which rank, and where in its receive buffer what comes from which
// rank is to be.
#ifndef GPUSM_EXCHANGE_CALL_H
#define GPUSM_EXCHANGE_CALL_H

#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace gpusm {

enum class exchange_kind : std::uint32_t { allgather, alltoall, bcast, gather, scatter };

// Who copies a block: its sender, as what is written over a link of NVLink comes faster than what
// is read over it, at any length (an alltoall of 64 MiB between four H200 611 us and 669). But what
// goes out of one rank alone its receivers read (a scatter of 64 MiB between two H200 198 us and
// 223): so the root's kernel has its own block only, as in a gather.
constexpr bool is_copied_by_sender(exchange_kind kind)
{
    return exchange_kind::scatter != kind && exchange_kind::bcast != kind;
}

// The same limit as for reductions.
inline constexpr std::size_t exchange_most_ranks = reduce_most_ranks;

// Of a block. Kernels that write to all other ranks at once are ahead of messages, each rank to
// one other at a time, on four H200 (an alltoall of 16 MiB 166 us and 258, of 64 MiB 611 and 1123;
// an allgather of 16 MiB 165 and 177, of 64 MiB 612 and 619), and on two.
inline constexpr std::uint64_t exchange_most_bytes = std::uint64_t{1} << 30;

// A bcast of which each rank but the root copies a part out of the root's memory and writes it to
// all others, too: so the links of the root carry each byte once, not once for each rank. Not where
// ranks share a device, or an address is no multiple of reduce_vector_bytes, of which the reduce
// kernel would move less at once.
constexpr bool is_sent_in_parts(std::size_t ranks, std::uint64_t bytes)
{
    constexpr std::uint64_t least_bytes = 1 << 20;
    return ranks >= 3 && bytes >= least_bytes;
}

// A bcast that is left to messages, which take less than a meeting and a launch: to two ranks any;
// to more those of which coll/tuned of Open MPI 5.0 sends most from the root to each, as long as
// the root's links carry one to each in little time.
constexpr bool is_sent_directly(std::size_t ranks, std::uint64_t bytes)
{
    constexpr std::uint64_t least_bytes = 8 << 10;
    const std::uint64_t end_bytes = (3 == ranks ? 4 : 1) << 20;
    return ranks <= 2 || (bytes >= least_bytes && bytes < end_bytes);
}

// Bytes that belong together, from the beginning of a buffer.
struct exchange_block {
    std::int64_t offset = 0;
    std::uint64_t bytes = 0; // 0: nothing
};

// By rank.
using exchange_blocks = std::array<exchange_block, exchange_most_ranks>;

inline bool has_any(const exchange_blocks &of)
{
    return std::any_of(of.begin(), of.end(), [](const auto &each) { return 0 != each.bytes; });
}

// From the first byte of any to the last one; nothing if there is none.
inline exchange_block span_of(const exchange_blocks &of)
{
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = std::numeric_limits<std::int64_t>::min();
    for (const exchange_block &each : of) {
        if (0 != each.bytes) {
            first = std::min(first, each.offset);
            end = std::max(end, each.offset + static_cast<std::int64_t>(each.bytes));
        }
    }
    return first < end ? exchange_block{first, static_cast<std::uint64_t>(end - first)}
                       : exchange_block{};
}

struct exchange_call {
    exchange_kind kind; // the same on all ranks, as the root
    std::uint32_t root = 0;
    const void *send = nullptr;
    void *receive = nullptr;
    exchange_blocks sends{}; // both with the own one
    exchange_blocks receives{};
    bool in_place = false; // what is sent lies where others' is received
    bool can_be = true;    // false: this rank's datatypes or buffers are not for it
};

} // namespace gpusm

#endif
