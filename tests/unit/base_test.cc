// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base_test.cc: what base/ promises: the log, the optional mutex, the short copy, a component and
// an Open MPI that do not fit are told apart, and a machine without processors enough is.
#include "opal/mca/common/gpusm/base/abi.h"
#include "opal/mca/common/gpusm/base/c_entry.h"
#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/processors.h"
#include "opal/mca/common/gpusm/base/replaced_function.h"
#include "opal/mca/common/gpusm/base/short_copy.h"

#include "tests/unit/shm_support.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <netinet/in.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

TEST(Log, TheSinkGetsFormattedLinesWithoutANewlineUpToTheThreshold)
{
    const log_capture log(log_level::warn);
    log_line(log_level::info, "not for you");
    log_line(log_level::warn, "%s has %d", "slot", 7);
    EXPECT_EQ(log.text(), "slot has 7\n");
}

TEST(Log, WhatIsTriedAgainIsNoWarning)
{
    const log_capture log(log_level::warn);
    {
        const log_as_retry first(false);
        log_line(log_level::warn, "first");
        const log_as_retry again(true);
        {
            const log_as_retry inner(false);
            log_line(log_level::warn, "again");
        }
        log_line(log_level::warn, "once more");
        log_line(log_level::error, "bad");
        std::thread([] { log_line(log_level::warn, "other thread"); }).join();
    }
    log_line(log_level::warn, "after");
    EXPECT_EQ(log.text(), "first\nbad\nother thread\nafter\n");
}

TEST(Log, ATooLongLineIsCutAndNotOverrun)
{
    const log_capture log;
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
        const log_capture log(log_level::error);
    }
    testing::internal::CaptureStderr();
    log_line(log_level::warn, "to %s", "stderr");
    log_line(log_level::info, "too quiet");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "gpusm: to stderr\n");
}

TEST(Log, LinesOfSeveralThreadsArriveWhole)
{
    const log_capture log;
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
    const several_threads threads_are_used;
    optional_mutex mutex;
    {
        const std::lock_guard guard(mutex);
        EXPECT_FALSE(another_thread_gets(mutex));
    }
    EXPECT_TRUE(another_thread_gets(mutex)) << "it was given back";
    ASSERT_TRUE(mutex.try_lock()) << "by the one that tried, too";
    EXPECT_FALSE(another_thread_gets(mutex));
    mutex.unlock();
}

TEST(OptionalMutex, WithoutThreadsTheOneThatThereIsGetsItOnce)
{
    optional_mutex mutex;
    for (int turn = 0; turn < 3; ++turn) {
        ASSERT_TRUE(mutex.try_lock());
        EXPECT_FALSE(mutex.try_lock());
        mutex.unlock();
        const std::lock_guard guard(mutex);
        EXPECT_FALSE(mutex.try_lock());
    }
    EXPECT_TRUE(mutex.lock_alone());
    mutex.unlock();
    const several_threads threads_are_used;
    EXPECT_FALSE(mutex.lock_alone());
    EXPECT_TRUE(another_thread_gets(mutex));
}

template <typename Lock> class OptionalLock : public testing::Test {
};
using both_locks = testing::Types<optional_mutex, optional_flag>;
TYPED_TEST_SUITE(OptionalLock, both_locks);

TYPED_TEST(OptionalLock, WhatIsHeldWhenThreadsBeginIsHeldForThem)
{
    several_threads threads(false);
    TypeParam lock;
    ASSERT_TRUE(lock.try_lock());
    threads.begin();
    const auto another_gets_it = [&lock] {
        bool got = false;
        std::thread([&] {
            got = lock.try_lock();
            if (got) {
                lock.unlock();
            }
        }).join();
        return got;
    };
    EXPECT_FALSE(another_gets_it());
    EXPECT_FALSE(lock.try_lock()) << "nor by its holder";
    lock.unlock();
    EXPECT_TRUE(another_gets_it());
    ASSERT_TRUE(lock.try_lock());
    EXPECT_FALSE(another_gets_it()) << "now by the lock itself";
    lock.unlock();
    EXPECT_TRUE(another_gets_it());
}

