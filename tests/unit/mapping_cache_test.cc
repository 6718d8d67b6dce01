// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// mapping_cache_test.cc: what ipc/mapping_cache.h promises, against an opener that only counts.
// GPUSM_TEST_SEED repeats the random rounds.
#include "opal/mca/common/gpusm/ipc/mapping_cache.h"

#include "tests/unit/shm_support.h"

#include <algorithm>
#include <map>
#include <memory>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;
using slots = std::vector<std::uint32_t>;

constexpr std::uint64_t page = 0x1000;

mapping_key key_of(std::uint32_t slot, std::uint64_t generation = 1, std::uint32_t owner = 0,
                   std::uint32_t device = 0)
{
    return {owner, device, slot, generation};
}

class MappingCache : public testing::Test {
  protected:
    void limit(std::size_t bytes, std::size_t postponed_bytes = SIZE_MAX,
               std::size_t kept_bytes = 0)
    {
        cache_ = std::make_unique<mapping_cache>(bytes);
        cache_->bound_postponed(postponed_bytes, kept_bytes);
    }

    // Stands for the driver: hands out addresses, and knows what is open.
    status try_acquire(const mapping_key &key, std::uint64_t base, std::uint64_t len_bytes,
                       mapping **out)
    {
        const auto open = [&](mapping *made) {
            ++opens_;
            if (failures_left_ > 0) {
                --failures_left_;
                return failure_;
            }
            made->local_base = 0x700000000000 + page * static_cast<std::uint64_t>(opens_);
            open_now_[made->local_base] = key;
            made->close = [this](const mapping &closed, bool by_force) {
                if (kernel_runs_ && !by_force) {
                    return false;
                }
                const auto at = open_now_.find(closed.local_base);
                EXPECT_NE(at, open_now_.end()) << "closed what was not open";
                EXPECT_EQ(at->second, closed.key);
                open_now_.erase(at);
                closed_.push_back(closed.key.slot);
                return true;
            };
            return status::ok;
        };
        return cache_->acquire(key, base, len_bytes, open, out);
    }
    mapping *acquire(const mapping_key &key, std::uint64_t base = page,
                     std::uint64_t len_bytes = page)
    {
        mapping *got = nullptr;
        EXPECT_EQ(try_acquire(key, base, len_bytes, &got), status::ok);
        return got;
    }
    void use_once(const mapping_key &key, std::uint64_t base = page, std::uint64_t len_bytes = page)
    {
        cache_->release(acquire(key, base, len_bytes));
    }
    void fail(int times, status failure)
    {
        failures_left_ = times;
        failure_ = failure;
    }

    std::map<std::uint64_t, mapping_key> open_now_; // by local base
    slots closed_;                                  // in the order of closing
    bool kernel_runs_ = false;                      // nothing can be closed but by force
    int opens_ = 0;
    int failures_left_ = 0;
    status failure_ = status::driver_failed;
    std::unique_ptr<mapping_cache> cache_ = std::make_unique<mapping_cache>(0);
};

TEST_F(MappingCache, SecondAcquireOfAKeyIsAHitAndOfAnotherAllocationUnderItAPeersMistake)
{
    mapping *first = acquire(key_of(3), page, 4 * page);
    EXPECT_EQ(acquire(key_of(3), page, 4 * page), first);
    mapping *out = nullptr;
    EXPECT_EQ(try_acquire(key_of(3), page, 4 * page + 1, &out), status::bad_peer);
    EXPECT_EQ(try_acquire(key_of(3), page, 0, &out), status::bad_peer);
    EXPECT_EQ(try_acquire(key_of(3), page + 1, 4 * page, &out), status::bad_peer);
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(first->references, 2U);
    cache_->release(first);
    cache_->release(first);
    use_once(key_of(3), page, 4 * page);
    EXPECT_EQ(opens_, 1);
    EXPECT_TRUE(closed_.empty());
    EXPECT_EQ(cache_->statistics().bytes, 4 * page);
}

