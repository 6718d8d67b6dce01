// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_choice_test.cc: which way copies take, and when they go out, as tables.
#include "opal/mca/btl/gpusm/gpu/copy_choice.h"

#include <cstdint>
#include <initializer_list>

#include <gtest/gtest.h>

namespace {

using gpusm::choose_way;
using gpusm::copy_limits;
using gpusm::copy_load;
using gpusm::copy_pace;
using gpusm::copy_way;
using gpusm::held_factor;
using gpusm::is_due;

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

TEST(CopyChoice, TheWayDependsOnNumberLengthAndWhatTheDeviceHas)
{
    const copy_limits limits{.kernel_bytes = 2 * mib};
    struct {
        std::uint32_t copies;
        std::size_t longest;
        bool has_kernel;
        bool has_batch;
        copy_way way;
        bool behind_large = false;
    } const table[] = {
        // A lone copy has the least latency by the driver, whatever its length.
        {1, 1, true, true, copy_way::single},
        {1, 2 * mib, true, true, copy_way::single},
        {1, 64 * mib, true, true, copy_way::single},
        {1, 8, false, false, copy_way::single},
        // Several short ones.
        {2, 1, true, true, copy_way::kernel},
        {2, 1, true, false, copy_way::kernel},
        {2, 1, false, true, copy_way::batch},
        {2, 1, false, false, copy_way::single},
        // The longest decides.
        {64, 2 * mib, true, true, copy_way::kernel},
        {64, 2 * mib + 1, true, true, copy_way::batch},
        {64, 2 * mib + 1, true, false, copy_way::single},
        {64, 2 * mib + 1, false, true, copy_way::batch},
        {64, 64 * mib, false, false, copy_way::single},
        // Behind large ones a lone short one would wait in their stream.
        {1, 1, true, true, copy_way::kernel, true},
        {1, 2 * mib, true, false, copy_way::kernel, true},
        {1, 2 * mib + 1, true, true, copy_way::single, true},
        {1, 1, false, true, copy_way::single, true},
        {2, 1, true, true, copy_way::kernel, true},
        {2, 1, false, true, copy_way::batch, true},
        {64, 2 * mib + 1, true, true, copy_way::batch, true},
    };
    for (const auto &row : table) {
        EXPECT_EQ(choose_way(row.copies, row.longest, limits, row.has_kernel, row.has_batch,
                             row.behind_large),
                  row.way)
            << "row " << &row - table;
    }
}

TEST(CopyChoice, CopiesGoOutWhenTheyAreDue)
{
    const copy_limits limits{
        .depth = 4, .batch_copies = 64, .batch_bytes = 16 * mib, .early_bytes = 1 * mib};
    struct {
        copy_load waiting;
        copy_load in_flight;
        std::uint32_t submissions;
        bool held;
        bool due;
    } const table[] = {
        // Nothing waits.
        {{0, 0}, {0, 0}, 0, false, false},
        {{0, 0}, {9, mib}, 1, false, false},
        // Nothing of their kind is in flight: at once, though others are.
        {{1, 1}, {0, 0}, 0, false, true},
        {{1, 0}, {0, 0}, 0, false, true},
        {{1, 64 * mib}, {0, 0}, 3, false, true},
        // Something is: they gather, until they are enough copies,
        {{1, 8}, {1, 8}, 1, false, false},
        {{63, 63 * 8}, {1, 8}, 1, false, false},
        {{64, 64 * 8}, {1, 8}, 1, false, true},
        {{65, 65 * 8}, {1, 8}, 3, false, true},
        // or enough bytes: as many as are in flight, and at least early_bytes,
        {{1, mib - 1}, {1, 8}, 1, false, false},
        {{1, mib}, {1, 8}, 1, false, true},
        {{1, 3 * mib - 1}, {1, 3 * mib}, 2, false, false},
        {{1, 3 * mib}, {1, 3 * mib}, 2, false, true},
        // but not more than batch_bytes.
        {{1, 16 * mib - 1}, {1, 64 * mib}, 2, false, false},
        {{1, 16 * mib}, {1, 64 * mib}, 2, false, true},
        // An empty copy is in flight, too.
        {{1, 8}, {1, 0}, 1, false, false},
        // Never beyond the depth.
        {{1, 8}, {0, 0}, 4, false, false},
        {{64, 64 * mib}, {1, 1}, 4, false, false},
        {{64, 64 * mib}, {1, 1}, 5, false, false},
        // Held: few of them wait on an idle device, many do not.
        {{1, 8}, {0, 0}, 0, true, false},
        {{63, 63}, {0, 0}, 0, true, false},
        {{64, 64}, {0, 0}, 0, true, true},
        {{1, held_factor * mib - 1}, {0, 0}, 0, true, false},
        {{1, held_factor * mib}, {0, 0}, 0, true, true},
        {{1, 8 * mib - 1}, {1, 8 * mib}, 1, true, false},
        {{1, 8 * mib}, {1, 8 * mib}, 1, true, true},
        {{1, 64 * mib}, {0, 0}, 4, true, false},
    };
    for (const auto &row : table) {
        EXPECT_EQ(is_due(row.waiting, row.in_flight, row.submissions, limits,
                         row.held ? copy_pace::held : copy_pace::usual),
                  row.due)
            << "row " << &row - table;
    }
}

TEST(CopyChoice, LimitsOfOneTurnGatheringOff)
{
    const copy_limits one_copy{.depth = 4, .batch_copies = 1};
    EXPECT_TRUE(is_due({1, 8}, {1, 8}, 3, one_copy));
    const copy_limits one_byte{.depth = 4, .early_bytes = 1};
    EXPECT_FALSE(is_due({1, 7}, {1, 8}, 1, one_byte)) << "fewer bytes than in flight";
    EXPECT_TRUE(is_due({1, 8}, {1, 8}, 1, one_byte));
    const copy_limits small_batch{.depth = 4, .batch_bytes = 1, .early_bytes = 1};
    EXPECT_TRUE(is_due({1, 1}, {1, 8 * mib}, 1, small_batch));
    const copy_limits one_at_a_time{.depth = 1};
    EXPECT_FALSE(is_due({64, 64 * mib}, {1, 8}, 1, one_at_a_time));
}

TEST(CopyChoice, InAHurryTheyGoOutAsIfNothingWereInFlight)
{
    const copy_limits limits{.depth = 4, .batch_copies = 64, .early_bytes = mib};
    EXPECT_FALSE(is_due({1, 8}, {1, 8}, 1, limits, copy_pace::usual));
    EXPECT_TRUE(is_due({1, 8}, {1, 8}, 1, limits, copy_pace::hurried));
    EXPECT_FALSE(is_due({1, 8}, {1, 8}, 4, limits, copy_pace::hurried)) << "beyond the depth";
    EXPECT_FALSE(is_due({0, 0}, {1, 8}, 1, limits, copy_pace::hurried)) << "there is nothing";
}

TEST(CopyChoice, ThePatientOnesWaitUntilTheyAreMany)
{
    const copy_limits limits{.depth = 4, .batch_copies = 64, .early_bytes = mib};
    const std::uint32_t many = gpusm::patient_copies;
    EXPECT_FALSE(is_due({many - 1, 64 * mib}, {0, 0}, 0, limits, copy_pace::patient));
    EXPECT_TRUE(is_due({many, many}, {0, 0}, 0, limits, copy_pace::patient));
    EXPECT_TRUE(is_due({many, many}, {64, 64 * mib}, 3, limits, copy_pace::patient));
    EXPECT_FALSE(is_due({many, many}, {1, 8}, 4, limits, copy_pace::patient)) << "beyond the depth";
    const copy_limits few{.depth = 4, .batch_copies = 2};
    EXPECT_FALSE(is_due({1, 8}, {0, 0}, 0, few, copy_pace::patient));
    EXPECT_TRUE(is_due({2, 8}, {0, 0}, 0, few, copy_pace::patient)) << "a full submission";
}

} // namespace