TEST(OptionalMutex, WhoComesWhenThreadsBeginWaitsForTheThreadThatIsInside)
{
    several_threads threads(false);
    optional_mutex mutex;
    std::atomic<bool> inside{true};
    mutex.lock();
    std::thread second([&] {
        threads.begin();
        const std::lock_guard guard(mutex);
        EXPECT_FALSE(inside.load()) << "while the first one held it";
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // gives a fault its chance
    inside.store(false);
    mutex.unlock();
    second.join();
}

// The first thread locks and unlocks all the time, and the second one makes it two.
TYPED_TEST(OptionalLock, OneIsInsideAtATimeWhileThreadsBegin)
{
    constexpr int rounds = 100;
    constexpr int turns = 20; // of the second thread in a round
    const deadline end(60);
    int wrong = 0;
    for (int round = 0; round < rounds && !end.over(); ++round) {
        several_threads threads(false);
        TypeParam lock;
        int inside = 0; // guarded by the lock, so that a sanitizer sees it, too
        std::atomic<bool> first_runs{false};
        std::atomic<bool> over{false};
        const auto turn = [&] {
            if (!lock.try_lock()) {
                return false;
            }
            wrong += ++inside != 1 ? 1 : 0;
            std::atomic_signal_fence(std::memory_order_seq_cst);
            wrong += --inside != 0 ? 1 : 0;
            lock.unlock();
            return true;
        };
        std::thread first([&] {
            while (!over.load(std::memory_order_relaxed)) {
                if (!turn()) {
                    std::this_thread::yield();
                }
                first_runs.store(true, std::memory_order_relaxed);
            }
        });
        while (!first_runs.load()) {
            std::this_thread::yield();
        }
        threads.begin();
        for (int done = 0; done < turns && !end.over();) {
            done += turn() ? 1 : 0;
        }
        over.store(true);
        first.join();
    }
    EXPECT_FALSE(end.over());
    EXPECT_EQ(wrong, 0);
}

TEST(Tally, CountsTheSameWithoutThreadsAndWithThem)
{
    several_threads threads(false);
    tally<std::uint32_t> number;
    number.add(3);
    EXPECT_EQ(number.value(), 3U);
    threads.begin();
    std::thread another([&number] {
        for (int i = 0; i < 1000; ++i) {
            number.add(1);
        }
    });
    for (int i = 0; i < 1000; ++i) {
        number.add(~std::uint32_t{0}); // one less
    }
    another.join();
    EXPECT_EQ(number.value(), 3U);
    number.add(~std::uint32_t{0} - 2);
    EXPECT_EQ(number.value(), 0U);
}

int calls_of_original = 0;
int original_function()
{
    return ++calls_of_original;
}
replaced_function<int()> in_place;
int our_function()
{
    return in_place.original()();
}
int other_function()
{
    return our_function() + 1000;
}

TEST(ReplacedFunction, StandsInItsPlaceUntilItIsTakenBackOnlyOnceAndUnderWhatComesAfter)
{
    int (*entry)() = original_function;
    in_place.put(&entry, our_function);
    in_place.put(&entry, our_function);
    EXPECT_TRUE(in_place.stands());
    EXPECT_EQ(entry, our_function);
    EXPECT_EQ(entry(), 1);
    in_place.take_back(&entry, our_function);
    EXPECT_FALSE(in_place.stands());
    EXPECT_EQ(entry, original_function);
    EXPECT_EQ(our_function(), 2) << "by who has read the table before";
    in_place.put(&entry, our_function);
    entry = other_function;
    in_place.take_back(&entry, our_function);
    EXPECT_EQ(entry, other_function) << "somebody else's";
    EXPECT_EQ(entry(), 1003) << "who still calls ours";
    in_place.put(&entry, our_function);
    EXPECT_EQ(entry, other_function) << "or they would call each other for ever";
    entry = our_function;
    in_place.take_back(&entry, our_function);
    EXPECT_EQ(entry, original_function);
}

TEST(ReplacedFunction, MayBeCalledWhileItIsPutAndTakenBack)
{
    static int (*entry)() = +[] { return 5; };
    std::atomic<bool> over{false};
    std::atomic<long> calls{0};
    std::thread caller([&] {
        while (!over.load(std::memory_order_relaxed)) {
            EXPECT_EQ(std::atomic_ref(entry).load(std::memory_order_acquire)(), 5);
            calls.fetch_add(1, std::memory_order_relaxed);
        }
    });
    const deadline end(30);
    for (int turn = 0; (turn < 100000 || calls.load() < 1000) && !end.over(); ++turn) {
        in_place.put(&entry, our_function);
        in_place.take_back(&entry, our_function);
    }
    over.store(true);
    caller.join();
    EXPECT_GE(calls.load(), 1000);
}

TEST(ShortCopy, CopiesWhatItIsToldAndNothingElse)
{
    constexpr std::ptrdiff_t margin = 64; // around what is copied, and must stay as it is
    for (std::size_t len_bytes = 0; len_bytes <= 100; ++len_bytes) {
        for (std::ptrdiff_t offset = 0; offset < 8; ++offset) {
            // As long as the copy, so that a sanitizer sees what is read beside it.
            std::vector<unsigned char> from(len_bytes);
            std::iota(from.begin(), from.end(), static_cast<unsigned char>(1));
            std::vector<unsigned char> to(len_bytes + 2 * margin, 0xee);
            std::vector<unsigned char> expected = to;
            std::copy(from.begin(), from.end(), expected.begin() + margin + offset);
            short_copy(to.data() + margin + offset, from.data(), len_bytes);
            ASSERT_TRUE(to == expected) << len_bytes << " bytes, offset " << offset;
        }
    }
}

TEST(Processors, ManyProcessesCrowdAMachineOrWhatThisOneMayUseOfIt)
{
    const auto online = static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN));
    cpu_set_t usual;
    ASSERT_EQ(0, sched_getaffinity(0, sizeof(usual), &usual));
    EXPECT_FALSE(is_oversubscribed(static_cast<std::size_t>(CPU_COUNT(&usual)), false));
    EXPECT_FALSE(is_oversubscribed(online, true));
    for (const bool bound : {false, true}) {
        EXPECT_FALSE(is_oversubscribed(1, bound));
        EXPECT_TRUE(is_oversubscribed(online + 1, bound));
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(0, sched_setaffinity(0, sizeof(one), &one));
    EXPECT_TRUE(is_oversubscribed(2, false));
    EXPECT_EQ(is_oversubscribed(2, true), online < 2);
    ASSERT_EQ(0, sched_setaffinity(0, sizeof(usual), &usual));
}

TEST(Abi, ALibraryFitsOfWhichMinorVersionCudaAndLengthsAreTheSame)
{
    const abi_part fitting[] = {{"asked", 16, 16}, {"silent", 16, 0}};
    const abi_part other[] = {{"fits", 16, 16}, {"grown", 16, 24}};
    struct {
        abi_library library;
        std::span<const abi_part> parts;
        const char *difference; // part of the answer; null: they fit
    } const table[] = {
        {{"5.0.7", true}, fitting, nullptr},
        {{"5.0.10", true}, fitting, nullptr},
        {{"Open MPI v5.0.8rc1, packaged by you", true}, fitting, nullptr},
        {{"gitclone", true}, fitting, nullptr}, // the soname tells
        {{"5.1.0", true}, fitting, "5.1.0"},
        {{"6.0.7", true}, fitting, "6.0.7"},
        {{"v15.0.7", true}, fitting, "15.0.7"},
        {{"5.0.7", false}, fitting, "without CUDA"},
        {{"5.0.9", true}, other, "grown has 24 bytes instead of 16"},
    };
    for (const auto &[library, parts, difference] : table) {
        const std::string why = abi_difference({"5.0.7", true}, library, parts);
        EXPECT_EQ(why.empty(), nullptr == difference) << library.version << ": " << why;
        EXPECT_NE(why.find(nullptr == difference ? "" : difference), std::string::npos) << why;
    }
}

TEST(Abi, ALibraryTellsTheLengthOfTheVariablesThatItHas)
{
    const int local = 0;
    EXPECT_EQ(length_of_variable("in6addr_any"), sizeof(in6addr_any));
    EXPECT_EQ(length_of_variable(&in6addr_any), sizeof(in6addr_any));
    EXPECT_EQ(length_of_variable("gpusm_no_such_variable"), 0U);
    EXPECT_EQ(length_of_variable(&local), 0U);
    EXPECT_EQ(length_of_variable(static_cast<const void *>(nullptr)), 0U);
}

// A table of Open MPI's takes no function that an exception could leave.
template <typename Function> constexpr bool can_be_entered = requires(Function *function)
{
    gpusm::entry(function);
};
static_assert(can_be_entered<int(int) noexcept>);
static_assert(!can_be_entered<int(int)>);

} // namespace