TEST_F(MappingCache, LimitCountsTheNewcomerBeforeItIsOpenedAndTheLeastRecentlyUsedIsEvictedFirst)
{
    limit(10 * page);
    for (const std::uint32_t slot : {2, 3, 2}) {
        use_once(key_of(slot), 0, 4 * page);
    }
    use_once(key_of(4), 0, 2 * page);
    EXPECT_TRUE(closed_.empty());
    fail(1, status::unsupported);
    mapping *out = nullptr;
    EXPECT_EQ(try_acquire(key_of(5), page, 1, &out), status::unsupported);
    EXPECT_EQ(closed_, (slots{3}));
    EXPECT_EQ(cache_->statistics().bytes, 6 * page);
    use_once(key_of(6), 0, 9 * page);
    EXPECT_EQ(closed_, (slots{3, 2, 4}));
}

TEST_F(MappingCache, WhatCannotBeClosedNowIsClosedLaterAndIsNotLentMeanwhile)
{
    limit(0);
    use_once(key_of(1));
    mapping *used = acquire(key_of(2));
    kernel_runs_ = true;
    cache_->invalidate(0, [](const mapping_key &) { return true; });
    cache_->release(used);
    cache_->close_postponed();
    EXPECT_TRUE(closed_.empty());
    EXPECT_EQ(cache_->statistics().entries, 2U) << "they take memory";
    EXPECT_EQ(cache_->statistics().bytes, 2 * page);
    use_once(key_of(1)); // anew
    EXPECT_EQ(opens_, 3);
    kernel_runs_ = false;
    cache_->close_postponed();
    EXPECT_EQ(closed_, (slots{1, 2}));
    EXPECT_EQ(cache_->statistics().entries, 1U);
    EXPECT_EQ(cache_->statistics().bytes, page);
}

TEST_F(MappingCache, StaleMappingsAreClosedAWholeEpochLaterOrWhenTheyAreMoreThanTheBounds)
{
    limit(0, SIZE_MAX, 2 * page);
    const auto is_over = [](const mapping_key &) { return true; };
    (void)cache_->close_idle(10, 100);
    use_once(key_of(1), page);
    mapping *used = acquire(key_of(2), 2 * page);
    cache_->invalidate(0, is_over);
    cache_->release(used);
    (void)cache_->close_idle(11, 100);
    cache_->close_postponed();
    EXPECT_TRUE(closed_.empty()) << "less than a whole epoch";
    EXPECT_EQ(cache_->statistics().bytes, 2 * page);
    use_once(key_of(3), 3 * page);
    cache_->invalidate(0, is_over);
    EXPECT_EQ(closed_, (slots{1})) << "more bytes than the bound";
    (void)cache_->close_idle(12, 100);
    cache_->close_postponed();
    EXPECT_EQ(closed_, (slots{1, 2})) << "each by its own time";
    fail(1, status::no_memory);
    use_once(key_of(4), 4 * page);
    EXPECT_EQ(closed_, (slots{1, 2, 3})) << "others want memory";
    mapping_key by_descriptor = key_of(7);
    by_descriptor.kind = share_kind::descriptors;
    use_once(by_descriptor, 7 * page);
    closed_.clear();
    cache_->invalidate(0, [](const mapping_key &key) { return 7 == key.slot; });
    EXPECT_EQ(closed_, (slots{7})) << "at once";
    closed_.clear();
    for (std::uint32_t slot = 10; slot < 12 + mapping_cache::max_kept_entries; ++slot) {
        use_once(key_of(slot), slot * page, 1);
        cache_->invalidate(0, [&](const mapping_key &key) { return slot == key.slot; });
    }
    EXPECT_EQ(closed_, (slots{10, 11})) << "more than so many";
    limit(page, SIZE_MAX, 2 * page);
    closed_.clear();
    use_once(key_of(5));
    use_once(key_of(6));
    EXPECT_EQ(closed_, (slots{5})) << "the bound of unused ones is the user's";
}

