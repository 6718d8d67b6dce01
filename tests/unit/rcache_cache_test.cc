// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_cache_test.cc: what rcache_gpusm_cache.h promises, against an opener that only counts.
#include "tests/unit/rcache_opener.h"

#include <algorithm>
#include <string>
#include <vector>

namespace {

TEST_F(MappingCache, SecondAcquireOfAKeyIsAHitWithTheSameMapping)
{
    const int argument = 0;
    mapping *first = nullptr;
    ASSERT_EQ(cache->acquire(key_of(3), page, 4 * page, &argument, &first), status::ok);
    mapping *second = acquire(key_of(3), page, 4 * page);
    EXPECT_EQ(first, second);
    EXPECT_EQ(first->references, 2U);
    EXPECT_EQ(driver.opens, 1);
    EXPECT_EQ(driver.last_argument, &argument);
    EXPECT_EQ(driver.open_now.count(first->local_base), 1U);
    EXPECT_EQ(cache->statistics().hits, 1U);
    EXPECT_EQ(cache->statistics().misses, 1U);
    EXPECT_EQ(cache->statistics().bytes, 4 * page);
    EXPECT_EQ(cache->statistics().referenced, 1U);
    cache->release(first);
    EXPECT_EQ(cache->statistics().referenced, 1U);
    cache->release(second);
    EXPECT_EQ(cache->statistics().referenced, 0U);
    EXPECT_EQ(cache->statistics().entries, 1U);
}

TEST_F(MappingCache, UnusedMappingStaysOpenForTheNextUser)
{
    use_once(key_of(1), page);
    use_once(key_of(2), 2 * page);
    use_once(key_of(1), page);
    EXPECT_EQ(driver.opens, 2);
    EXPECT_TRUE(driver.closed_slots.empty());
}

TEST_F(MappingCache, PartOfAMappedAllocationIsAHit)
{
    mapping *whole = acquire(key_of(1), page, 8 * page);
    EXPECT_EQ(acquire(key_of(1), 3 * page, page), whole);
    EXPECT_EQ(acquire(key_of(1), 8 * page + page - 1, 1), whole);
    EXPECT_EQ(driver.opens, 1);
    for (int i = 0; i < 3; i++) {
        cache->release(whole);
    }
}

TEST_F(MappingCache, RangeOutsideOfItsOwnMappingIsAPeersMistake)
{
    mapping *used = acquire(key_of(1), 4 * page, page);
    mapping *untouched = used + 1;
    mapping *out = untouched;
    EXPECT_EQ(cache->acquire(key_of(1), 4 * page, page + 1, nullptr, &out), status::bad_peer);
    EXPECT_EQ(cache->acquire(key_of(1), 4 * page - 1, 2, nullptr, &out), status::bad_peer);
    EXPECT_EQ(cache->acquire(key_of(1), 9 * page, page, nullptr, &out), status::bad_peer);
    EXPECT_EQ(out, untouched);
    EXPECT_EQ(used->references, 1U);
    cache->release(used);
}

TEST_F(MappingCache, EmptyAndWrappingRangesAreRefused)
{
    mapping *out = nullptr;
    EXPECT_EQ(cache->acquire(key_of(1), page, 0, nullptr, &out), status::bad_argument);
    EXPECT_EQ(cache->acquire(key_of(1), ~0ULL, 2, nullptr, &out), status::bad_argument);
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(driver.opens, 0);
    use_once(key_of(1), ~0ULL, 1);
    use_once(key_of(2), 0, ~0ULL);
    EXPECT_EQ(driver.closed_slots.size(), 0U);
}

TEST_F(MappingCache, StaleHandleAtSameAddressIsRemapped)
{
    mapping *first = acquire(key_of(5, 1), page);
    const std::uint64_t old_base = first->local_base;
    cache->release(first);
    mapping *second = acquire(key_of(5, 2), page);
    EXPECT_EQ(driver.opens, 2);
    EXPECT_EQ(driver.open_now.count(old_base), 0U);
    EXPECT_NE(second->local_base, old_base);
    EXPECT_EQ(cache->statistics().stale_closed, 1U);
    cache->release(second);
}

TEST_F(MappingCache, SameSlotWithAnotherGenerationIsClosedWhereverItWas)
{
    use_once(key_of(5, 1), page);
    use_once(key_of(5, 2), 99 * page);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{5}));
    EXPECT_EQ(cache->statistics().entries, 1U);
}

