// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// choose_test.cc: in which mode a message goes, row by row, and what is asked for it.
#include "opal/mca/common/gpusm/choose.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using enum fact;

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;

// Written from what docs/ says, not from the header's table.
struct expectation {
    memory_kind source;
    memory_kind target;
    std::uint64_t len_bytes;
    fact_set so; // everything else is not so
    mode goes;
    bool own_process = false;
};

void expect_all(const std::vector<expectation> &table)
{
    for (const expectation &row : table) {
        facts known{row.source, row.target, row.len_bytes, row.own_process};
        known.yes = row.so;
        EXPECT_STREQ(to_string(choose(known)), to_string(row.goes))
            << "row " << &row - table.data() << ", " << row.len_bytes << " bytes";
    }
}

constexpr memory_kind host = memory_kind::host;
constexpr memory_kind mappable = memory_kind::mappable;
constexpr memory_kind unmappable = memory_kind::unmappable;
constexpr memory_kind unknown = memory_kind::unknown;

TEST(Choose, HostMessagesOfTwoFragmentsAreNotOfferedWhereTwoCopiesAreFaster)
{
    expect_all({
        {host, unknown, 16 * kib, {two_copies_are_faster}, mode::fragments},
        {host, unknown, 16 * kib + 1, {two_copies_are_faster}, mode::offered},
        {host, unknown, 16 * kib, {}, mode::offered},
        // The receiver's buffer may lie on a device.
        {host, unknown, 16 * kib, {two_copies_are_faster, uses_device}, mode::offered},
        {host, unknown, 64 * mib, {}, mode::offered},
    });
}

TEST(Choose, DeviceMemoryIsOfferedToAPeerThatFetches)
{
    expect_all({
        {mappable, unknown, 1, {peer_fetches}, mode::offered},
        {mappable, unknown, 64 * mib, {peer_fetches}, mode::offered},
        {mappable, unknown, 64 * mib, {}, mode::fragments},
        {unmappable, unknown, 16 * kib, {peer_fetches}, mode::offered},
        {unmappable, unknown, 16 * kib - 1, {peer_fetches}, mode::fragments},
        {unmappable, unknown, 16 * kib, {}, mode::fragments},
    });
}

TEST(Choose, HostMessagesGoThroughARingOnceItsMemoryPays)
{
    const fact_set all = {readable, rings, two_copies_are_faster, ring_is_warm};
    expect_all({
        {host, host, 20 * kib, all, mode::host_ring},
        {host, host, 64 * mib, all, mode::host_ring},
        {host, host, 20 * kib, {readable, rings, two_copies_are_faster}, mode::single_copy},
        {host, host, 20 * kib, {readable, rings, ring_is_warm}, mode::single_copy},
        {host, host, 20 * kib, {readable, two_copies_are_faster, ring_is_warm}, mode::single_copy},
        {host, host, 20 * kib, {rings, two_copies_are_faster, ring_is_warm}, mode::fragments},
        {host,
         host,
         20 * kib,
         {readable, rings, two_copies_are_faster, ring_is_warm, oversubscribed},
         mode::single_copy},
        // It matters not what the receiver sends.
        {host,
         host,
         mib,
         {readable, rings, two_copies_are_faster, ring_is_warm, sender_writes, sends_too},
         mode::host_ring},
    });
}

TEST(Choose, BothSidesCopyLongHostMessages)
{
    expect_all({
        {host, host, 256 * kib, {readable, rings, sender_writes}, mode::both_copy},
        {host, host, 256 * kib - 1, {readable, rings, sender_writes}, mode::single_copy},
        {host, host, mib, {readable, rings}, mode::single_copy},
        {host, host, mib, {readable, sender_writes}, mode::single_copy},
        {host, host, mib, {rings, sender_writes}, mode::fragments},
        {host, host, mib, {readable, rings, sender_writes, sends_too}, mode::single_copy},
        {host, host, mib, {readable, rings, sender_writes, oversubscribed}, mode::single_copy},
        // Until the ring's memory pays.
        {host, host, mib, {readable, rings, sender_writes, two_copies_are_faster}, mode::both_copy},
    });
}

TEST(Choose, OtherHostMessagesAreSingleCopiesOrFragments)
{
    expect_all({
        {host, host, 1, {readable}, mode::single_copy},
        {host, host, 64 * mib, {readable, oversubscribed}, mode::single_copy},
        {host, host, 64 * mib, {}, mode::fragments},
    });
}

