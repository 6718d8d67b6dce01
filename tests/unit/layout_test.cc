// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// layout_test.cc: plans of datatypes against plain lists of their blocks.
#include "opal/mca/common/gpusm/gpu/layout.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <ostream>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

struct block {
    std::int64_t offset;
    std::uint64_t len_bytes;
    bool operator==(const block &) const = default;
};
using blocks = std::vector<block>;

void PrintTo(const block &shown, std::ostream *out)
{
    *out << shown.len_bytes << " at " << shown.offset;
}

constexpr std::int64_t extent = 1 << 20;

std::optional<datatype_plan> plan_of(const blocks &fed)
{
    layout_builder builder;
    for (const block &each : fed) {
        builder.add(each.offset, each.len_bytes);
    }
    return builder.finish(extent);
}

// The longest words in which all blocks can be copied.
std::uint32_t word_of(const datatype_plan &plan)
{
    return 1U << std::countr_zero(plan.word_bits | strided_most_word);
}

blocks merged(const blocks &fed)
{
    blocks all;
    for (const block &each : fed) {
        if (0 == each.len_bytes) {
            continue;
        }
        if (!all.empty() &&
            all.back().offset + static_cast<std::int64_t>(all.back().len_bytes) == each.offset) {
            all.back().len_bytes += each.len_bytes;
        } else {
            all.push_back(each);
        }
    }
    return all;
}

blocks repeated(const blocks &part, std::size_t times, std::int64_t stride)
{
    blocks all;
    for (std::size_t i = 0; i < times; ++i) {
        for (const block &each : part) {
            all.push_back({each.offset + static_cast<std::int64_t>(i) * stride, each.len_bytes});
        }
    }
    return all;
}

blocks expanded(const datatype_plan &plan)
{
    const strided_layout &layout = plan.layout;
    blocks all;
    if (0 == layout.block_count) {
        all.push_back({layout.first, layout.block_bytes});
        for (std::uint32_t i = 0; i < layout.levels; ++i) {
            all = repeated(all, layout.level[i].count, layout.level[i].stride);
        }
        return all;
    }
    for (std::size_t i = 0; i < layout.block_count; ++i) {
        const std::uint64_t end =
            i + 1 < layout.block_count ? plan.blocks[i + 1].before : layout.element_bytes;
        all.push_back({plan.blocks[i].offset, end - plan.blocks[i].before});
    }
    return all;
}

bool divides(std::uint64_t word, const blocks &all)
{
    return std::all_of(all.begin(), all.end(), [&](const block &each) {
        return 0 == each.offset % static_cast<std::int64_t>(word) && 0 == each.len_bytes % word;
    });
}

// Everything that a plan says, against the list it was made of.
void expect_right(const datatype_plan &plan, const blocks &fed)
{
    const blocks all = merged(fed);
    EXPECT_EQ(all, expanded(plan));
    std::uint64_t bytes = 0;
    std::int64_t lowest = all.front().offset;
    std::int64_t highest = lowest;
    for (const block &each : all) {
        bytes += each.len_bytes;
        lowest = std::min(lowest, each.offset);
        highest = std::max(highest, each.offset + static_cast<std::int64_t>(each.len_bytes));
    }
    EXPECT_EQ(bytes, plan.layout.element_bytes);
    EXPECT_EQ(extent, plan.layout.extent);
    EXPECT_EQ(0u, plan.layout.blocks);
    EXPECT_EQ(lowest, plan.lowest);
    EXPECT_EQ(highest, plan.highest);
    EXPECT_EQ(plan.blocks.empty(), 0 == plan.layout.block_count);
    EXPECT_TRUE(divides(word_of(plan), all));
    EXPECT_TRUE(strided_most_word == word_of(plan) || !divides(2 * word_of(plan), all));
    // Each block is found, as the copies find it.
    strided_side side{0, 0, plan.layout};
    if (!plan.blocks.empty()) {
        side.layout.blocks = reinterpret_cast<std::uint64_t>(plan.blocks.data());
    }
    std::uint64_t before = 0;
    for (const block &each : all) {
        const auto offset = static_cast<std::uint64_t>(each.offset);
        EXPECT_EQ(offset, strided_address(side, before));
        before += each.len_bytes;
        EXPECT_EQ(offset + each.len_bytes - 1, strided_address(side, before - 1));
    }
    if (0 == plan.layout.block_count) {
        std::uint64_t times = 1;
        for (std::uint32_t i = 0; i < plan.layout.levels; ++i) {
            EXPECT_GE(plan.layout.level[i].count, 2u) << "a loop that is none";
            times *= plan.layout.level[i].count;
        }
        EXPECT_EQ(all.size(), times);
    }
}

// Regular with so many loops, or, with -1, a list.
void expect_levels(int levels, const blocks &fed)
{
    const auto plan = plan_of(fed);
    ASSERT_TRUE(plan.has_value());
    expect_right(*plan, fed);
    EXPECT_EQ(levels < 0, 0 != plan->layout.block_count);
    EXPECT_EQ(levels < 0 ? 0u : static_cast<std::uint32_t>(levels), plan->layout.levels);
}

TEST(Layout, NoBytesNoPlan)
{
    EXPECT_FALSE(plan_of({}).has_value());
    EXPECT_FALSE(plan_of({{0, 0}, {100, 0}}).has_value());
}

TEST(Layout, OneBlock)
{
    expect_levels(0, {{0, 8}});
    expect_levels(0, {{-48, 24}});
    expect_levels(0, {{8, 8}, {16, 0}, {16, 8}, {24, 4}});
}

