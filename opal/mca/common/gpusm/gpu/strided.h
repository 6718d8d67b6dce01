// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/strided.h: what the host works out about copies of memory with gaps
// (gpu/strided_arguments.h).
#ifndef GPUSM_GPU_STRIDED_H
#define GPUSM_GPU_STRIDED_H

#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <cstdint>
#include <vector>

namespace gpusm {

// Makes `list`, of all blocks of an element of layout->element_bytes, one that the layout can be
// given at `blocks`: puts the guide behind it, and enters block_count and guide_shift. The guide
// takes at most half the memory of the blocks, but for its end. Throws std::bad_alloc.
void strided_add_guide(strided_layout *layout, std::vector<strided_block> *list);

// The bits that are set in any place, length or stride inside of an element of that layout. `list`:
// its blocks in host memory, or null when it has none. Takes a look at each of them, so who uses a
// layout again keeps the answer.
std::uint64_t strided_bits(const strided_layout &layout, const strided_block *list);

// The greatest strided_copy::word_bytes for a copy of so many bytes between two sides, of whose
// layouts strided_bits() has said that.
std::uint32_t strided_word_bytes(const strided_side &source, std::uint64_t source_bits,
                                 const strided_side &destination, std::uint64_t destination_bits,
                                 std::uint64_t len_bytes);

// Is that a layout of blocks in loops, and do its first `len_bytes` packed bytes, from an element
// at side.address on, lie in [base, base + memory_bytes)? Whatever the numbers are.
bool strided_stays_in(const strided_side &side, std::uint64_t len_bytes, std::uint64_t base,
                      std::uint64_t memory_bytes);

// May a kernel be launched with it? Its addresses, alignment and lists are taken for right.
bool strided_is_valid(const strided_copy &copy);

// The same copy in the way that costs a kernel least: `begin` lies in the first element, what has
// no gap is contiguous memory, and no length or count of a layout is more than `begin` + len_bytes.
// The copy is a valid one.
strided_copy strided_prepared(const strided_copy &copy);

} // namespace gpusm

#endif