TEST_F(MappingCache, AStaleMappingIsClosedWhenAnAllocationThatOverlapsItCannotBeOpened)
{
    const auto end_those_of = [&](std::uint32_t owner) {
        cache_->invalidate(owner, [](const mapping_key &) { return true; });
    };
    limit(0, 8 * page, 8 * page);
    use_once(key_of(1), 2 * page, 2 * page);
    use_once(key_of(2, 1, 1), 2 * page);
    end_those_of(0);
    end_those_of(1);
    use_once(key_of(3), 2 * page, 2 * page);
    EXPECT_TRUE(closed_.empty()) << "it could be opened";
    mapping *out = nullptr;
    for (const auto &[base, len_bytes] : {std::pair{page, page}, std::pair{4 * page, page}}) {
        fail(1, status::not_found);
        EXPECT_EQ(try_acquire(key_of(4), base, len_bytes, &out), status::not_found);
        EXPECT_TRUE(closed_.empty()) << "it lies beside it";
    }
    kernel_runs_ = true;
    fail(1, status::not_found);
    EXPECT_EQ(try_acquire(key_of(4), page, 2 * page, &out), status::not_found);
    EXPECT_TRUE(closed_.empty()) << "not by force: the kernel may wait for this message";
    kernel_runs_ = false;
    fail(1, status::not_found);
    use_once(key_of(4), page, 2 * page);
    EXPECT_EQ(closed_, (slots{1})) << "of the same owner";
    EXPECT_EQ(cache_->statistics().bytes, 5 * page);
}

TEST_F(MappingCache, WhatIsToBeClosedHasABoundAndTheOldestIsClosedByForce)
{
    limit(0, 2 * page);
    kernel_runs_ = true;
    for (const std::uint32_t slot : {1, 2, 3, 4}) {
        use_once(key_of(slot), slot * page);
        cache_->invalidate(0, [](const mapping_key &) { return true; });
    }
    EXPECT_EQ(closed_, (slots{1, 2}));
    EXPECT_EQ(cache_->statistics().bytes, 2 * page);
}

TEST_F(MappingCache, ForWantOfMemoryEverythingUnusedIsClosedByForce)
{
    limit(0);
    use_once(key_of(1));
    kernel_runs_ = true;
    cache_->invalidate(0, [](const mapping_key &) { return true; });
    use_once(key_of(2));
    fail(1, status::no_memory);
    use_once(key_of(3));
    EXPECT_EQ(closed_, (slots{1, 2}));
}

TEST_F(MappingCache, AnIdleMappingThatCannotBeClosedNowStaysOfUse)
{
    limit(0);
    use_once(key_of(1));
    kernel_runs_ = true;
    for (const std::int64_t time : {1, 2, 3}) {
        EXPECT_FALSE(cache_->close_idle(time, 1));
    }
    use_once(key_of(1));
    EXPECT_EQ(opens_, 1);
    kernel_runs_ = false;
    EXPECT_FALSE(cache_->close_idle(4, 1));
    EXPECT_TRUE(cache_->close_idle(5, 1));
    EXPECT_EQ(closed_, (slots{1}));
}

TEST_F(MappingCache, LimitIsExceededByMappingsInUseOnly)
{
    limit(2 * page);
    std::vector<mapping *> used;
    for (std::uint32_t slot = 0; slot < 5; ++slot) {
        used.push_back(acquire(key_of(slot)));
    }
    EXPECT_EQ(cache_->statistics().entries, 5U);
    for (mapping *entry : used) {
        cache_->release(entry);
    }
    EXPECT_EQ(closed_, (slots{0, 1, 2}));
    use_once(key_of(9), 0, 3 * page);
    EXPECT_TRUE(open_now_.empty()) << "one that is larger by itself goes at its release";
    EXPECT_EQ(cache_->statistics().bytes, 0U);
}