TEST(Choose, MappableMemoryIsMappedForADeviceOrPageLockedMemory)
{
    expect_all({
        {mappable, mappable, 0, {}, mode::mapped},
        {mappable, mappable, 64 * mib, {bounce_copies, single_copies}, mode::mapped},
        {mappable, unmappable, 1, {}, mode::mapped},
        {mappable, host, 8 * kib + 1, {page_locked_target, bounce_copies}, mode::mapped},
        {mappable,
         host,
         64 * mib,
         {page_locked_target, bounce_copies, single_copies, sender_writes, rings},
         mode::mapped},
        // The driver copies into pageable memory, too, if slowly.
        {mappable, host, 64 * mib, {}, mode::mapped},
        {mappable, host, 0, {bounce_copies}, mode::mapped},
    });
}

TEST(Choose, OneProcessCopiesWithinADeviceThatSeveralUse)
{
    expect_all({
        {mappable, mappable, 1, {delegates}, mode::delegated},
        {mappable, mappable, 64 * mib, {delegates, bounce_copies}, mode::delegated},
        {mappable, mappable, 0, {delegates}, mode::mapped},
        {mappable, mappable, mib, {delegates, event}, mode::mapped},
        // What its owner alone can write.
        {mappable, unmappable, mib, {delegates}, mode::mapped},
        {mappable, host, mib, {delegates}, mode::mapped},
        {unmappable, mappable, mib, {delegates, device_rings}, mode::device_ring},
    });
}

TEST(Choose, PiecesForPageableMemoryGoThroughRegisteredMemory)
{
    expect_all({
        {mappable, host, 1, {bounce_copies}, mode::bounced},
        {mappable, host, 64 * mib, {bounce_copies}, mode::bounced},
        // Nobody asks whether a short buffer is page-locked.
        {mappable, host, 8 * kib, {bounce_copies, page_locked_target}, mode::bounced},
    });
}

TEST(Choose, TheOwnerSharesInLongMessagesToPageableMemory)
{
    const fact_set all = {single_copies, sender_writes, rings, bounce_copies};
    expect_all({
        {mappable, host, 128 * kib, all, mode::shared},
        {mappable, host, 128 * kib - 1, all, mode::bounced},
        {mappable, host, mib, {sender_writes, rings, bounce_copies}, mode::bounced},
        {mappable, host, mib, {single_copies, rings, bounce_copies}, mode::bounced},
        {mappable, host, mib, {single_copies, sender_writes, bounce_copies}, mode::bounced},
        {mappable, host, mib, {single_copies, sender_writes, rings}, mode::mapped},
        {mappable,
         host,
         mib,
         {single_copies, sender_writes, rings, bounce_copies, event},
         mode::bounced},
    });
}

TEST(Choose, PageLockedHostMemoryIsPushedIntoADevice)
{
    expect_all({
        {host, mappable, 32 * kib, {pushes, page_locked_source}, mode::pushed},
        {host, mappable, 32 * kib - 1, {pushes, page_locked_source}, mode::staged_ring},
        {host, mappable, mib, {page_locked_source}, mode::staged_ring},
        {host, mappable, mib, {pushes}, mode::staged_ring},
        // When the export of the buffer has been refused.
        {host, unmappable, mib, {pushes, page_locked_source}, mode::staged_ring},
        {host,
         unmappable,
         mib,
         {pushes, page_locked_source, readable, single_copies, bounce_copies, rings},
         mode::staged_ring},
        {host,
         mappable,
         mib,
         {pushes, page_locked_source, readable, single_copies, bounce_copies, rings},
         mode::pushed},
    });
}

TEST(Choose, TheReceiverPullsAPartOfLongPageableMessages)
{
    const fact_set all = {readable, single_copies, bounce_copies, rings};
    expect_all({
        {host, mappable, 128 * kib, all, mode::pulled},
        {host, unmappable, 128 * kib, all, mode::pulled},
        {host, mappable, 128 * kib - 1, all, mode::staged_ring},
        {host, mappable, mib, {single_copies, bounce_copies}, mode::staged_ring},
        {host, mappable, mib, {readable, bounce_copies}, mode::staged_ring},
        {host, mappable, mib, {readable, single_copies}, mode::staged_ring},
    });
}

