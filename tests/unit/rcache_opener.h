// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_opener.h: the stand-in for the driver, and the fixture around it, of the tests of
// rcache_gpusm_cache.h.
#ifndef GPUSM_TESTS_RCACHE_OPENER_H
#define GPUSM_TESTS_RCACHE_OPENER_H

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/rcache/gpusm/rcache_gpusm_cache.h"

using gpusm::cache_limits;
using gpusm::mapping;
using gpusm::mapping_cache;
using gpusm::mapping_key;
using gpusm::status;

inline constexpr std::uint64_t page = 0x1000;

inline std::vector<std::string> logged;

inline void keep_line(gpusm::log_level, const char *line)
{
    logged.emplace_back(line);
}

// Stands for the driver: hands out addresses, and knows what is open.
struct opener {
    std::map<std::uint64_t, mapping_key> open_now; // by local base
    std::vector<std::uint32_t> closed_slots;       // in the order of closing
    int opens = 0;
    int failures_left = 0;
    status failure = status::driver_failed;
    const void *last_argument = nullptr;

    static status open(void *context, const mapping_key &key, std::uint64_t, std::uint64_t,
                       const void *argument, std::uint64_t *local_base)
    {
        auto &self = *static_cast<opener *>(context);
        self.opens++;
        self.last_argument = argument;
        if (self.failures_left > 0) {
            self.failures_left--;
            return self.failure;
        }
        *local_base = 0x700000000000 + page * static_cast<std::uint64_t>(self.opens);
        self.open_now.emplace(*local_base, key);
        return status::ok;
    }

    static void close(void *context, const mapping_key &key, std::uint64_t local_base)
    {
        auto &self = *static_cast<opener *>(context);
        const auto at = self.open_now.find(local_base);
        ASSERT_NE(at, self.open_now.end()) << "closed what was not open";
        EXPECT_TRUE(at->second == key);
        self.open_now.erase(at);
        self.closed_slots.push_back(key.slot);
    }

    gpusm::mapping_callbacks callbacks() { return {this, open, close}; }
};

inline mapping_key key_of(std::uint32_t slot, std::uint64_t generation = 1, std::uint32_t owner = 0,
                          std::uint32_t device = 0)
{
    return {owner, device, slot, generation};
}

class MappingCache : public testing::Test {
  protected:
    void SetUp() override
    {
        logged.clear();
        gpusm::log_install(keep_line, gpusm::log_level::warn);
    }

    void TearDown() override { gpusm::log_install(nullptr, gpusm::log_level::warn); }

    void limit(std::size_t entries, std::size_t bytes)
    {
        cache = std::make_unique<mapping_cache>(driver.callbacks(), cache_limits{entries, bytes});
    }

    mapping *acquire(const mapping_key &key, std::uint64_t base, std::uint64_t len_bytes = page)
    {
        mapping *got = nullptr;
        EXPECT_EQ(cache->acquire(key, base, len_bytes, nullptr, &got), status::ok);
        return got;
    }

    void use_once(const mapping_key &key, std::uint64_t base, std::uint64_t len_bytes = page)
    {
        cache->release(acquire(key, base, len_bytes));
    }

    opener driver;
    std::unique_ptr<mapping_cache> cache =
        std::make_unique<mapping_cache>(driver.callbacks(), cache_limits{0, 0});
};

#endif
