// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_export_test.cc: what rcache_gpusm_export.h promises, against a directory in an array.
#include "opal/mca/rcache/gpusm/rcache_gpusm_export.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "opal/mca/btl/gpusm/base/log.h"

namespace {

using gpusm::allocation;
using gpusm::export_table;
using gpusm::exported;
using gpusm::status;

constexpr std::uint64_t page = 0x1000;

int lines_logged = 0;

// What a peer could read: the generation that is valid in each slot.
struct directory {
    std::map<std::uint32_t, std::uint64_t> valid;
    std::set<std::pair<std::uint32_t, std::uint64_t>> ever; // every generation ever handed out
    std::vector<std::uint32_t> retired_slots;
    const void *last_argument = nullptr;
    bool fails = false;

    static status publish(void *context, const exported &entry, const void *argument)
    {
        auto &self = *static_cast<directory *>(context);
        EXPECT_GE(entry.generation, 1U);
        EXPECT_TRUE(self.ever.emplace(entry.slot, entry.generation).second)
            << "generation " << entry.generation << " of slot " << entry.slot << " repeats";
        EXPECT_EQ(self.valid.count(entry.slot), 0U) << "slot in use";
        self.last_argument = argument;
        if (self.fails) {
            return status::unsupported;
        }
        self.valid[entry.slot] = entry.generation;
        return status::ok;
    }

    static void retire(void *context, const exported &entry)
    {
        auto &self = *static_cast<directory *>(context);
        const auto at = self.valid.find(entry.slot);
        ASSERT_NE(at, self.valid.end());
        EXPECT_EQ(at->second, entry.generation);
        self.valid.erase(at);
        self.retired_slots.push_back(entry.slot);
    }

    gpusm::export_callbacks callbacks() { return {this, publish, retire}; }
};

class ExportTable : public testing::Test {
  protected:
    void SetUp() override
    {
        lines_logged = 0;
        gpusm::log_install([](gpusm::log_level, const char *) { lines_logged++; },
                           gpusm::log_level::warn);
    }

    void TearDown() override { gpusm::log_install(nullptr, gpusm::log_level::warn); }

    void with_slots(std::uint32_t slots)
    {
        table = std::make_unique<export_table>(shared.callbacks(), slots);
    }

    exported *insert(std::uint64_t base, std::uint64_t len_bytes = page, std::uint64_t id = 1)
    {
        exported *entry = nullptr;
        EXPECT_EQ(table->insert(allocation{base, len_bytes, id}, nullptr, &entry), status::ok);
        return entry;
    }

