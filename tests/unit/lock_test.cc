// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// lock_test.cc: the mutex that does nothing in a program with one thread.
#include "opal/mca/btl/gpusm/base/lock.h"

#include <mutex>
#include <thread>

#include <gtest/gtest.h>

namespace {

using gpusm::optional_mutex;

bool another_thread_gets(optional_mutex &mutex)
{
    bool got = false;
    std::thread([&] {
        const std::unique_lock guard(mutex, std::try_to_lock);
        got = guard.owns_lock();
    }).join();
    return got;
}

TEST(OptionalMutex, WithThreadsOneHoldsItAndNobodyElseGetsIt)
{
    optional_mutex mutex(true);
    {
        const std::lock_guard guard(mutex);
        EXPECT_FALSE(another_thread_gets(mutex));
    }
    EXPECT_TRUE(another_thread_gets(mutex)) << "it was given back";
    EXPECT_TRUE(another_thread_gets(mutex)) << "by the one that tried, too";
    ASSERT_TRUE(mutex.try_lock());
    EXPECT_FALSE(another_thread_gets(mutex));
    mutex.unlock();
}

TEST(OptionalMutex, WithoutThreadsItIsAlwaysFree)
{
    optional_mutex mutex(false);
    const std::lock_guard guard(mutex);
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
    EXPECT_TRUE(another_thread_gets(mutex));
}

} // namespace
