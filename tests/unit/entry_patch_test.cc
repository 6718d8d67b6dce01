// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// entry_patch_test.cc: functions that are patched while they are called: written by hand with the
// beginnings that CUDA drivers have, compiled, and the driver's own.
#include "opal/mca/btl/gpusm/gpu/entry_patch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__LP64__)

// Functions with known beginnings; each returns first + 3 * second.
extern "C" {
extern const std::uint64_t entry_test_three;
const std::uint64_t entry_test_three = 3;
std::uint64_t entry_test_as_in_a_driver(std::uint64_t first, std::uint64_t second);
std::uint64_t entry_test_with_a_distance(std::uint64_t first, std::uint64_t second);
std::uint64_t entry_test_with_endbr(std::uint64_t first, std::uint64_t second);
std::uint64_t entry_test_that_ends(std::uint64_t first, std::uint64_t second);
}
asm(R"(
    .text
    .balign 16
    .globl entry_test_as_in_a_driver
    .type entry_test_as_in_a_driver, @function
entry_test_as_in_a_driver:
    push %rbp
    mov %rsp, %rbp
    push %r12
    sub $8, %rsp
    mov %rsi, %r12
    lea (%rdi, %r12), %rax
    lea (%rax, %r12, 2), %rax
    add $8, %rsp
    pop %r12
    pop %rbp
    ret
    .balign 16
    .globl entry_test_with_a_distance
    .type entry_test_with_a_distance, @function
entry_test_with_a_distance:
    push %r12
    lea entry_test_three(%rip), %r12
    mov (%r12), %rax
    imul %rsi, %rax
    add %rdi, %rax
    pop %r12
    ret
    .balign 16
    .globl entry_test_with_endbr
    .type entry_test_with_endbr, @function
entry_test_with_endbr:
    endbr64
    mov entry_test_three(%rip), %rax
    imul %rsi, %rax
    add %rdi, %rax
    ret
    .balign 16
    .globl entry_test_that_ends
    .type entry_test_that_ends, @function
entry_test_that_ends:
    xor %eax, %eax
    ret
    .balign 16
)");