    directory shared;
    std::unique_ptr<export_table> table = std::make_unique<export_table>(shared.callbacks(), 64);
};

TEST_F(ExportTable, InsertedAllocationIsFoundByAnyRangeInsideIt)
{
    const int argument = 0;
    exported *entry = nullptr;
    ASSERT_EQ(table->insert(allocation{page, 4 * page, 77}, &argument, &entry), status::ok);
    EXPECT_EQ(shared.last_argument, &argument);
    EXPECT_EQ(entry->memory.buffer_id, 77U);
    EXPECT_EQ(entry->references, 0U);
    EXPECT_EQ(entry->generation, 1U);
    EXPECT_FALSE(entry->retired);
    EXPECT_EQ(table->find(page, 4 * page), entry);
    EXPECT_EQ(table->find(page, 0), entry);
    EXPECT_EQ(table->find(5 * page - 1, 1), entry);
    EXPECT_EQ(table->live(), 1U);
}

TEST_F(ExportTable, RangeThatLeavesTheAllocationIsNotFound)
{
    exported *entry = insert(page, 4 * page);
    exported *next = insert(5 * page, page);
    EXPECT_EQ(table->find(page - 1, 1), nullptr);
    EXPECT_EQ(table->find(page, 4 * page + 1), nullptr);
    EXPECT_EQ(table->find(6 * page, 0), nullptr);
    EXPECT_EQ(table->find(2 * page, ~0ULL), nullptr);
    EXPECT_EQ(table->find(5 * page, page), next);
    EXPECT_EQ(table->find(2 * page, page), entry);
}

TEST_F(ExportTable, EmptyAndWrappingAllocationsAreRefused)
{
    exported *out = nullptr;
    EXPECT_EQ(table->insert(allocation{page, 0, 1}, nullptr, &out), status::bad_argument);
    EXPECT_EQ(table->insert(allocation{~0ULL, 2, 1}, nullptr, &out), status::bad_argument);
    EXPECT_EQ(out, nullptr);
    exported *last = insert(~0ULL, 1);
    EXPECT_EQ(table->find(~0ULL, 1), last);
}

TEST_F(ExportTable, EveryOverlappedOlderExportIsRetired)
{
    for (std::uint64_t i = 0; i < 6; i++) {
        insert((10 + i) * page);
    }
    exported *entry = insert(11 * page + page / 2, 2 * page + page / 2 + 1);
    std::sort(shared.retired_slots.begin(), shared.retired_slots.end());
    EXPECT_EQ(shared.retired_slots, (std::vector<std::uint32_t>{1, 2, 3, 4}));
    EXPECT_EQ(table->live(), 3U);
    EXPECT_EQ(table->find(12 * page, 1), entry);
    EXPECT_EQ(table->find(11 * page, 1), nullptr);
}

TEST_F(ExportTable, SameAddressAllocatedAnewGetsAnotherGenerationOrSlot)
{
    exported *first = insert(page, page, 1);
    const auto before = std::make_pair(first->slot, first->generation);
    exported *second = insert(page, page, 2);
    EXPECT_NE(std::make_pair(second->slot, second->generation), before);
    EXPECT_EQ(second->memory.buffer_id, 2U);
    EXPECT_EQ(table->find(page, page), second);
    EXPECT_EQ(table->live(), 1U);
}

TEST_F(ExportTable, FullTableGivesTheSlotOfTheLeastRecentlyUsed)
{
    with_slots(3);
    insert(1 * page);
    exported *second = insert(2 * page);
    exported *third = insert(3 * page);
    table->add_reference(table->find(1 * page, 1));
    table->release(table->find(1 * page, 1));
    const std::uint32_t slot = second->slot;
    exported *fourth = insert(4 * page);
    EXPECT_EQ(fourth->slot, slot);
    EXPECT_EQ(fourth->generation, 2U);
    EXPECT_EQ(table->find(2 * page, 1), nullptr);
    EXPECT_NE(table->find(1 * page, 1), nullptr);
    EXPECT_EQ(table->find(3 * page, 1), third);
    EXPECT_EQ(table->live(), 3U);
}

TEST_F(ExportTable, ReferencedExportKeepsItsSlot)
{
    with_slots(2);
    exported *first = insert(1 * page);
    exported *second = insert(2 * page);
    table->add_reference(first);
    table->add_reference(second);
    exported *out = first;
    EXPECT_EQ(table->insert(allocation{3 * page, page, 1}, nullptr, &out), status::no_memory);
    EXPECT_EQ(out, first);
    EXPECT_TRUE(shared.retired_slots.empty());
    table->release(first);
    EXPECT_EQ(insert(3 * page)->slot, 0U);
    EXPECT_FALSE(second->retired);
    table->release(second);
}

TEST_F(ExportTable, WithoutSlotsNothingCanBeExported)
{
    with_slots(0);
    exported *out = nullptr;
    EXPECT_EQ(table->insert(allocation{page, page, 1}, nullptr, &out), status::no_memory);
    EXPECT_EQ(table->find(page, 1), nullptr);
    EXPECT_EQ(table->next_for_sweep(), nullptr);
}

TEST_F(ExportTable, RetiredWhileReferencedLivesUntilItsLastRelease)
{
    exported *entry = insert(page, page, 5);
    table->add_reference(entry);
    table->add_reference(entry);
    const std::uint32_t slot = entry->slot;
    table->retire(entry);
    EXPECT_EQ(shared.valid.count(slot), 0U) << "the generation is over at once";
    EXPECT_EQ(table->find(page, 1), nullptr);
    EXPECT_EQ(table->live(), 0U);
    exported *successor = insert(page, page, 6);
    EXPECT_NE(successor->slot, slot);
    EXPECT_NE(successor, entry);
    EXPECT_TRUE(entry->retired);
    EXPECT_EQ(entry->memory.buffer_id, 5U);
    EXPECT_EQ(entry->generation, 1U);
    table->release(entry);
    EXPECT_EQ(entry->references, 1U);
    table->release(entry);
    EXPECT_EQ(table->find(page, 1), successor);
    EXPECT_EQ(insert(9 * page)->slot, slot) << "the slot is free now";
    EXPECT_EQ(table->find(9 * page, 1)->generation, 2U);
}

TEST_F(ExportTable, RetiringTwiceIsHarmless)
{
    exported *entry = insert(page);
    table->add_reference(entry);
    table->retire(entry);
    table->retire(entry);
    EXPECT_EQ(shared.retired_slots.size(), 1U);
    table->release(entry);
}

TEST_F(ExportTable, GenerationOfASlotNeverRepeatsEvenAfterAFailedPublish)
{
    with_slots(1);
    shared.fails = true;
    exported *out = nullptr;
    EXPECT_EQ(table->insert(allocation{page, page, 1}, nullptr, &out), status::unsupported);
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(table->live(), 0U);
    EXPECT_EQ(table->find(page, 1), nullptr);
    shared.fails = false;
    std::uint64_t last = 1;
    for (std::uint64_t i = 0; i < 100; i++) {
        exported *entry = insert(i * page);
        EXPECT_EQ(entry->slot, 0U);
        EXPECT_GT(entry->generation, last);
        last = entry->generation;
    }
}

TEST_F(ExportTable, SweepVisitsEveryLiveExportOncePerRound)
{
    EXPECT_EQ(table->next_for_sweep(), nullptr);
    std::set<exported *> all;
    for (std::uint64_t i = 0; i < 5; i++) {
        all.insert(insert(i * page));
    }
    for (int round = 0; round < 3; round++) {
        std::set<exported *> seen;
        for (std::size_t i = 0; i < all.size(); i++) {
            seen.insert(table->next_for_sweep());
        }
        EXPECT_EQ(seen, all);
    }
}

TEST_F(ExportTable, RetiringWhatTheSweepFoundDoesNotDisturbTheRound)
{
    for (std::uint64_t i = 0; i < 6; i++) {
        insert(i * page);
    }
    std::set<std::uint64_t> seen;
    for (int i = 0; i < 6; i++) {
        exported *entry = table->next_for_sweep();
        ASSERT_NE(entry, nullptr);
        seen.insert(entry->memory.base);
        if (i % 2 == 0) {
            table->retire(entry);
        }
    }
    EXPECT_EQ(seen.size(), 6U);
    EXPECT_EQ(table->live(), 3U);
    while (exported *entry = table->next_for_sweep()) {
        table->retire(entry);
    }
    EXPECT_EQ(table->live(), 0U);
}

TEST_F(ExportTable, OneReleaseTooManyIsReportedAndIgnored)
{
    exported *entry = insert(page);
    table->release(entry);
    EXPECT_EQ(lines_logged, 1);
    EXPECT_EQ(entry->references, 0U);
}

TEST_F(ExportTable, TenThousandRandomRoundsAgreeWithANaiveModel)
{
    const char *given = std::getenv("GPUSM_TEST_SEED");
    const std::uint64_t seed =
        given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    std::printf("GPUSM_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };

    constexpr std::uint32_t slots = 5;
    with_slots(slots);
    struct naive_entry {
        allocation memory;
        std::uint32_t references;
        exported *real;
    };
    std::vector<naive_entry> live; // among the unused ones, least recently used first
    std::vector<naive_entry> gone; // retired but referenced
    const auto end_if = [&](auto matches) {
        for (const naive_entry &entry : live) {
            if (matches(entry) && entry.references != 0) {
                gone.push_back(entry);
            }
        }
        std::erase_if(live, matches);
    };
    for (int round = 0; round < 10000; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        const std::uint64_t what = below(100);
        const std::size_t pick = live.empty() ? 0 : below(live.size());
        if (what < 40) {
            const allocation memory{below(30) * page, (1 + below(4)) * page,
                                    static_cast<std::uint64_t>(round)};
            end_if([&](const naive_entry &entry) {
                return entry.memory.base < memory.base + memory.len_bytes &&
                       memory.base < entry.memory.base + entry.memory.len_bytes;
            });
            shared.fails = below(10) == 0;
            status expected = shared.fails ? status::unsupported : status::ok;
            if (live.size() + gone.size() == slots) {
                const auto oldest =
                    std::find_if(live.begin(), live.end(),
                                 [](const naive_entry &entry) { return entry.references == 0; });
                if (oldest == live.end()) {
                    expected = status::no_memory;
                } else {
                    live.erase(oldest);
                }
            }
            exported *entry = nullptr;
            ASSERT_EQ(table->insert(memory, nullptr, &entry), expected);
            shared.fails = false;
            if (expected == status::ok) {
                live.push_back({memory, 0, entry});
            }
        } else if (what < 60 && !live.empty()) {
            table->add_reference(live[pick].real);
            live[pick].references++;
        } else if (what < 75 && !live.empty() && live[pick].references != 0) {
            naive_entry entry = live[pick];
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
            entry.references--;
            table->release(entry.real);
            live.push_back(entry);
        } else if (what < 90 && !gone.empty()) {
            table->release(gone.back().real);
            if (--gone.back().references == 0) {
                gone.pop_back();
            }
        } else if (what >= 90 && !live.empty()) {
            exported *real = live[pick].real;
            end_if([&](const naive_entry &entry) { return entry.real == real; });
            table->retire(real);
        }

        ASSERT_EQ(table->live(), live.size());
        ASSERT_EQ(shared.valid.size(), live.size());
        for (const naive_entry &entry : live) {
            ASSERT_FALSE(entry.real->retired);
            ASSERT_EQ(entry.real->references, entry.references);
            ASSERT_EQ(entry.real->memory.buffer_id, entry.memory.buffer_id);
            ASSERT_EQ(shared.valid[entry.real->slot], entry.real->generation);
        }
        for (const naive_entry &entry : gone) {
            ASSERT_TRUE(entry.real->retired);
            ASSERT_EQ(entry.real->references, entry.references);
            ASSERT_EQ(entry.real->memory.buffer_id, entry.memory.buffer_id);
        }
        const std::uint64_t address = below(36 * page);
        const std::uint64_t len_bytes = below(2 * page);
        const auto covering = std::find_if(live.begin(), live.end(), [&](const naive_entry &entry) {
            const std::uint64_t end = entry.memory.base + entry.memory.len_bytes;
            return entry.memory.base <= address && address < end && address + len_bytes <= end;
        });
        ASSERT_EQ(table->find(address, len_bytes),
                  covering == live.end() ? nullptr : covering->real);
        std::set<exported *> swept;
        for (std::size_t i = 0; i < live.size(); i++) {
            swept.insert(table->next_for_sweep());
        }
        ASSERT_EQ(swept.size(), live.size());
    }
    EXPECT_EQ(lines_logged, 0);
}

} // namespace