TEST_F(MappingCache, OpenIsRepeatedOnceForLackOfMemoryOnlyAndIfSomethingWasEvicted)
{
    const struct {
        int times;
        status failure;
        std::uint32_t unused; // mappings that can be evicted
        int opens;
        status answer;
    } table[] = {{1, status::no_memory, 2, 2, status::ok},
                 {2, status::no_memory, 2, 2, status::no_memory},
                 {1, status::no_memory, 0, 1, status::no_memory},
                 {1, status::not_found, 2, 1, status::not_found},
                 {1, status::unsupported, 2, 1, status::unsupported},
                 {1, status::driver_failed, 2, 1, status::driver_failed}};
    for (const auto &each : table) {
        SCOPED_TRACE(testing::Message() << to_string(each.failure) << " " << each.times);
        limit(0);
        closed_.clear();
        for (std::uint32_t slot = 0; slot < each.unused; ++slot) {
            use_once(key_of(slot));
        }
        mapping *used = acquire(key_of(3));
        opens_ = 0;
        fail(each.times, each.failure);
        mapping *out = nullptr;
        EXPECT_EQ(try_acquire(key_of(2), page, page, &out), each.answer);
        EXPECT_EQ(out != nullptr, status::ok == each.answer);
        EXPECT_EQ(opens_, each.opens);
        EXPECT_EQ(closed_, 2 == each.opens ? slots({0, 1}) : slots{});
        EXPECT_EQ(cache_->statistics().entries, open_now_.size()) << "nothing is left behind";
        EXPECT_EQ(cache_->statistics().bytes, open_now_.size() * page);
        if (out != nullptr) {
            cache_->release(out);
        }
        fail(0, status::ok);
        cache_->release(used);
    }
}

TEST_F(MappingCache, InvalidateAsksOnlyAboutThatOwnerAndClosesWhatMatchesOnceItIsUnused)
{
    for (std::uint32_t slot = 0; slot < 4; ++slot) {
        use_once(key_of(slot, slot + 1, 1));
        use_once(key_of(slot, slot + 1, 2));
    }
    const mapping_key key = key_of(9, 1, 1);
    mapping *used = acquire(key);
    EXPECT_EQ(acquire(key), used);
    cache_->invalidate(1, [](const mapping_key &each) {
        EXPECT_EQ(each.owner, 1U);
        return each.generation < 3;
    });
    EXPECT_EQ(closed_, (slots{0, 1}));
    EXPECT_EQ(open_now_.count(used->local_base), 1U);
    mapping *out = nullptr;
    EXPECT_EQ(try_acquire(key, page, page, &out), status::not_found) << "stale";
    cache_->release(used);
    EXPECT_EQ(closed_.size(), 2U);
    cache_->release(used);
    EXPECT_EQ(closed_, (slots{0, 1, 9})) << "at its last release";
    EXPECT_EQ(cache_->statistics().entries, 6U);
    opens_ = 0;
    use_once(key);
    EXPECT_EQ(opens_, 1) << "the process has come back";
}

TEST_F(MappingCache, ItKnowsWhetherAnOwnerHasAnyMappingLeft)
{
    EXPECT_FALSE(cache_->has_any_of(1));
    use_once(key_of(0, 1, 0));
    use_once(key_of(9, 1, 2));
    EXPECT_FALSE(cache_->has_any_of(1));
    use_once(key_of(3, 1, 1));
    mapping *used = acquire(key_of(4, 1, 1, 1));
    const auto all = [](const mapping_key &) { return true; };
    cache_->invalidate(1, all);
    EXPECT_TRUE(cache_->has_any_of(1)) << "one is in use";
    cache_->release(used);
    EXPECT_FALSE(cache_->has_any_of(1));
    EXPECT_TRUE(cache_->has_any_of(0));
    EXPECT_TRUE(cache_->has_any_of(2));
}