TEST_F(MappingCache, EveryOneOfSeveralOverlappedMappingsIsClosed)
{
    for (std::uint32_t slot = 0; slot < 6; slot++) {
        use_once(key_of(slot), 10 * page + slot * page);
    }
    // From the middle of slot 1 to the first byte of slot 4: 0 and 5 are not touched.
    use_once(key_of(9), 11 * page + page / 2, 2 * page + page / 2 + 1);
    std::sort(driver.closed_slots.begin(), driver.closed_slots.end());
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1, 2, 3, 4}));
    EXPECT_EQ(cache->statistics().stale_closed, 4U);
    const int opens = driver.opens;
    use_once(key_of(0), 10 * page);
    use_once(key_of(5), 15 * page);
    EXPECT_EQ(driver.opens, opens);
}

TEST_F(MappingCache, LargeOlderMappingAroundTheNewcomerIsClosed)
{
    use_once(key_of(1), page, 100 * page);
    use_once(key_of(2), 50 * page, page);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1}));
}

TEST_F(MappingCache, OtherOwnersAndDevicesAtTheSameAddressAreLeftAlone)
{
    use_once(key_of(1, 1, 0, 0), page);
    use_once(key_of(1, 1, 1, 0), page);
    use_once(key_of(1, 1, 0, 1), page);
    use_once(key_of(1, 2, 0, 0), page);
    EXPECT_EQ(driver.closed_slots.size(), 1U);
    EXPECT_EQ(cache->statistics().entries, 3U);
}

TEST_F(MappingCache, MappingInUseIsNeverClosed)
{
    limit(1, page);
    mapping *used = acquire(key_of(1, 1), page);
    const std::uint64_t local = used->local_base;
    mapping *overlapping = acquire(key_of(2), page);            // contradicts it
    mapping *next_generation = acquire(key_of(1, 2), 9 * page); // has its slot
    cache->drop_owner(0);
    EXPECT_EQ(driver.open_now.count(local), 1U);
    EXPECT_TRUE(driver.closed_slots.empty());
    EXPECT_TRUE(used->stale);
    EXPECT_EQ(used->local_base, local);
    cache->release(used);
    EXPECT_EQ(driver.open_now.count(local), 0U);
    cache->release(overlapping);
    cache->release(next_generation);
    EXPECT_TRUE(driver.open_now.empty());
}

TEST_F(MappingCache, StaleMappingIsNotGivenOutAgain)
{
    mapping *old = acquire(key_of(1), page);
    cache->drop_owner(0);
    mapping *fresh = acquire(key_of(1), page);
    EXPECT_NE(old, fresh);
    EXPECT_EQ(driver.opens, 2);
    cache->release(old);
    EXPECT_EQ(driver.open_now.size(), 1U);
    cache->release(fresh);
    EXPECT_EQ(driver.open_now.size(), 1U);
}

TEST_F(MappingCache, LeastRecentlyUsedIsEvictedFirst)
{
    limit(3, 0);
    use_once(key_of(1), 1 * page);
    use_once(key_of(2), 2 * page);
    use_once(key_of(3), 3 * page);
    use_once(key_of(1), 1 * page);
    use_once(key_of(4), 4 * page);
    use_once(key_of(5), 5 * page);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{2, 3}));
    EXPECT_EQ(cache->statistics().evictions, 2U);
    EXPECT_EQ(cache->statistics().entries, 3U);
}

TEST_F(MappingCache, EntryLimitCountsTheNewcomerBeforeItIsOpened)
{
    limit(2, 0);
    use_once(key_of(1), 1 * page);
    use_once(key_of(2), 2 * page);
    driver.failures_left = 1;
    driver.failure = status::unsupported;
    mapping *out = nullptr;
    EXPECT_EQ(cache->acquire(key_of(3), 3 * page, page, nullptr, &out), status::unsupported);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1}));
}