TEST(Choose, WhereNoRingIsFreeTheReceiverReadsHostMemoryByItself)
{
    const fact_set all = {readable, single_copies, bounce_copies, pushes, page_locked_source};
    expect_all({
        {host, mappable, 1, all, mode::bounced},
        {host, unmappable, mib, all, mode::bounced},
        {host, mappable, 1, {single_copies, bounce_copies}, mode::staged_ring},
        {host, mappable, 1, {readable, bounce_copies}, mode::staged_ring},
        {host, mappable, 1, {readable, single_copies}, mode::staged_ring},
        // Only its owner can copy it.
        {unmappable, mappable, mib, all, mode::staged_ring},
    });
}

TEST(Choose, WhatCannotBeMappedIsStreamed)
{
    expect_all({
        {host, mappable, 1, {}, mode::staged_ring},
        {unmappable, mappable, 16 * kib, {device_rings}, mode::device_ring},
        {unmappable, unmappable, 16 * kib, {device_rings}, mode::device_ring},
        {unmappable, mappable, 16 * kib, {}, mode::staged_ring},
        {unmappable, host, 16 * kib, {device_rings}, mode::staged_ring},
    });
}

TEST(Choose, OfShortBlocksLongMessagesArePackedAndOfListedOnesAll)
{
    constexpr std::uint64_t mib = 1U << 20;
    EXPECT_TRUE(offers_blocks(1, 4 * mib));
    EXPECT_TRUE(offers_blocks(32, 4 * mib));
    EXPECT_FALSE(offers_blocks(32, 4 * mib + 32));
    EXPECT_TRUE(offers_blocks(64, 1024 * mib));
    EXPECT_FALSE(offers_blocks(0, 64));
}

TEST(Choose, MessagesToOneselfAreOneCopyButForPageableMemory)
{
    expect_all({
        {host, host, 1, {}, mode::self, true},
        {host, mappable, mib, {pushes, page_locked_source}, mode::self, true},
        {mappable, mappable, mib, {bounce_copies}, mode::self, true},
        {mappable, mappable, 1, {delegates}, mode::delegated, true},
        {mappable, mappable, 0, {delegates}, mode::self, true},
        {mappable, unmappable, mib, {delegates}, mode::self, true},
        {mappable, host, mib, {delegates, bounce_copies}, mode::bounced, true},
        {mappable, host, 8 * kib + 1, {page_locked_target, bounce_copies}, mode::self, true},
        {mappable, host, 8 * kib, {page_locked_target, bounce_copies}, mode::bounced, true},
        {mappable,
         host,
         mib,
         {single_copies, sender_writes, rings, bounce_copies},
         mode::bounced,
         true},
        {mappable, host, mib, {}, mode::self, true},
        {mappable, host, 0, {bounce_copies}, mode::self, true},
    });
}

// --- what is asked

std::set<fact> asked_for(facts known, fact_set so)
{
    std::set<fact> asked;
    (void)choose(&known, [&](fact which) {
        EXPECT_TRUE(asked.insert(which).second) << "asked twice";
        return so.has(which);
    });
    return asked;
}

TEST(Choose, AsksTheDriverOnlyWhereItsAnswerMatters)
{
    const std::set<fact> costly = {page_locked_source, page_locked_target, bounce_copies,
                                   device_rings};
    const auto asks_any = [&](facts known, fact_set so) {
        const std::set<fact> asked = asked_for(known, so);
        return std::any_of(asked.begin(), asked.end(),
                           [&](fact each) { return costly.contains(each); });
    };
    EXPECT_FALSE(asks_any({host, host, 64 * mib}, {readable}));
    EXPECT_FALSE(asks_any({host, unknown, 64 * mib}, {}));
    EXPECT_FALSE(asks_any({mappable, unknown, 64 * mib}, {peer_fetches}));
    EXPECT_FALSE(asks_any({mappable, mappable, 64 * mib}, {}));
    EXPECT_FALSE(asks_any({host, mappable, 32 * kib - 1}, {pushes}));
    EXPECT_FALSE(asks_any({host, mappable, 32 * kib}, {}));
    EXPECT_TRUE(asks_any({host, mappable, 32 * kib}, {pushes}));
    EXPECT_FALSE(asked_for({mappable, host, 8 * kib}, {}).contains(page_locked_target));
    EXPECT_TRUE(asked_for({mappable, host, 8 * kib + 1}, {}).contains(page_locked_target));
    // Registered memory is made when it is asked for.
    EXPECT_FALSE(asked_for({mappable, host, mib}, {page_locked_target}).contains(bounce_copies));
    EXPECT_FALSE(asked_for({host, mappable, mib}, {readable}).contains(bounce_copies));
}