TEST_F(MappingCache, IdleMappingsAreClosedOneByOneLeastRecentlyUsedFirst)
{
    use_once(key_of(3));
    EXPECT_FALSE(cache_->close_idle(0, 0)) << "not in the epoch of its last use";
    EXPECT_FALSE(cache_->close_idle(1, 1));
    for (const std::uint32_t slot : {1, 2, 1}) {
        use_once(key_of(slot));
    }
    EXPECT_FALSE(cache_->close_idle(7, 2)) << "times are not counted, but their changes";
    EXPECT_TRUE(cache_->close_idle(8, 2));
    EXPECT_FALSE(cache_->close_idle(8, 2));
    while (cache_->close_idle(8, 0)) {
    }
    EXPECT_EQ(closed_, (slots{3, 2, 1}));
    mapping *used = acquire(key_of(1));
    EXPECT_FALSE(cache_->close_idle(9, 0));
    cache_->release(used);
    EXPECT_FALSE(cache_->close_idle(9, 0)) << "idle since its release";
    EXPECT_TRUE(cache_->close_idle(10, 0));
}

TEST_F(MappingCache, DestructionClosesUnusedMappingsAndNoOthers)
{
    use_once(key_of(1));
    acquire(key_of(2));
    acquire(key_of(3));
    cache_.reset();
    EXPECT_EQ(closed_, (slots{1}));
    EXPECT_EQ(open_now_.size(), 2U);
}

TEST_F(MappingCache, RandomRoundsKeepToTheRules)
{
    constexpr std::size_t max_bytes = 20 * page;
    const std::uint64_t seed = any_seed();
    std::mt19937_64 random(seed);
    const auto below = [&random](std::uint64_t bound) {
        return static_cast<std::uint32_t>(random() % bound);
    };
    limit(max_bytes);
    std::vector<mapping *> held; // once per reference
    for (std::uint32_t round = 1; round <= 10000; ++round) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
        const std::uint32_t what = below(100);
        if (what < 55) {
            const mapping_key key = key_of(below(6), 1 + below(3), below(2), below(2));
            const auto is_it = [&](const mapping *each) { return each->key == key; };
            const auto known = std::find_if(held.begin(), held.end(), is_it);
            fail(0 == below(10) ? 1 : 0, status::no_memory);
            mapping *got = nullptr;
            const status s = try_acquire(key, key.slot * page, (1 + key.slot) * page, &got);
            ASSERT_EQ(s == status::not_found, known != held.end() && (*known)->stale);
            if (status::ok == s) {
                ASSERT_EQ(got->key, key) << "each part of a key counts";
                ASSERT_TRUE(known == held.end() || *known == got);
                held.push_back(got);
            }
        } else if (what < 95 && !held.empty()) {
            std::swap(held[below(held.size())], held.back());
            cache_->release(held.back());
            held.pop_back();
        } else {
            const std::uint64_t generation = below(4); // 0: all
            cache_->invalidate(below(2), [=](const mapping_key &key) {
                return 0 == generation || key.generation == generation;
            });
        }
        std::map<const mapping *, std::uint32_t> references;
        for (const mapping *each : held) {
            ++references[each];
        }
        for (const auto &[each, count] : references) {
            ASSERT_EQ(each->references, count);
            ASSERT_EQ(open_now_.count(each->local_base), 1U) << "one in use was closed";
        }
        std::size_t bytes = 0;
        for (const auto &[local_base, key] : open_now_) {
            bytes += (1 + key.slot) * page;
        }
        ASSERT_EQ(cache_->statistics().entries, open_now_.size());
        ASSERT_EQ(cache_->statistics().bytes, bytes);
        ASSERT_TRUE(bytes <= max_bytes || open_now_.size() == references.size())
            << "one that nobody uses stays above the bound";
    }
}

} // namespace
