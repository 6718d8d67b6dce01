// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// process_test.cc: btl_gpusm_process.h: who sees a process sees all that has been told of it. A
// wrong order of the stores is for ThreadSanitizer to see, and for processors that do not keep it.
#include "opal/mca/btl/gpusm/btl_gpusm_process.h"

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

struct process {
    int number;
};

TEST(KnownProcess, IsToldAndWithdrawn)
{
    process one{1};
    process again{2};
    known_process<process> known;
    EXPECT_EQ(nullptr, known.get());
    known.tell(&one, true);
    EXPECT_EQ(&one, known.get());
    EXPECT_TRUE(known.shares_pids());
    known.withdraw();
    EXPECT_EQ(nullptr, known.get());
    known.tell(&again, true);
    EXPECT_EQ(&again, known.get());
    EXPECT_TRUE(known.shares_pids());
}

TEST(KnownProcess, InAnotherNamespaceSharesNoPids)
{
    process one{1};
    known_process<process> known;
    known.tell(&one, false);
    EXPECT_EQ(&one, known.get());
    EXPECT_FALSE(known.shares_pids());
}

// One thread adds processes, and one polls, which may hear from each before it has been told.
TEST(KnownProcess, WhoPollsSeesAllThatHasBeenTold)
{
    constexpr std::size_t processes = 20000;
    std::vector<known_process<process>> known(processes);
    std::vector<process> all(processes);
    std::atomic<std::size_t> polled{0};
    std::size_t wrong = 0;
    std::thread adds([&] {
        for (std::size_t i = 0; i < processes; ++i) {
            all[i].number = static_cast<int>(i);
            while (polled.load(std::memory_order_relaxed) < i) {
            }
            known[i].tell(&all[i], true);
        }
    });
    for (std::size_t i = 0; i < processes; ++i) {
        polled.store(i, std::memory_order_relaxed); // so that both are about the same one
        const process *seen = nullptr;
        while (nullptr == seen) {
            seen = known[i].get();
        }
        wrong += known[i].shares_pids() && static_cast<int>(i) == seen->number ? 0 : 1;
    }
    adds.join();
    EXPECT_EQ(0U, wrong);
}

} // namespace
