// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduction_call.h: a collective reduction, as MPI asks for it, and which rank reads and writes
// what. A rank reduces its part of the elements. `rank`: of `ranks`.
#ifndef GPUSM_REDUCTION_CALL_H
#define GPUSM_REDUCTION_CALL_H

#include "opal/mca/common/gpusm/gpu/reduce_arguments.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpusm {

enum class reduction_kind : std::uint8_t {
    allreduce,
    reduce,         // to one rank
    reduce_scatter, // to each rank its part
    scan,           // of the ranks up to the own
    exscan,         // of the ranks before the own
};

// What MPI was called with. What stands before the buffers is the same on all ranks.
struct reduction_call {
    reduction_kind kind;
    reduce_op op;
    reduce_type type;
    std::uint32_t root = 0;     // of `reduce`
    std::uint64_t elements = 0; // of each rank's input; > 0
    bool has_parts = false;     // of `reduce_scatter`; else all ranks get as many elements
    std::array<std::uint64_t, reduce_most_ranks> parts{}; // how many, by rank
    const void *input = nullptr;
    void *receive = nullptr; // null where nothing is received
    bool in_place = false;   // the input is in the receive buffer
    // Of `allreduce` and `reduce`, the ranks that reduce, a bit for each. Kernels of processes that
    // share a device run one after the other, so one of them launches for all.
    std::uint32_t workers = ~std::uint32_t{0};
};

// The part of the elements that a rank reduces, and where its result goes, in elements from the
// beginning of the receive buffer.
struct reduction_part {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t to = 0;
};
reduction_part part_of(const reduction_call &call, std::size_t rank, std::size_t ranks);

// Can such a call be carried out at all? The same answer on all ranks, whatever their buffers are.
bool can_reduce(const reduction_call &call, std::size_t ranks);

// Others write their parts of the result into that rank's buffer.
bool is_written_by_others(const reduction_call &call, std::size_t rank);
// The rank writes its part of the result into its own buffer.
bool is_written_at_home(const reduction_call &call, std::size_t rank);
// One of these: MPI says of other receive buffers that they are not significant.
bool receives(const reduction_call &call, std::size_t rank, std::size_t ranks);
// How many elements.
std::uint64_t received_elements(const reduction_call &call, std::size_t rank, std::size_t ranks);
// A reduction to one rank of which nobody on that one's device reduces a part, if ranks are on two
// other devices: its links have the whole result to carry.
bool spares_root(const reduction_call &call);
// With input in place: no rank writes where another one still reads.
bool can_be_in_place(reduction_kind kind);
// It reads the ranks before that one.
std::size_t sources_of(const reduction_call &call, std::size_t rank, std::size_t ranks);

} // namespace gpusm

#endif
