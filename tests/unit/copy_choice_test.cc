// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_choice_test.cc: when copies go out, by which executor and on which stream, as tables of
// facts.
#include "opal/mca/common/gpusm/gpu/copy_choice.h"

#include <cstdint>
#include <ostream>
#include <span>

#include <gtest/gtest.h>

namespace gpusm {

void PrintTo(const copy_decision &decided, std::ostream *out)
{
    if (!decided.goes) {
        *out << "wait";
        return;
    }
    *out << (copy_kind::small == decided.kind ? "small" : "large") << " by way "
         << static_cast<int>(decided.way) << ", turn " << decided.turn;
}

} // namespace gpusm

namespace {

using namespace gpusm;
using enum copy_way;
using enum copy_kind;

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

constexpr copy_ways driver_alone = copy_ways{}.with(single);
constexpr copy_ways without_kernel = driver_alone.with(batch);
constexpr copy_ways everything = without_kernel.with(kernel);

// Not the defaults, so that these can be tuned.
constexpr copy_limits limits{.depth = 4,
                             .batch_copies = 64,
                             .batch_bytes = 16 * mib,
                             .kernel_bytes = 2 * mib,
                             .early_bytes = 1 * mib,
                             .within_device_bytes = 4 * mib};

constexpr copy_decision wait{};
constexpr copy_decision go(copy_kind kind, copy_way way, std::uint32_t turn = 0)
{
    return {true, kind, way, turn};
}

TEST(CopyChoice, SmallIsWhatTheKernelMayDo)
{
    struct {
        std::size_t len_bytes;
        bool reached;
        bool waits;
        bool within_device;
        copy_kind kind;
    } const table[] = {
        {1, true, false, false, small},
        {2 * mib, true, false, false, small},
        {2 * mib + 1, true, false, false, large}, // too long
        {2 * mib + 1, true, false, true, small},
        {4 * mib, true, false, true, small},
        {4 * mib + 1, true, false, true, large},
        {0, true, false, true, large},  // it takes no empty ones
        {1, false, false, true, large}, // it must not touch the memory
        {1, true, true, true, large},   // it cannot wait for an event
    };
    for (const auto &row : table) {
        EXPECT_EQ(kind_of(row.len_bytes, row.reached, row.waits, row.within_device, limits),
                  row.kind)
            << "row " << &row - table;
    }
}

TEST(CopyChoice, TheWayDependsOnNumberKindAndWhatIsUsable)
{
    struct {
        std::uint32_t copies;
        copy_kind kind;
        copy_ways usable;
        copy_way way;
        bool behind_large = false;
    } const table[] = {
        // A lone copy has the least latency by the driver, whatever its length.
        {1, small, everything, single},
        {1, large, everything, single},
        // Several.
        {2, small, everything, kernel},
        {2, small, driver_alone.with(kernel), kernel},
        {2, small, without_kernel, batch},
        {2, small, driver_alone, single},
        {64, large, everything, batch},
        {64, large, driver_alone.with(kernel), single},
        {64, large, without_kernel, batch},
        {64, large, driver_alone, single},
        // Behind large ones a lone small one would wait in their stream.
        {1, small, everything, kernel, true},
        {1, small, driver_alone.with(kernel), kernel, true},
        {1, large, everything, single, true},
        {1, small, without_kernel, single, true},
        {2, small, everything, kernel, true},
        {2, small, without_kernel, batch, true},
        {64, large, everything, batch, true},
    };
    for (const auto &row : table) {
        EXPECT_EQ(way_for(row.copies, row.kind, row.behind_large, row.usable), row.way)
            << "row " << &row - table;
    }
}

struct decision_row {
    copy_facts facts;
    copy_decision decided;
};

void expect_decisions(std::span<const decision_row> table, const copy_limits &with = limits)
{
    for (const decision_row &row : table) {
        EXPECT_EQ(decide(row.facts, with), row.decided) << "row " << &row - table.data();
    }
}

// One kind alone on a device without kernel and batch.
decision_row small_alone(const kind_facts &facts, bool goes, bool more_expected = false)
{
    return {{.small = facts, .usable = driver_alone, .more_expected = more_expected},
            goes ? go(small, single) : wait};
}
decision_row large_alone(const kind_facts &facts, bool goes, bool processor_has_work = false)
{
    return {{.large = facts, .usable = driver_alone, .processor_has_work = processor_has_work},
            goes ? go(large, single) : wait};
}

TEST(CopyChoice, CopiesGatherWhileTheDeviceIsBusy)
{
    const decision_row table[] = {
        // Nothing waits.
        small_alone({}, false),
        small_alone({.in_flight = {9, mib}, .submissions = 1}, false),
        // Nothing is in flight: at once.
        small_alone({.waiting = {1, 1}}, true),
        small_alone({.waiting = {1, 0}}, true),
        large_alone({.waiting = {1, 64 * mib}}, true),
        // Something is: they gather, until they are enough copies,
        small_alone({.waiting = {1, 8}, .in_flight = {1, 8}, .submissions = 1}, false),
        small_alone({.waiting = {63, 63 * 8}, .in_flight = {1, 8}, .submissions = 1}, false),
        small_alone({.waiting = {64, 64 * 8}, .in_flight = {1, 8}, .submissions = 1}, true),
        small_alone({.waiting = {65, 65 * 8}, .in_flight = {1, 8}, .submissions = 3}, true),
        // or enough bytes: as many as are in flight, and at least early_bytes,
        small_alone({.waiting = {1, mib - 1}, .in_flight = {1, 8}, .submissions = 1}, false),
        small_alone({.waiting = {1, mib}, .in_flight = {1, 8}, .submissions = 1}, true),
        small_alone({.waiting = {9, 3 * mib - 1}, .in_flight = {9, 3 * mib}, .submissions = 2},
                    false),
        small_alone({.waiting = {9, 3 * mib}, .in_flight = {9, 3 * mib}, .submissions = 2}, true),
        // but not more than batch_bytes.
        small_alone({.waiting = {9, 16 * mib - 1}, .in_flight = {9, 64 * mib}, .submissions = 2},
                    false),
        small_alone({.waiting = {9, 16 * mib}, .in_flight = {9, 64 * mib}, .submissions = 2}, true),
        // An empty copy is in flight, too.
        small_alone({.waiting = {1, 8}, .in_flight = {1, 0}, .submissions = 1}, false),
    };
    expect_decisions(table);
}

TEST(CopyChoice, SubmissionsInFlightAreNotMoreThanTheDepth)
{
    const kind_facts one{.waiting = {1, 8}};
    const kind_facts full{.waiting = {64, 64 * mib}};
    const auto in_flight = [](kind_facts facts, std::uint32_t submissions) {
        facts.in_flight = {submissions, submissions};
        facts.submissions = submissions;
        return facts;
    };
    const kind_facts others[] = {in_flight({}, 1), in_flight({}, 2), in_flight({}, 3),
                                 in_flight({}, 4)};
    const decision_row table[] = {
        {{.small = one, .large = others[2], .usable = driver_alone}, go(small, single, 0)},
        {{.small = one, .large = others[3], .usable = driver_alone}, wait},
        {{.small = full, .large = others[3], .usable = driver_alone}, wait},
        small_alone(in_flight(full, 3), true),
        small_alone(in_flight(full, 4), false),
        small_alone(in_flight(full, 5), false),
        // Large ones leave a place to the small ones.
        large_alone(in_flight(full, 2), true),
        large_alone(in_flight(full, 3), false),
        {{.small = others[1], .large = in_flight(full, 1), .usable = driver_alone},
         go(large, single)},
        {{.small = others[2], .large = in_flight(full, 1), .usable = driver_alone}, wait},
    };
    expect_decisions(table);
    const copy_limits alone{.depth = 1};
    EXPECT_TRUE(decide({.large = one, .usable = driver_alone}, alone).goes)
        << "where there is one place only they take it";
    EXPECT_FALSE(decide({.large = in_flight(full, 1), .usable = driver_alone}, {.depth = 2}).goes);
}

TEST(CopyChoice, WhileMoreAreExpectedFewWaitOnAnIdleDeviceAndManyDoNot)
{
    constexpr std::size_t many_bytes = expecting_factor * mib;
    const auto expecting = [](const kind_facts &facts, bool goes) {
        return small_alone(facts, goes, true);
    };
    const decision_row table[] = {
        expecting({.waiting = {1, 8}}, false),
        expecting({.waiting = {1, 8}, .for_processor = 1, .first_for_processor = true}, false),
        expecting({.waiting = {63, 63}}, false),
        expecting({.waiting = {64, 64}}, true),
        expecting({.waiting = {9, many_bytes - 1}}, false),
        expecting({.waiting = {9, many_bytes}}, true),
        expecting({.waiting = {9, 8 * mib - 1}, .in_flight = {9, 8 * mib}, .submissions = 1},
                  false),
        expecting({.waiting = {9, 8 * mib}, .in_flight = {9, 8 * mib}, .submissions = 1}, true),
        expecting({.waiting = {64, 64}, .in_flight = {4, 4}, .submissions = 4}, false),
    };
    expect_decisions(table);
}

TEST(CopyChoice, WhatAProcessorWaitsForIsBegunBehindOneSubmission)
{
    const auto behind = [](std::uint32_t submissions, bool first_for_processor) {
        return kind_facts{.waiting = {2, 16},
                          .for_processor = 1,
                          .first_for_processor = first_for_processor,
                          .in_flight = {submissions, 8},
                          .submissions = submissions};
    };
    const decision_row table[] = {
        small_alone(behind(bus_submissions - 1, true), true),
        small_alone(behind(bus_submissions, true), false),
        large_alone(behind(bus_submissions - 1, true), true),
        large_alone(behind(bus_submissions, true), false),
        // It is the oldest one that matters.
        small_alone(behind(1, false), false),
        large_alone(behind(1, false), false),
    };
    expect_decisions(table);
}

TEST(CopyChoice, WhileTheProcessorHasWorkLargeCopiesForItGatherUntilTheyAreMany)
{
    constexpr std::uint32_t many = unawaited_copies;
    const auto for_processor = [](std::uint32_t copies, std::size_t bytes) {
        return kind_facts{
            .waiting = {copies, bytes}, .for_processor = copies, .first_for_processor = true};
    };
    kind_facts behind = for_processor(many, many);
    behind.in_flight = {64, 64 * mib};
    behind.submissions = 2;
    kind_facts beside_another = for_processor(2, 2);
    beside_another.for_processor = 1;
    const decision_row table[] = {
        large_alone(for_processor(many - 1, 64 * mib), false, true),
        large_alone(for_processor(many - 1, 64 * mib), true, false),
        large_alone(for_processor(many, many), true, true),
        large_alone(behind, true, true),
        // Not when there is another one among them,
        large_alone(beside_another, true, true),
        // nor are they small.
        {{.small = for_processor(1, 1), .usable = driver_alone, .processor_has_work = true},
         go(small, single)},
        // More of them may be expected, too.
        {{.large = for_processor(many, many),
          .usable = driver_alone,
          .more_expected = true,
          .processor_has_work = true},
         go(large, single)},
    };
    expect_decisions(table);
    const copy_limits few{.depth = 4, .batch_copies = 2};
    const decision_row full[] = {large_alone(for_processor(1, 8), false, true),
                                 large_alone(for_processor(2, 8), true, true)};
    expect_decisions(full, few);
}

TEST(CopyChoice, WhereBothKindsAreDueTheyTakeTurns)
{
    const kind_facts due{.waiting = {1, 8}};
    const kind_facts gathers{.waiting = {1, 8}, .in_flight = {1, 8}, .submissions = 1};
    const decision_row table[] = {
        {{.small = due, .large = due, .usable = everything}, go(small, single)},
        {{.small = due, .large = due, .large_is_next = true, .usable = everything},
         go(large, single)},
        // The one whose turn it is does not keep the other waiting.
        {{.small = due, .large_is_next = true, .usable = everything}, go(small, single)},
        {{.large = due, .usable = everything}, go(large, single)},
        {{.small = gathers, .large = due, .usable = everything}, go(large, single)},
        {{.small = gathers, .large = gathers, .usable = everything}, wait},
    };
    expect_decisions(table);
}

TEST(CopyChoice, ASubmissionHasAnExecutorAndOneOfItsStreams)
{
    const kind_facts one{.waiting = {1, 8}, .first_bytes = 8};
    const kind_facts two{.waiting = {2, 16}, .first_bytes = 8};
    const kind_facts long_first{.waiting = {2, 17 * mib}, .first_bytes = 16 * mib};
    const kind_facts flying{.in_flight = {1, mib}, .submissions = 1};
    kind_facts one_more = flying;
    one_more.waiting = {1, mib};
    kind_facts two_more = flying;
    two_more.waiting = {2, mib};
    const decision_row table[] = {
        {{.small = one, .usable = everything}, go(small, single)},
        {{.small = two, .usable = everything}, go(small, kernel, 1)},
        {{.small = two, .usable = everything, .kernel_turn = 1}, go(small, kernel, 0)},
        {{.small = one, .large = flying, .usable = everything}, go(small, kernel, 1)},
        {{.large = two, .usable = everything}, go(large, batch)},
        // The first one fills the submission.
        {{.large = long_first, .usable = everything}, go(large, single)},
        // The driver's take turns as long as large ones are in flight, and begin with the first.
        {{.large = one, .usable = everything, .driver_streams = 3, .driver_turn = 1},
         go(large, single, 0)},
        {{.large = one_more, .usable = everything, .driver_streams = 3, .driver_turn = 1},
         go(large, single, 2)},
        {{.large = two_more, .usable = everything, .driver_streams = 3, .driver_turn = 2},
         go(large, batch, 0)},
        {{.large = one_more, .usable = everything, .driver_streams = 1}, go(large, single, 0)},
        // Executors that refuse are left out.
        {{.small = two, .usable = everything.without(kernel)}, go(small, batch)},
        {{.small = two, .usable = driver_alone}, go(small, single)},
        {{.small = one, .large = flying, .usable = without_kernel, .driver_streams = 2},
         go(small, single, 1)},
    };
    expect_decisions(table);
    const copy_limits one_each{.batch_copies = 1};
    EXPECT_EQ(decide({.small = two, .usable = everything}, one_each), go(small, single));
}

} // namespace
