// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/processors.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gpusm {
namespace {

std::size_t processors_of_this_process()
{
    cpu_set_t own;
    EXPECT_EQ(0, sched_getaffinity(0, sizeof(own), &own));
    return static_cast<std::size_t>(CPU_COUNT(&own));
}

// The lowest processor that this process may run on, alone.
cpu_set_t one_processor()
{
    cpu_set_t own;
    EXPECT_EQ(0, sched_getaffinity(0, sizeof(own), &own));
    int lowest = 0;
    while (lowest < CPU_SETSIZE && !CPU_ISSET(lowest, &own)) {
        ++lowest;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(lowest, &one);
    return one;
}

// A process that waits to be killed, and is, at the end.
class child {
  public:
    child() : pid_(fork())
    {
        if (0 == pid_) {
            for (;;) {
                pause();
            }
        }
    }
    ~child() { end(); }
    child(const child &) = delete;
    child &operator=(const child &) = delete;

    pid_t pid() const { return pid_; }
    void end()
    {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
            pid_ = -1;
        }
    }

  private:
    pid_t pid_;
};

TEST(Processors, ManyProcessesCrowdAMachine)
{
    const auto processors = static_cast<std::size_t>(sysconf(_SC_NPROCESSORS_ONLN));
    EXPECT_FALSE(is_oversubscribed(1));
    EXPECT_FALSE(is_oversubscribed(processors));
    EXPECT_TRUE(is_oversubscribed(processors + 1));
}

TEST(Processors, AreFewIfProcessesAreMore)
{
    const std::size_t processors = processors_of_this_process();
    const child other;
    ASSERT_GT(other.pid(), 0);
    EXPECT_FALSE(share_few_processors(other.pid(), processors));
    EXPECT_TRUE(share_few_processors(other.pid(), processors + 1));
}

TEST(Processors, OfAnotherProcessAreItsOwnIfItIsBound)
{
    if (processors_of_this_process() < 2) {
        GTEST_SKIP() << "needs two processors";
    }
    const child other;
    ASSERT_GT(other.pid(), 0);
    const cpu_set_t one = one_processor();
    ASSERT_EQ(0, sched_setaffinity(other.pid(), sizeof(one), &one));
    EXPECT_FALSE(share_few_processors(other.pid(), 1000));
}

TEST(Processors, OfNoProcessAreNotFew)
{
    child other;
    const pid_t gone = other.pid();
    ASSERT_GT(gone, 0);
    other.end();
    EXPECT_FALSE(share_few_processors(gone, 1000));
}

} // namespace
} // namespace gpusm
