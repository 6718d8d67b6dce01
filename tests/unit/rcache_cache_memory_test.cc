// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_cache_memory_test.cc: when the cache allocates memory, and what it says when there is
// none.
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"

#include <cstdint>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

namespace {

int allocations = 0;
bool memory_is_gone = false;

void *counted(std::size_t len_bytes)
{
    allocations++;
    void *memory = memory_is_gone ? nullptr : std::malloc(len_bytes);
    if (memory == nullptr) {
        throw std::bad_alloc{};
    }
    return memory;
}

} // namespace

void *operator new(std::size_t len_bytes)
{
    return counted(len_bytes);
}

void operator delete(void *memory) noexcept
{
    std::free(memory);
}

void operator delete(void *memory, std::size_t) noexcept
{
    std::free(memory);
}

namespace {

using gpusm::mapping;
using gpusm::mapping_cache;
using gpusm::mapping_key;
using gpusm::status;

constexpr std::uint64_t page = 0x1000;

mapping_key key_of(std::uint32_t slot, std::uint64_t generation = 1)
{
    return {0, slot, generation, 0, 0};
}

// Opens and closes without touching the heap.
gpusm::mapping_callbacks silent_callbacks()
{
    return {nullptr,
            [](void *, const mapping_key &, std::uint64_t, std::uint64_t, const void *,
               std::uint64_t *local_base) {
                *local_base = page;
                return status::ok;
            },
            [](void *, const mapping_key &, std::uint64_t) {}};
}

TEST(MappingCacheMemory, SteadyStateAllocatesNothing)
{
    mapping_cache cache(silent_callbacks(), {4, 0});
    int allocations_before = 0;
    for (std::uint32_t round = 0; round < 100; round++) {
        if (round == 10) {
            allocations_before = allocations;
        }
        mapping *entry = nullptr;
        ASSERT_EQ(
            cache.acquire(key_of(round % 8, round + 1), round % 8 * page, page, nullptr, &entry),
            status::ok);
        cache.release(entry);
        if (round % 16 == 0) {
            cache.drop_owner(0);
        }
    }
    EXPECT_EQ(allocations, allocations_before);
}

TEST(MappingCacheMemory, LackOfMemoryIsAnAnswer)
{
    memory_is_gone = true;
    mapping *entry = nullptr;
    mapping_cache cache(silent_callbacks(), {0, 0});
    const status without = cache.acquire(key_of(1), page, page, nullptr, &entry);
    memory_is_gone = false;
    EXPECT_EQ(without, status::no_memory);
    EXPECT_EQ(entry, nullptr);
    ASSERT_EQ(cache.acquire(key_of(1), page, page, nullptr, &entry), status::ok);
    cache.release(entry);
}

} // namespace
