// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/reduction_call.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace gpusm {

bool is_written_by_others(const reduction_call &call, std::size_t rank)
{
    return reduction_kind::allreduce == call.kind ||
           (reduction_kind::reduce == call.kind && call.root == rank);
}

bool is_written_at_home(const reduction_call &call, std::size_t rank)
{
    return reduction_kind::reduce != call.kind || call.root == rank;
}

std::size_t sources_of(const reduction_call &call, std::size_t rank, std::size_t ranks)
{
    switch (call.kind) {
    case reduction_kind::scan:
        return rank + 1;
    case reduction_kind::exscan:
        return rank;
    default:
        return ranks;
    }
}

reduction_part part_of(const reduction_call &call, std::size_t rank, std::size_t ranks)
{
    switch (call.kind) {
    case reduction_kind::reduce_scatter: {
        if (!call.has_parts) {
            const std::uint64_t each = call.elements / ranks;
            return {rank * each, each, 0};
        }
        const auto first =
            std::accumulate(call.parts.begin(), call.parts.begin() + rank, std::uint64_t{0});
        return {first, call.parts[rank], 0};
    }
    case reduction_kind::scan:
    case reduction_kind::exscan:
        return {0, 0 == sources_of(call, rank, ranks) ? 0 : call.elements, 0};
    default:
        break;
    }
    if (0 == (call.workers >> rank & 1U)) {
        return {};
    }
    const auto workers_before = [&](std::size_t end) {
        return static_cast<std::size_t>(std::popcount(call.workers & ((1U << end) - 1)));
    };
    const std::size_t parts = workers_before(ranks);
    const std::size_t nth_part = workers_before(rank);
    // In whole vectors, so that all parts are as aligned as the buffers.
    const std::uint64_t in_vector = reduce_vector_bytes / element_bytes(call.type);
    const std::uint64_t vectors = (call.elements + in_vector - 1) / in_vector;
    const auto begin_of = [&](std::size_t nth) {
        return std::min(vectors / parts * nth + std::min<std::uint64_t>(nth, vectors % parts),
                        vectors) *
               in_vector;
    };
    const std::uint64_t first = std::min(begin_of(nth_part), call.elements);
    return {first, std::min(begin_of(nth_part + 1), call.elements) - first, first};
}

bool spares_root(const reduction_call &call)
{
    constexpr std::uint64_t least_bytes = 1 << 20;
    return reduction_kind::reduce == call.kind &&
           call.elements * element_bytes(call.type) >= least_bytes;
}

bool receives(const reduction_call &call, std::size_t rank, std::size_t ranks)
{
    return 0 != received_elements(call, rank, ranks);
}

std::uint64_t received_elements(const reduction_call &call, std::size_t rank, std::size_t ranks)
{
    return is_written_by_others(call, rank) ? call.elements
           : is_written_at_home(call, rank) ? part_of(call, rank, ranks).count
                                            : 0;
}

bool can_be_in_place(reduction_kind kind)
{
    return reduction_kind::allreduce == kind || reduction_kind::reduce == kind;
}

bool can_reduce(const reduction_call &call, std::size_t ranks)
{
    return ranks > 1 && ranks <= reduce_most_ranks && call.elements > 0 &&
           is_defined(call.op, call.type);
}

} // namespace gpusm