TEST_F(MappingCache, ByteLimitHolds)
{
    limit(0, 10 * page);
    use_once(key_of(1), 0, 4 * page);
    use_once(key_of(2), 10 * page, 4 * page);
    use_once(key_of(3), 20 * page, 2 * page);
    EXPECT_TRUE(driver.closed_slots.empty());
    use_once(key_of(4), 30 * page, 1);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1}));
    EXPECT_EQ(cache->statistics().bytes, 6 * page + 1);
}

TEST_F(MappingCache, LimitsAreExceededByMappingsInUseOnly)
{
    limit(2, 3 * page);
    std::vector<mapping *> used;
    for (std::uint32_t slot = 0; slot < 5; slot++) {
        used.push_back(acquire(key_of(slot), slot * page));
    }
    EXPECT_EQ(cache->statistics().entries, 5U);
    for (mapping *entry : used) {
        cache->release(entry);
    }
    EXPECT_EQ(cache->statistics().entries, 2U);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{0, 1, 2}));
}

TEST_F(MappingCache, MappingLargerThanTheByteLimitIsClosedAtItsRelease)
{
    limit(0, page);
    mapping *large = acquire(key_of(1), 0, 2 * page);
    EXPECT_EQ(driver.open_now.size(), 1U);
    cache->release(large);
    EXPECT_TRUE(driver.open_now.empty());
    EXPECT_EQ(cache->statistics().bytes, 0U);
}

TEST_F(MappingCache, OpenFailingOnceSucceedsAfterEviction)
{
    use_once(key_of(1), 1 * page);
    use_once(key_of(2), 2 * page);
    mapping *used = acquire(key_of(3), 3 * page);
    driver.failures_left = 1;
    driver.failure = status::no_memory;
    mapping *fresh = acquire(key_of(4), 4 * page);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1, 2}));
    cache->release(used);
    cache->release(fresh);
}

TEST_F(MappingCache, OpenIsNotRepeatedWhenNothingCouldBeEvicted)
{
    mapping *used = acquire(key_of(1), page);
    driver.failures_left = 1;
    mapping *out = used;
    EXPECT_EQ(cache->acquire(key_of(2), 2 * page, page, nullptr, &out), status::driver_failed);
    EXPECT_EQ(out, used);
    EXPECT_EQ(driver.opens, 2);
    cache->release(used);
}

TEST_F(MappingCache, OpenIsRepeatedOnlyOnceAndOnlyForLackOfResources)
{
    use_once(key_of(1), page);
    driver.failures_left = 2;
    driver.failure = status::no_memory;
    mapping *out = nullptr;
    EXPECT_EQ(cache->acquire(key_of(2), 2 * page, page, nullptr, &out), status::no_memory);
    EXPECT_EQ(driver.opens, 3);
    EXPECT_EQ(cache->statistics().entries, 0U);

    use_once(key_of(1), page);
    driver.opens = 0;
    for (const status failure : {status::not_found, status::unsupported, status::driver_failed}) {
        driver.opens = 0;
        driver.failures_left = 1;
        driver.failure = failure;
        EXPECT_EQ(cache->acquire(key_of(2), 2 * page, page, nullptr, &out), failure);
        EXPECT_EQ(driver.opens, 1);
        EXPECT_EQ(cache->statistics().entries, 1U);
        EXPECT_EQ(out, nullptr);
    }
}

TEST_F(MappingCache, FailedOpenLeavesNothingBehind)
{
    driver.failures_left = 1;
    mapping *out = nullptr;
    EXPECT_NE(cache->acquire(key_of(1), page, page, nullptr, &out), status::ok);
    EXPECT_EQ(cache->statistics().entries, 0U);
    EXPECT_EQ(cache->statistics().bytes, 0U);
    use_once(key_of(1), page);
    EXPECT_EQ(driver.opens, 2);
}

