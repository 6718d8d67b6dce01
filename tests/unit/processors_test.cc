// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/processors.h"

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

TEST(Processors, ManyProcessesCrowdAMachine)
{
    const auto processors = static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN));
    for (const bool bound : {false, true}) {
        EXPECT_FALSE(is_oversubscribed(1, bound));
        EXPECT_TRUE(is_oversubscribed(processors + 1, bound));
    }
    EXPECT_FALSE(is_oversubscribed(processors, true));
}

TEST(Processors, ProcessesThatAreNotBoundShareThoseThatThisOneMayUse)
{
    cpu_set_t usual;
    ASSERT_EQ(0, sched_getaffinity(0, sizeof(usual), &usual));
    const auto all = static_cast<std::size_t>(CPU_COUNT(&usual));
    EXPECT_FALSE(is_oversubscribed(all, false));
    int lowest = 0;
    while (!CPU_ISSET(lowest, &usual)) {
        ++lowest;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(lowest, &one);
    ASSERT_EQ(0, sched_setaffinity(0, sizeof(one), &one));
    EXPECT_TRUE(is_oversubscribed(2, false));
    EXPECT_EQ(is_oversubscribed(2, true), sysconf(_SC_NPROCESSORS_ONLN) < 2);
    ASSERT_EQ(0, sched_setaffinity(0, sizeof(usual), &usual));
}

} // namespace