namespace {

using gpusm::entry_patch;
using gpusm::status;

using function = std::uint64_t (*)(std::uint64_t, std::uint64_t);

std::atomic<int> notices{0};
std::atomic<std::uint64_t> last_first{0};
std::atomic<std::uint64_t> last_second{0};

void note(std::uint64_t first, std::uint64_t second)
{
    last_first = first;
    last_second = second;
    ++notices;
}

void *address(function of)
{
    return reinterpret_cast<void *>(of);
}

std::array<unsigned char, 16> bytes_at(const void *entry)
{
    std::array<unsigned char, 16> bytes;
    std::memcpy(bytes.data(), entry, bytes.size());
    return bytes;
}

void install(entry_patch &patch, void *entry, gpusm::entry_notice notice)
{
    const char *why = "";
    ASSERT_EQ(status::ok, patch.install(entry, notice, &why)) << why;
    ASSERT_TRUE(patch.installed());
}

void refuse(void *entry)
{
    entry_patch patch;
    const char *why = nullptr;
    EXPECT_EQ(status::unsupported, patch.install(entry, note, &why));
    EXPECT_NE(nullptr, why);
    EXPECT_FALSE(patch.installed());
}

void is_told_of_calls(function called)
{
    void *const entry = address(called);
    const auto before = bytes_at(entry);
    notices = 0;
    {
        entry_patch patch;
        install(patch, entry, note);
        EXPECT_EQ(11u + 3 * 7, called(11, 7));
        EXPECT_EQ(1, notices);
        EXPECT_EQ(11u, last_first);
        EXPECT_EQ(7u, last_second);
        EXPECT_EQ(1u + 3 * 2, reinterpret_cast<function>(patch.original())(1, 2));
        EXPECT_EQ(1, notices) << "the original tells nobody";
        const auto after = bytes_at(entry);
        EXPECT_NE(before, after);
        EXPECT_TRUE(std::equal(before.begin() + gpusm::entry_jump_bytes, before.end(),
                               after.begin() + gpusm::entry_jump_bytes))
            << "more than the jump has changed";
    }
    EXPECT_EQ(before, bytes_at(entry));
    EXPECT_EQ(2u + 3 * 2, called(2, 2));
    EXPECT_EQ(1, notices) << "it is removed";
}

TEST(EntryPatch, CallsAreToldAndThenDoneAsBefore)
{
    is_told_of_calls(entry_test_as_in_a_driver);
    is_told_of_calls(entry_test_with_a_distance);
    is_told_of_calls(entry_test_with_endbr);
}

TEST(EntryPatch, ItCanBeInstalledAgain)
{
    for (int i = 0; i < 3; ++i) {
        is_told_of_calls(entry_test_as_in_a_driver);
    }
}

TEST(EntryPatch, WhatIsCalledByOriginalOutlivesThePatch)
{
    entry_patch patch;
    install(patch, address(entry_test_with_a_distance), note);
    const auto original = reinterpret_cast<function>(patch.original());
    patch.remove();
    EXPECT_FALSE(patch.installed());
    EXPECT_EQ(5u + 3 * 6, original(5, 6));
    patch.remove(); // nothing to do
}

std::atomic<std::uint64_t (*)(std::uint64_t)> of_one;
std::uint64_t plus_one(std::uint64_t value)
{
    return value + 1;
}

// Compiled: what it keeps over a call needs registers that it has to save first.
[[gnu::noinline, gnu::aligned(16)]] std::uint64_t of_six(std::uint64_t a, std::uint64_t b,
                                                         std::uint64_t c, std::uint64_t d,
                                                         std::uint64_t e, std::uint64_t f)
{
    const std::uint64_t first = of_one.load()(a);
    const std::uint64_t second = of_one.load()(b * c);
    return first * 1000 + second * 100 + d * 10 + e + f * 7 + of_one.load()(c);
}

TEST(EntryPatch, ACompiledFunctionGetsAllItsArguments)
{
    of_one = plus_one;
    const std::uint64_t expected = of_six(1, 2, 3, 4, 5, 6);
    notices = 0;
    entry_patch patch;
    install(patch, reinterpret_cast<void *>(of_six), note);
    EXPECT_EQ(expected, of_six(1, 2, 3, 4, 5, 6));
    EXPECT_EQ(1, notices);
    EXPECT_EQ(1u, last_first);
    EXPECT_EQ(2u, last_second);
}

TEST(EntryPatch, WhatCannotBePatchedSafelyIsRefused)
{
    const auto before = bytes_at(address(entry_test_that_ends));
    refuse(address(entry_test_that_ends));
    EXPECT_EQ(before, bytes_at(address(entry_test_that_ends)));
    // Not aligned; the second instruction of a function.
    refuse(reinterpret_cast<unsigned char *>(address(entry_test_as_in_a_driver)) + 1);
    // Data.
    alignas(16) static unsigned char data[16] = {0x55, 0x48, 0x89, 0xe5, 0x41, 0x54};
    refuse(data);
    // Code that somebody makes while the program runs.
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void *made =
        mmap(nullptr, page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (MAP_FAILED != made) {
        std::memcpy(made, data, sizeof(data));
        refuse(made);
        (void)munmap(made, page);
    }
}

TEST(EntryPatch, AFunctionThatIsPatchedIsRefused)
{
    entry_patch first;
    install(first, address(entry_test_as_in_a_driver), note);
    refuse(address(entry_test_as_in_a_driver));
    const char *why = nullptr;
    EXPECT_EQ(status::unsupported, first.install(address(entry_test_with_a_distance), note, &why));
    notices = 0;
    EXPECT_EQ(1u + 3, entry_test_as_in_a_driver(1, 1));
    EXPECT_EQ(1, notices) << "the first patch is unharmed";
}

// Writes as somebody else would, who patches the same function.
void overwrite(void *entry, const std::array<unsigned char, 16> &bytes)
{
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto at = reinterpret_cast<std::uintptr_t>(entry);
    void *const start = reinterpret_cast<void *>(at / page * page);
    ASSERT_EQ(0, mprotect(start, page, PROT_READ | PROT_WRITE | PROT_EXEC));
    std::memcpy(entry, bytes.data(), bytes.size());
    ASSERT_EQ(0, mprotect(start, page, PROT_READ | PROT_EXEC));
}

TEST(EntryPatch, AFunctionThatSomebodyElsePatchedLaterIsLeftAlone)
{
    void *const entry = address(entry_test_as_in_a_driver);
    const auto before = bytes_at(entry);
    entry_patch patch;
    install(patch, entry, note);
    // Their jump comes first, and leads to ours in the end.
    const auto ours = bytes_at(entry);
    std::int32_t distance = 0;
    std::memcpy(&distance, ours.data() + 1, sizeof(distance));
    const auto ours_by_them =
        reinterpret_cast<function>(reinterpret_cast<std::uintptr_t>(entry) +
                                   gpusm::entry_jump_bytes + static_cast<std::uintptr_t>(distance));
    auto theirs = ours;
    distance = static_cast<std::int32_t>(
        reinterpret_cast<std::uintptr_t>(address(entry_test_that_ends)) -
        (reinterpret_cast<std::uintptr_t>(entry) + gpusm::entry_jump_bytes));
    std::memcpy(theirs.data() + 1, &distance, sizeof(distance));
    overwrite(entry, theirs);
    notices = 0;
    EXPECT_EQ(1u + 3, ours_by_them(1, 1));
    EXPECT_EQ(1, notices);
    patch.remove();
    EXPECT_EQ(theirs, bytes_at(entry));
    EXPECT_EQ(1u + 3, ours_by_them(1, 1)) << "they still need what they found there";
    EXPECT_EQ(1, notices);
    EXPECT_EQ(0u, entry_test_as_in_a_driver(1, 1)) << "that is theirs";
    overwrite(entry, before);
}

std::atomic<int> waiting{0};
std::atomic<bool> let_go{false};

// Stays in the middle of a call until it is let go.
[[gnu::noinline, gnu::aligned(16)]] std::uint64_t slow(std::uint64_t first, std::uint64_t second)
{
    const std::uint64_t a = of_one.load()(first);
    ++waiting;
    while (!let_go) {
        std::this_thread::yield();
    }
    return a + 3 * of_one.load()(second) + first;
}

TEST(EntryPatch, ThreadsThatAreInTheFunctionAreNotDisturbed)
{
    constexpr int threads = 4;
    constexpr int calls = 1000;
    of_one = plus_one;
    waiting = 0;
    let_go = false;
    notices = 0;
    std::atomic<int> wrong{0};
    std::atomic<int> through{0};
    std::atomic<bool> removed{false};
    std::vector<std::thread> all;
    for (std::uint64_t i = 0; i < threads; ++i) {
        all.emplace_back([&, i] {
            const auto call = [&] {
                if (slow(i, 1) != i + 1 + 6 + i) {
                    ++wrong;
                }
            };
            call(); // begins before the function is patched
            for (int k = 0; k < calls; ++k) {
                call();
            }
            ++through;
            while (!removed) {
                std::this_thread::yield();
            }
            call();
        });
    }
    while (waiting < threads) {
        std::this_thread::yield();
    }
    {
        entry_patch patch;
        install(patch, reinterpret_cast<void *>(slow), note);
        let_go = true;
        while (through < threads) {
            std::this_thread::yield();
        }
    }
    removed = true;
    for (std::thread &each : all) {
        each.join();
    }
    EXPECT_EQ(0, wrong);
    EXPECT_EQ(threads * calls, notices);
}

std::atomic<bool> in_notice{false};
std::atomic<bool> notice_may_end{false};
std::atomic<bool> notice_ended{false};

void long_note(std::uint64_t, std::uint64_t)
{
    in_notice = true;
    while (!notice_may_end) {
        std::this_thread::yield();
    }
    notice_ended = true;
}

TEST(EntryPatch, NoNoticeIsRunningWhenItIsRemoved)
{
    void *const entry = address(entry_test_as_in_a_driver);
    const unsigned char first_byte = bytes_at(entry)[0];
    in_notice = notice_may_end = notice_ended = false;
    entry_patch patch;
    install(patch, entry, long_note);
    std::thread caller([] { EXPECT_EQ(1u + 3, entry_test_as_in_a_driver(1, 1)); });
    while (!in_notice) {
        std::this_thread::yield();
    }
    std::thread releaser([&] {
        // Removing has begun when the function has its own bytes again.
        while (*static_cast<volatile unsigned char *>(entry) != first_byte) {
            std::this_thread::yield();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        notice_may_end = true;
    });
    patch.remove();
    EXPECT_TRUE(notice_ended);
    caller.join();
    releaser.join();
}

// Whichever driver is here: these are what gpusm patches.
TEST(EntryPatch, TheDriversFunctionsCanBePatched)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nullptr == driver) {
        GTEST_SKIP() << "no CUDA driver";
    }
    for (const char *name :
         {"cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz", "cuMemUnmap"}) {
        SCOPED_TRACE(name);
        const auto called =
            reinterpret_cast<int (*)(std::uint64_t, std::uint64_t)>(dlsym(driver, name));
        ASSERT_NE(nullptr, called);
        // There is no such memory, and the driver has not been started.
        const int answer = called(4096, 0);
        EXPECT_NE(0, answer);
        notices = 0;
        entry_patch patch;
        install(patch, reinterpret_cast<void *>(called), note);
        EXPECT_EQ(answer, called(4096, 0));
        EXPECT_EQ(1, notices);
        EXPECT_EQ(4096u, last_first);
        patch.remove();
        EXPECT_EQ(answer, called(4096, 0));
        EXPECT_EQ(1, notices);
    }
}

} // namespace

#else

TEST(EntryPatch, IsRefusedOnOtherProcessors)
{
    gpusm::entry_patch patch;
    const char *why = nullptr;
    EXPECT_EQ(gpusm::status::unsupported, patch.install(nullptr, nullptr, &why));
    EXPECT_NE(nullptr, why);
}

#endif