TEST_F(MappingCache, DropOwnerClosesUnusedNowAndUsedAtTheLastRelease)
{
    use_once(key_of(1, 1, 7), page);
    mapping *used = acquire(key_of(2, 1, 7), 2 * page);
    mapping *again = acquire(key_of(2, 1, 7), 2 * page);
    use_once(key_of(3, 1, 8), page);
    use_once(key_of(4, 1, 6), page);
    cache->drop_owner(7);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1}));
    cache->release(used);
    EXPECT_EQ(driver.closed_slots.size(), 1U);
    cache->release(again);
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1, 2}));
    EXPECT_EQ(cache->statistics().entries, 2U);
    EXPECT_EQ(cache->statistics().stale_closed, 2U);
}

TEST_F(MappingCache, InvalidateAsksOnlyAboutThatOwnerAndClosesWhatMatches)
{
    for (std::uint32_t slot = 0; slot < 4; slot++) {
        use_once(key_of(slot, slot + 1, 1), slot * page);
        use_once(key_of(slot, slot + 1, 2), slot * page);
    }
    std::uint64_t oldest_valid = 3;
    cache->invalidate(
        1,
        [](void *argument, const mapping_key &key) {
            EXPECT_EQ(key.owner, 1U);
            return key.generation < *static_cast<std::uint64_t *>(argument);
        },
        &oldest_valid);
    std::sort(driver.closed_slots.begin(), driver.closed_slots.end());
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{0, 1}));
    EXPECT_EQ(cache->statistics().entries, 6U);
}

TEST_F(MappingCache, MappingThatNobodyUsesForMoreThanSomeEpochsIsClosed)
{
    use_once(key_of(1), 1 * page);
    EXPECT_FALSE(cache->close_idle(0)) << "not in the epoch of its last use";
    cache->begin_epoch();
    use_once(key_of(2), 2 * page);
    cache->begin_epoch();
    EXPECT_FALSE(cache->close_idle(2));
    cache->begin_epoch();
    EXPECT_TRUE(cache->close_idle(2));
    EXPECT_FALSE(cache->close_idle(2));
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1}));
    EXPECT_EQ(cache->statistics().evictions, 1U);
}

TEST_F(MappingCache, IdleMappingsAreClosedOneByOneLeastRecentlyUsedFirst)
{
    for (const std::uint32_t slot : {3, 1, 2, 1}) {
        use_once(key_of(slot), slot * page);
    }
    cache->begin_epoch();
    while (cache->close_idle(0)) {
    }
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{3, 2, 1}));
}

TEST_F(MappingCache, MappingInUseIsNotIdleUntilItsRelease)
{
    mapping *used = acquire(key_of(1), page);
    for (int i = 0; i < 9; i++) {
        cache->begin_epoch();
    }
    EXPECT_FALSE(cache->close_idle(0));
    cache->release(used);
    EXPECT_FALSE(cache->close_idle(0));
    cache->begin_epoch();
    EXPECT_TRUE(cache->close_idle(0));
    use_once(key_of(1), page);
    EXPECT_EQ(driver.opens, 2);
}

TEST_F(MappingCache, DestructionClosesUnusedMappingsAndReportsTheRest)
{
    use_once(key_of(1), page);
    acquire(key_of(2), 2 * page);
    acquire(key_of(3), 3 * page);
    cache->drop_owner(99);
    cache.reset();
    EXPECT_EQ(driver.closed_slots, (std::vector<std::uint32_t>{1}));
    EXPECT_EQ(driver.open_now.size(), 2U);
    ASSERT_EQ(logged.size(), 1U);
    EXPECT_NE(logged[0].find("2 mapping"), std::string::npos) << logged[0];
}

TEST_F(MappingCache, OneReleaseTooManyIsReportedAndIgnored)
{
    mapping *entry = acquire(key_of(1), page);
    cache->release(entry);
    cache->release(entry);
    EXPECT_EQ(logged.size(), 1U);
    use_once(key_of(1), page);
    EXPECT_EQ(driver.opens, 1);
}

} // namespace