TEST(Choose, KeepsTheAnswersForTheNextQuestion)
{
    facts known{mappable, host, mib};
    const fact_set so = {single_copies, sender_writes, rings, bounce_copies};
    EXPECT_EQ(choose(&known, [&](fact which) { return so.has(which); }), mode::shared);
    known.set(rings, false); // there was none
    EXPECT_EQ(choose(&known,
                     [](fact) {
                         ADD_FAILURE() << "asked again";
                         return false;
                     }),
              mode::bounced);
}

TEST(Choose, TheHandleSaysWhatTheSourceIs)
{
    EXPECT_EQ(memory_named(share_kind::host), host);
    EXPECT_EQ(memory_named(share_kind::staged), unmappable);
    EXPECT_EQ(memory_named(share_kind::legacy), mappable);
    EXPECT_EQ(memory_named(share_kind::descriptors), mappable);
    EXPECT_EQ(memory_named(share_kind::pool), mappable);
}

// --- docs/architecture.md

std::string in_words(const memory_set &memory)
{
    return memory.has(unknown)                              ? "not known"
           : memory.has(host) && memory.has(mappable)       ? "any"
           : memory.has(host)                               ? "host"
           : memory.has(mappable) && memory.has(unmappable) ? "device"
           : memory.has(mappable)                           ? "device, mappable"
                                                            : "device, not mappable";
}

std::string in_words(const length_range &length)
{
    const auto binary = [](std::uint64_t bytes) {
        return bytes < kib ? std::to_string(bytes) + " B" : std::to_string(bytes / kib) + " KiB";
    };
    return length.most_bytes != UINT64_MAX ? "up to " + binary(length.most_bytes)
           : 0 == length.least_bytes       ? ""
           : 1 == length.least_bytes       ? "not empty"
           : 1 == length.least_bytes % kib ? "above " + binary(length.least_bytes - 1)
                                           : "from " + binary(length.least_bytes);
}

std::string facts_of(const mode_row &row)
{
    std::string all;
    for (const fact_description &each : fact_descriptions) {
        const char *said = row.needs.has(each.described)   ? each.if_so
                           : row.lacks.has(each.described) ? each.if_not
                                                           : "";
        EXPECT_NE(said, nullptr) << each.if_so << " has no words for its contrary";
        if (nullptr != said && *said != '\0') {
            all += (all.empty() ? "" : "; ") + std::string(said);
        }
    }
    return all;
}

std::vector<std::string> documented_rows()
{
    std::vector<std::string> lines;
    const auto add = [&](const mode_row &row, const std::string &to) {
        lines.push_back("| " + in_words(row.source) + " | " + to + " | " + in_words(row.length) +
                        " | " + facts_of(row) + " | " + to_string(row.gives) + " |");
    };
    for (const mode_row &row : mode_rows) {
        add(row, in_words(row.target));
    }
    for (const mode_row &row : self_rows) {
        add(row, "own process, " + in_words(row.target));
    }
    for (const mode_description &each : modes) {
        lines.push_back("| " + std::string(each.name) + " | " + each.who_copies + " |");
    }
    return lines;
}

TEST(Choose, EveryModeAndEveryFactIsDescribed)
{
    for (unsigned i = 0; i < static_cast<unsigned>(fact::count); ++i) {
        EXPECT_EQ(static_cast<unsigned>(fact_descriptions[i].described), i);
    }
    EXPECT_EQ(std::size(fact_descriptions), static_cast<std::size_t>(fact::count));
    for (std::size_t i = 0; i < std::size(modes); ++i) {
        EXPECT_EQ(static_cast<std::size_t>(modes[i].described), i);
    }
    for (const mode_row &row : mode_rows) {
        EXPECT_STRNE(to_string(row.gives), "?");
    }
}

// The tables of the page are what this prints.
TEST(Choose, TheDocumentationHasTheTable)
{
    std::ifstream page(GPUSM_ARCHITECTURE);
    ASSERT_TRUE(page.good()) << GPUSM_ARCHITECTURE;
    std::vector<std::string> has;
    bool between = false;
    for (std::string line; std::getline(page, line);) {
        if (line.starts_with("<!-- choose.h")) {
            between = !between;
        } else if (between && line.starts_with("| ") && !line.starts_with("| ---") &&
                   !line.starts_with("| from ") && !line.starts_with("| mode ")) {
            has.push_back(line);
        }
    }
    const std::vector<std::string> expected = documented_rows();
    EXPECT_EQ(has, expected);
    if (has != expected) {
        for (const std::string &line : expected) {
            std::printf("%s\n", line.c_str());
        }
    }
}

} // namespace
