// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/layout.h: how the strided kernel is told of a datatype: from the blocks of one element, as
// loops where they are regular, else as a list.
#ifndef GPUSM_GPU_LAYOUT_H
#define GPUSM_GPU_LAYOUT_H

#include "opal/mca/common/gpusm/gpu/strided_arguments.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gpusm {

// Where the bytes of a datatype's elements lie. All places are from the element's address.
struct datatype_plan {
    strided_layout layout{}; // `blocks` is 0: who copies the list to a device enters its address
    std::vector<strided_block> blocks; // and their guide; empty if the layout is regular
    // Of one element: its lowest byte, and the one behind its highest.
    std::int64_t lowest = 0;
    std::int64_t highest = 0;
    std::uint64_t word_bits = 0; // strided_bits() of it
};

// For several users, the last of whom frees it. Made here and not by a component, because its code
// must still be loaded then.
using shared_plan = std::shared_ptr<const datatype_plan>;
shared_plan share(datatype_plan &&plan);

// Makes a plan of one element's blocks. As long as these are regular it takes no more memory for
// many of them than for a few.
class layout_builder {
  public:
    static constexpr std::size_t usual_most_blocks = std::size_t{1} << 24;

    // Where a list would have more blocks than that there is no plan.
    explicit layout_builder(std::size_t most_blocks = usual_most_blocks) : most_blocks_(most_blocks)
    {
    }

    // The next block in packed order. Lengths of 0 are ignored, and one that begins where the last
    // one ends is added to that. Throws std::bad_alloc.
    void add(std::int64_t offset, std::uint64_t len_bytes);

    // Bytes of all blocks so far.
    std::uint64_t total_bytes() const { return before_ + pending_bytes_; }

    // The plan of elements that follow each other by `extent` bytes; the builder is used up.
    // Nothing when there are no bytes, or too many blocks. Throws std::bad_alloc.
    std::optional<datatype_plan> finish(std::int64_t extent);

  private:
    void take(std::int64_t offset, std::uint64_t len_bytes);
    bool continues(std::int64_t offset);
    std::int64_t next_place() const;
    bool within_group() const;
    void step();
    void list_what_was_regular();
    void list(std::int64_t offset, std::uint64_t before);

    const std::size_t most_blocks_;
    std::int64_t pending_offset_ = 0; // the last block, which may become longer
    std::uint64_t pending_bytes_ = 0; // 0: there is none
    std::uint64_t before_ = 0;        // packed bytes before it

    std::int64_t lowest_ = 0;
    std::int64_t highest_ = 0;

    // Blocks before the pending one are regular: loops, the innermost first. All but the last have
    // their final count; the last one's count is not known yet, and done_ has how many of each
    // loop there have been.
    bool is_regular_ = true;
    std::uint64_t block_bytes_ = 0; // 0: there are no blocks
    std::int64_t first_ = 0;
    std::uint32_t levels_ = 0;
    std::array<strided_level, strided_levels> level_{};
    std::array<std::uint64_t, strided_levels> done_{};

    // They are not.
    std::vector<strided_block> blocks_;
    bool too_many_ = false;
};

} // namespace gpusm

#endif