TEST(Layout, OneLoop)
{
    expect_levels(1, repeated({{0, 8}}, 2, 24));
    expect_levels(1, repeated({{0, 8}}, 1000, 24));
    expect_levels(1, repeated({{16, 4}}, 20, -40));
    expect_levels(1, repeated({{-96, 12}}, 7, 100));
    expect_levels(1, repeated({{64, 16}, {0, 0}, {80, 16}}, 9, 48)); // with pieces that touch
}

TEST(Layout, LoopsInLoops)
{
    const blocks row = repeated({{8, 16}}, 3, 32);
    expect_levels(2, repeated(row, 5, 1000));
    expect_levels(3, repeated(repeated(row, 5, 1000), 2, 100000));
    expect_levels(4, repeated(repeated(repeated(row, 5, 1000), 2, 100000), 4, -3000000));
    expect_levels(-1, repeated(repeated(repeated(repeated(row, 5, 1000), 2, 100000), 4, -3000000),
                               3, 1 << 30));
    // The outer loop goes on where the inner one ends, or back into its gaps.
    expect_levels(1, repeated(row, 5, 96));
    expect_levels(2, repeated(row, 2, 16));
    expect_levels(2, repeated(row, 5, 128));
}

TEST(Layout, Irregular)
{
    expect_levels(-1, {{0, 4}, {8, 8}});                            // a struct
    expect_levels(0, {{0, 4}, {4, 8}});                             // one without gaps
    expect_levels(-1, {{36, 4}, {4, 10}, {80, 2}});                 // indexed
    expect_levels(-1, {{0, 4}, {8, 4}, {20, 4}, {28, 4}, {40, 4}}); // a group lacks its second
    expect_levels(-1, {{0, 4}, {8, 4}, {20, 4}, {29, 4}});          // one is elsewhere
    expect_levels(-1, {{0, 4}, {8, 4}, {16, 4}, {20, 4}});          // the last is longer
    blocks all = repeated(repeated({{0, 8}}, 10, 16), 10, 1000);
    all.push_back({50000, 8});
    expect_levels(-1, all);
    // The elements of a vector whose ends touch: each end is a block with the next beginning.
    expect_levels(-1, repeated(repeated({{0, 8}}, 2, 16), 10, 24));
}

TEST(Layout, Words)
{
    EXPECT_EQ(16u, word_of(*plan_of({{-32, 16}, {16, 48}})));
    EXPECT_EQ(4u, word_of(*plan_of({{-12, 16}, {16, 48}})));
    EXPECT_EQ(2u, word_of(*plan_of(repeated({{0, 16}}, 4, 18))));
}

TEST(Layout, ManyRegularBlocksAreNotListed)
{
    constexpr std::int64_t count = 1000000;
    layout_builder builder(0); // of a list
    for (std::int64_t i = 0; i < count; ++i) {
        builder.add(16 * i, 8);
    }
    const auto plan = builder.finish(16 * count);
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(static_cast<std::uint64_t>(8 * count), plan->layout.element_bytes);
    EXPECT_EQ(1u, plan->layout.levels);
    EXPECT_EQ(static_cast<std::uint64_t>(count), plan->layout.level[0].count);
}

TEST(Layout, ListsHaveAnEnd)
{
    constexpr std::size_t most = 1000;
    const auto list_of = [](std::size_t regular) {
        layout_builder builder(most);
        for (std::size_t i = 0; i < regular; ++i) {
            builder.add(16 * static_cast<std::int64_t>(i), 8);
        }
        builder.add(-100, 1);
        return builder.finish(extent);
    };
    EXPECT_FALSE(list_of(most).has_value());
    const auto longest = list_of(most - 1);
    ASSERT_TRUE(longest.has_value());
    EXPECT_EQ(most, longest->layout.block_count);
}

TEST(Layout, RandomLists)
{
    std::mt19937_64 random(20);
    const auto draw = [&](std::int64_t least, std::int64_t most) {
        return least +
               static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
    };
    int regular = 0;
    int lists = 0;
    for (int round = 0; round < 3000; ++round) {
        SCOPED_TRACE(round);
        const std::int64_t unit = std::int64_t{1} << draw(0, 5);
        blocks fed;
        for (std::int64_t i = draw(1, 3); i > 0; --i) {
            fed.push_back({unit * draw(-8, 8), static_cast<std::uint64_t>(unit * draw(0, 3))});
        }
        for (std::int64_t i = draw(0, 4); i > 0; --i) {
            fed = repeated(fed, static_cast<std::size_t>(draw(1, 5)), unit * draw(-40, 40));
            switch (draw(0, 9)) { // sometimes not quite regular
            case 0:
                fed[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(fed.size()) - 1))]
                    .offset += unit;
                break;
            case 1:
                fed.pop_back();
                break;
            case 2:
                fed.push_back({draw(-1000, 1000), static_cast<std::uint64_t>(draw(1, 40))});
                break;
            default:
                break;
            }
            if (fed.empty()) {
                break;
            }
        }
        const auto plan = plan_of(fed);
        ASSERT_EQ(!merged(fed).empty(), plan.has_value());
        if (plan.has_value()) {
            expect_right(*plan, fed);
            ++(plan->blocks.empty() ? regular : lists);
        }
        if (HasFailure()) {
            return;
        }
    }
    EXPECT_GT(regular, 300);
    EXPECT_GT(lists, 300);
}

} // namespace
