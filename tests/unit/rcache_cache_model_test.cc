// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_cache_model_test.cc: the cache against a model of it that is too plain to be wrong, over
// random rounds. GPUSM_TEST_SEED repeats a run.
#include "tests/unit/rcache_opener.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

// The same rules in the plainest words, for comparison: one list, oldest use first.
struct naive_entry {
    mapping_key key;
    std::uint64_t base;
    std::uint64_t len_bytes;
    std::uint32_t references;
    bool stale;
    mapping *real;
};

struct naive_cache {
    std::vector<naive_entry> entries; // among the unused ones, least recently used first
    cache_limits limits;

    std::size_t bytes() const
    {
        std::size_t sum = 0;
        for (const naive_entry &entry : entries) {
            sum += entry.len_bytes;
        }
        return sum;
    }

    template <typename Matches> void make_stale(Matches matches)
    {
        for (naive_entry &entry : entries) {
            entry.stale = entry.stale || matches(entry);
        }
        std::erase_if(
            entries, [](const naive_entry &entry) { return entry.stale && entry.references == 0; });
    }

    void fit(std::size_t more_entries, std::size_t more_bytes)
    {
        while (entries.size() + more_entries > limits.max_entries ||
               bytes() + more_bytes > limits.max_bytes) {
            const auto oldest =
                std::find_if(entries.begin(), entries.end(),
                             [](const naive_entry &entry) { return entry.references == 0; });
            if (oldest == entries.end()) {
                return;
            }
            entries.erase(oldest);
        }
    }
};

TEST_F(MappingCache, TenThousandRandomRoundsAgreeWithANaiveModel)
{
    const char *given = std::getenv("GPUSM_TEST_SEED");
    const std::uint64_t seed =
        given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    std::printf("GPUSM_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    const auto below = [&random](std::uint64_t bound) { return random() % bound; };

    limit(8, 40 * page);
    naive_cache model{{}, {8, 40 * page}};
    for (int round = 0; round < 10000; round++) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        const std::uint64_t what = below(100);
        if (what < 55) {
            const mapping_key key =
                key_of(static_cast<std::uint32_t>(below(6)), 1 + below(3),
                       static_cast<std::uint32_t>(below(2)), static_cast<std::uint32_t>(below(2)));
            // Where a slot's generation lies follows from both, as it does at a real owner.
            const std::uint64_t base = ((key.slot * 7 + key.generation * 5) % 23) * page;
            const std::uint64_t len_bytes = (1 + (key.slot + key.generation) % 6) * page;
            driver.failures_left = below(10) == 0 ? 1 : 0;
            driver.failure = status::no_memory;
            const bool fails = driver.failures_left != 0;

            const auto hit = std::find_if(
                model.entries.begin(), model.entries.end(),
                [&](const naive_entry &entry) { return !entry.stale && entry.key == key; });
            bool expect_ok = true;
            naive_entry entry{key, base, len_bytes, 0, false, nullptr};
            if (hit != model.entries.end()) {
                entry = *hit;
                model.entries.erase(hit);
                driver.failures_left = 0;
            } else {
                model.make_stale([&](const naive_entry &other) {
                    return other.key.owner == key.owner && other.key.device == key.device &&
                           (other.key.slot == key.slot ||
                            (other.base < base + len_bytes && base < other.base + other.len_bytes));
                });
                model.fit(1, len_bytes);
                if (fails) {
                    expect_ok = std::erase_if(model.entries, [](const naive_entry &other) {
                                    return other.references == 0;
                                }) != 0;
                }
            }
            mapping *got = nullptr;
            const status answer = cache->acquire(key, base, len_bytes, nullptr, &got);
            ASSERT_EQ(answer == status::ok, expect_ok);
            if (expect_ok) {
                ASSERT_TRUE(entry.real == nullptr || entry.real == got);
                ASSERT_TRUE(got->key == key && got->remote_base == base);
                entry.real = got;
                entry.references++;
                model.entries.push_back(entry);
                ASSERT_EQ(got->references, entry.references);
            }
        } else if (what < 95) {
            std::vector<std::size_t> used;
            for (std::size_t i = 0; i < model.entries.size(); i++) {
                if (model.entries[i].references != 0) {
                    used.push_back(i);
                }
            }
            if (!used.empty()) {
                const std::size_t i = used[below(used.size())];
                naive_entry entry = model.entries[i];
                model.entries.erase(model.entries.begin() + static_cast<std::ptrdiff_t>(i));
                entry.references--;
                cache->release(entry.real);
                if (entry.references != 0 || !entry.stale) {
                    model.entries.push_back(entry);
                }
                if (entry.references == 0 && !entry.stale) {
                    model.fit(0, 0);
                }
            }
        } else if (what < 98) {
            std::uint64_t generation = 1 + below(3);
            const auto owner = static_cast<std::uint32_t>(below(2));
            model.make_stale([&](const naive_entry &entry) {
                return entry.key.owner == owner && entry.key.generation == generation;
            });
            cache->invalidate(
                owner,
                [](void *argument, const mapping_key &key) {
                    return key.generation == *static_cast<std::uint64_t *>(argument);
                },
                &generation);
        } else {
            const auto owner = static_cast<std::uint32_t>(below(2));
            model.make_stale([&](const naive_entry &entry) { return entry.key.owner == owner; });
            cache->drop_owner(owner);
        }

        const auto now = cache->statistics();
        ASSERT_EQ(now.entries, model.entries.size());
        ASSERT_EQ(now.bytes, model.bytes());
        ASSERT_EQ(driver.open_now.size(), model.entries.size());
        std::size_t referenced = 0;
        for (const naive_entry &entry : model.entries) {
            referenced += entry.references != 0 ? 1 : 0;
            if (entry.references != 0) {
                ASSERT_EQ(entry.real->references, entry.references);
                ASSERT_EQ(entry.real->stale, entry.stale);
                ASSERT_EQ(driver.open_now.count(entry.real->local_base), 1U);
            }
        }
        ASSERT_EQ(now.referenced, referenced);
    }
    for (const naive_entry &entry : model.entries) {
        for (std::uint32_t i = 0; i < entry.references; i++) {
            cache->release(entry.real);
        }
    }
    cache.reset();
    EXPECT_TRUE(driver.open_now.empty());
    EXPECT_TRUE(logged.empty());
}

} // namespace
