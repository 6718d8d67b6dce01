// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/layout.h"

#include "opal/mca/common/gpusm/gpu/strided.h"

#include <algorithm>
#include <utility>

namespace gpusm {

void layout_builder::add(std::int64_t offset, std::uint64_t len_bytes)
{
    if (0 == len_bytes) {
        return;
    }
    const std::int64_t end = offset + static_cast<std::int64_t>(len_bytes);
    const bool is_first = 0 == total_bytes();
    lowest_ = is_first ? offset : std::min(lowest_, offset);
    highest_ = is_first ? end : std::max(highest_, end);
    if (0 != pending_bytes_) {
        if (pending_offset_ + static_cast<std::int64_t>(pending_bytes_) == offset) {
            pending_bytes_ += len_bytes;
            return;
        }
        take(pending_offset_, pending_bytes_);
    }
    before_ += pending_bytes_;
    pending_offset_ = offset;
    pending_bytes_ = len_bytes;
}

std::optional<datatype_plan> layout_builder::finish(std::int64_t extent)
{
    if (0 == pending_bytes_) {
        return std::nullopt;
    }
    take(pending_offset_, pending_bytes_);
    const std::uint64_t all_bytes = total_bytes();
    if (is_regular_ && within_group()) {
        list_what_was_regular();
    }
    if (too_many_) {
        return std::nullopt;
    }
    datatype_plan plan;
    plan.layout.element_bytes = all_bytes;
    plan.layout.extent = extent;
    plan.lowest = lowest_;
    plan.highest = highest_;
    if (is_regular_) {
        plan.layout.levels = static_cast<std::uint16_t>(levels_);
        plan.layout.block_bytes = block_bytes_;
        plan.layout.first = first_;
        for (std::uint32_t i = 0; i < levels_; ++i) {
            plan.layout.level[i] = {i + 1 < levels_ ? level_[i].count : done_[i], level_[i].stride};
        }
        plan.word_bits = strided_bits(plan.layout, nullptr);
        return plan;
    }
    plan.blocks = std::move(blocks_);
    strided_add_guide(&plan.layout, &plan.blocks);
    plan.word_bits = strided_bits(plan.layout, plan.blocks.data());
    return plan;
}

// A block that does not become longer; before_ is of the bytes before it.
void layout_builder::take(std::int64_t offset, std::uint64_t len_bytes)
{
    if (is_regular_) {
        if (0 == block_bytes_) {
            first_ = offset;
            block_bytes_ = len_bytes;
            return;
        }
        if (block_bytes_ == len_bytes && continues(offset)) {
            return;
        }
        list_what_was_regular();
    }
    list(offset, before_);
}

// Whether the loops go on with a block there; then they have.
bool layout_builder::continues(std::int64_t offset)
{
    if (0 == levels_ || offset != next_place()) {
        // Between groups all that there was can be the first group of one more loop.
        if (within_group() || strided_levels == levels_) {
            return false;
        }
        if (0 != levels_) {
            level_[levels_ - 1].count = std::exchange(done_[levels_ - 1], 0);
        }
        level_[levels_] = {0, offset - first_};
        done_[levels_] = 1;
        ++levels_;
    }
    step();
    return true;
}

std::int64_t layout_builder::next_place() const
{
    std::int64_t place = first_;
    for (std::uint32_t i = 0; i < levels_; ++i) {
        place += static_cast<std::int64_t>(done_[i]) * level_[i].stride;
    }
    return place;
}

// The outermost loop is in the middle of a group of the others.
bool layout_builder::within_group() const
{
    return levels_ > 1 && std::any_of(done_.begin(), done_.begin() + (levels_ - 1),
                                      [](std::uint64_t done) { return 0 != done; });
}

void layout_builder::step()
{
    ++done_[0];
    for (std::uint32_t i = 0; i + 1 < levels_ && done_[i] == level_[i].count; ++i) {
        done_[i] = 0;
        ++done_[i + 1];
    }
}

// Turns the loops, as far as they have gone, into a list.
void layout_builder::list_what_was_regular()
{
    const auto ended = std::exchange(done_, {});
    std::uint64_t before = 0;
    bool is_over = false;
    // Without a loop there is one block.
    for (; !is_over && !too_many_; before += block_bytes_) {
        list(next_place(), before);
        if (0 == levels_) {
            break;
        }
        step();
        is_over = done_ == ended;
    }
    is_regular_ = false;
}

void layout_builder::list(std::int64_t offset, std::uint64_t before)
{
    if (too_many_) {
        return;
    }
    if (most_blocks_ == blocks_.size()) {
        too_many_ = true;
        blocks_ = {};
        return;
    }
    blocks_.push_back({offset, before});
}

shared_plan share(datatype_plan &&plan)
{
    return std::make_shared<const datatype_plan>(std::move(plan));
}

} // namespace gpusm
