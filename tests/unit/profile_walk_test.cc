// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// The stack walk of bench/profile, in the handler of a signal that the code under test raises.
#include "bench/profile/stack_walk.h"

#include <gtest/gtest.h>

#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>

namespace {

using gpusm::profile::walk_end;
using gpusm::profile::walk_goal;

constexpr unsigned frames_at_most = 64;

std::array<std::uintptr_t, frames_at_most> frames;
unsigned limit = frames_at_most;
unsigned depth = 0;
walk_end end = walk_end::cut;

void walk_here(int, siginfo_t *, void *context)
{
    depth = gpusm::profile::walk_stack(context, frames.data(), limit, &end);
}

void take(int signal, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(0, sigaction(signal, &action, nullptr));
}

// Code that is told by its section: the linker gives these two names.
extern "C" {
extern const char __start_probed[];
extern const char __stop_probed[];
}
bool is_probed(std::uintptr_t address)
{
    return address >= reinterpret_cast<std::uintptr_t>(__start_probed) &&
           address < reinterpret_cast<std::uintptr_t>(__stop_probed);
}
[[gnu::noinline, gnu::section("probed")]] int compare_and_interrupt(const void *, const void *)
{
    (void)std::raise(SIGUSR1);
    return 0;
}

// Calls compare_and_interrupt from within the C library.
void interrupt_under_qsort()
{
    int numbers[] = {2, 1};
    std::qsort(numbers, 2, sizeof(int), compare_and_interrupt);
}

class ProfileWalk : public ::testing::Test {
  protected:
    void SetUp() override
    {
#if defined(__SANITIZE_THREAD__)
        GTEST_SKIP() << "ThreadSanitizer delivers signals when it likes";
#endif
        limit = frames_at_most;
        take(SIGUSR1, walk_here);
    }
    void TearDown() override
    {
        if (!IsSkipped()) {
            gpusm::profile::end_walks();
        }
    }
};

TEST_F(ProfileWalk, GoesThroughALibraryToTheProgramAndNoFarther)
{
    gpusm::profile::begin_walks(walk_goal::program);
    interrupt_under_qsort();
    ASSERT_GE(depth, 2U); // raise() is the C library's
    EXPECT_FALSE(is_probed(frames[0]));
    EXPECT_TRUE(is_probed(frames[depth - 1]));
    EXPECT_EQ(walk_end::there, end);
}

TEST_F(ProfileWalk, GoesOnFromTheProgramThroughTheLibraryThatCalledIt)
{
    gpusm::profile::begin_walks(walk_goal::outermost);
    interrupt_under_qsort();
    unsigned probed = 0;
    while (probed < depth && !is_probed(frames[probed])) {
        ++probed;
    }
    ASSERT_LT(probed, depth);
    EXPECT_GE(depth - probed, 4U); // qsort, interrupt_under_qsort, the test, main
    EXPECT_EQ(walk_end::there, end);
}

TEST_F(ProfileWalk, SaysThatFramesHadNoRoom)
{
    gpusm::profile::begin_walks(walk_goal::outermost);
    limit = 3;
    interrupt_under_qsort();
    EXPECT_EQ(3U, depth);
    EXPECT_EQ(walk_end::cut, end);
}

#if defined(__x86_64__)
// Its unwind table says that the caller is found at an address where no memory is.
extern "C" void interrupt_with_bad_tables();
asm(R"(
    .pushsection probed, "ax"
    .globl interrupt_with_bad_tables
    .type interrupt_with_bad_tables, @function
interrupt_with_bad_tables:
    .cfi_startproc
    .cfi_def_cfa %rax, 8
    movl $0x18, %eax
    int3
    ret
    .cfi_endproc
    .size interrupt_with_bad_tables, . - interrupt_with_bad_tables
    .popsection
)");

TEST_F(ProfileWalk, BadTablesCostTheCallersAndNothingElse)
{
    gpusm::profile::begin_walks(walk_goal::outermost);
    take(SIGTRAP, walk_here);
    for (int i = 0; i < 3; ++i) { // the way out leaves everything as it was
        depth = 0;
        interrupt_with_bad_tables();
        ASSERT_EQ(1U, depth);
        EXPECT_TRUE(is_probed(frames[0]));
        EXPECT_EQ(walk_end::lost, end);
    }
    interrupt_under_qsort();
    EXPECT_GE(depth, 4U);
    EXPECT_EQ(walk_end::there, end);
}
#endif

sigjmp_buf after_fault;
volatile int faults_seen = 0;

void programs_own_handler(int, siginfo_t *, void *)
{
    faults_seen = faults_seen + 1;
    siglongjmp(after_fault, 1);
}

TEST_F(ProfileWalk, FaultsOutsideOfAWalkGoWhereTheyWentBefore)
{
    faults_seen = 0;
    for (int signal : {SIGSEGV, SIGABRT}) {
        take(signal, programs_own_handler);
    }
    gpusm::profile::begin_walks(walk_goal::program);
    volatile std::uintptr_t nowhere = 0x18;
    if (0 == sigsetjmp(after_fault, 1)) {
        *reinterpret_cast<volatile int *>(nowhere) = 1;
    }
    EXPECT_EQ(1, faults_seen);
    if (0 == sigsetjmp(after_fault, 1)) {
        std::abort();
    }
    EXPECT_EQ(2, faults_seen);
}

} // namespace
