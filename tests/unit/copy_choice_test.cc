// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_choice_test.cc: which way copies take, and when they go out, as tables.
#include "opal/mca/common/gpusm/gpu/copy_choice.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

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
        {1, 64 * mib, true, true, copy_way::single},
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
    using enum copy_pace;
    constexpr std::uint32_t many = patient_copies;
    const copy_limits limits{
        .depth = 4, .batch_copies = 64, .batch_bytes = 16 * mib, .early_bytes = 1 * mib};
    struct {
        copy_load waiting;
        copy_load in_flight;
        std::uint32_t submissions;
        copy_pace pace;
        bool due;
    } const table[] = {
        // Nothing waits.
        {{0, 0}, {0, 0}, 0, usual, false},
        {{0, 0}, {9, mib}, 1, usual, false},
        // Nothing of their kind is in flight: at once, though others are.
        {{1, 1}, {0, 0}, 0, usual, true},
        {{1, 0}, {0, 0}, 0, usual, true},
        {{1, 64 * mib}, {0, 0}, 3, usual, true},
        // Something is: they gather, until they are enough copies,
        {{1, 8}, {1, 8}, 1, usual, false},
        {{63, 63 * 8}, {1, 8}, 1, usual, false},
        {{64, 64 * 8}, {1, 8}, 1, usual, true},
        {{65, 65 * 8}, {1, 8}, 3, usual, true},
        // or enough bytes: as many as are in flight, and at least early_bytes,
        {{1, mib - 1}, {1, 8}, 1, usual, false},
        {{1, mib}, {1, 8}, 1, usual, true},
        {{1, 3 * mib - 1}, {1, 3 * mib}, 2, usual, false},
        {{1, 3 * mib}, {1, 3 * mib}, 2, usual, true},
        // but not more than batch_bytes.
        {{1, 16 * mib - 1}, {1, 64 * mib}, 2, usual, false},
        {{1, 16 * mib}, {1, 64 * mib}, 2, usual, true},
        // An empty copy is in flight, too.
        {{1, 8}, {1, 0}, 1, usual, false},
        // Never beyond the depth.
        {{1, 8}, {0, 0}, 4, usual, false},
        {{64, 64 * mib}, {1, 1}, 4, usual, false},
        {{64, 64 * mib}, {1, 1}, 5, usual, false},
        // Held: few of them wait on an idle device, many do not.
        {{1, 8}, {0, 0}, 0, held, false},
        {{63, 63}, {0, 0}, 0, held, false},
        {{64, 64}, {0, 0}, 0, held, true},
        {{1, held_factor * mib - 1}, {0, 0}, 0, held, false},
        {{1, held_factor * mib}, {0, 0}, 0, held, true},
        {{1, 8 * mib - 1}, {1, 8 * mib}, 1, held, false},
        {{1, 8 * mib}, {1, 8 * mib}, 1, held, true},
        {{1, 64 * mib}, {0, 0}, 4, held, false},
        // In a hurry: as if nothing were in flight.
        {{1, 8}, {1, 8}, 1, hurried, true},
        {{1, 8}, {1, 8}, 4, hurried, false},
        {{0, 0}, {1, 8}, 1, hurried, false},
        // The patient ones wait until they are many.
        {{many - 1, 64 * mib}, {0, 0}, 0, patient, false},
        {{many, many}, {0, 0}, 0, patient, true},
        {{many, many}, {64, 64 * mib}, 3, patient, true},
        {{many, many}, {1, 8}, 4, patient, false},
    };
    for (const auto &row : table) {
        EXPECT_EQ(is_due(row.waiting, row.in_flight, row.submissions, limits, row.pace), row.due)
            << "row " << &row - table;
    }
}

TEST(CopyChoice, AFullSubmissionIsDueThoughPatient)
{
    const copy_limits few{.depth = 4, .batch_copies = 2};
    EXPECT_FALSE(is_due({1, 8}, {0, 0}, 0, few, copy_pace::patient));
    EXPECT_TRUE(is_due({2, 8}, {0, 0}, 0, few, copy_pace::patient));
}

} // namespace
