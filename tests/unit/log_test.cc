// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// log_test.cc: what base/ promises: the log, the words of a status, the optional mutex.
#include "opal/mca/btl/gpusm/base/lock.h"
#include "opal/mca/btl/gpusm/base/log.h"
#include "opal/mca/btl/gpusm/base/status.h"

#include "tests/unit/shm_support.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

TEST(Log, TheSinkGetsTheFormattedLineWithoutANewline)
{
    log_capture log;
    log_line(log_level::error, "%s has %d", "slot", 7);
    EXPECT_EQ(log.text(), "slot has 7\n");
}

TEST(Log, ALineAboveTheThresholdIsDropped)
{
    log_capture log(log_level::warn);
    log_line(log_level::info, "not for you");
    log_line(log_level::warn, "for you");
    EXPECT_EQ(log.text(), "for you\n");
}

TEST(Log, ATooLongLineIsCutAndNotOverrun)
{
    log_capture log;
    const std::string long_text(5000, 'x');
    log_line(log_level::error, "%s", long_text.c_str());
    const std::string got = log.text();
    EXPECT_GE(got.size(), 512U);
    EXPECT_LT(got.size(), long_text.size());
    EXPECT_EQ(got.find_first_not_of('x'), got.size() - 1) << "only the newline of text()";
}

TEST(Log, ANullSinkRestoresTheOneThatWritesToStderr)
{
    {
        log_capture log(log_level::error);
    }
    testing::internal::CaptureStderr();
    log_line(log_level::warn, "to %s", "stderr");
    log_line(log_level::info, "too quiet");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "gpusm: to stderr\n");
}

TEST(Log, LinesOfSeveralThreadsArriveWhole)
{
    log_capture log;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([] {
            for (int line = 0; line < 100; ++line) {
                log_line(log_level::warn, "%s", "whole");
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    std::string expected;
    for (int line = 0; line < 400; ++line) {
        expected += "whole\n";
    }
    EXPECT_EQ(log.text(), expected);
}

TEST(Status, EveryAnswerHasWordsOfItsOwn)
{
    std::set<std::string> words;
    int answers = 0;
    for (int value = 0; value <= static_cast<int>(status::system_failed); ++value, ++answers) {
        words.insert(to_string(static_cast<status>(value)));
    }
    EXPECT_EQ(words.size(), static_cast<std::size_t>(answers));
    EXPECT_EQ(words.count("unknown status"), 0U);
}

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
