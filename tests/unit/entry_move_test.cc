// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// entry_move_test.cc: which beginnings of functions may be moved, and how they look elsewhere.
#include "opal/mca/btl/gpusm/gpu/entry_patch.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::move_instructions;

using code = std::vector<unsigned char>;

// Code as it would be at `from`, moved `away` bytes up; empty: refused. What is behind it is not to
// be looked at, or to be refused.
code moved(const code &from, std::size_t away = 64)
{
    std::vector<unsigned char> memory(away + 64, 0xcc);
    std::copy(from.begin(), from.end(), memory.begin());
    unsigned char *const to = memory.data() + away;
    const std::size_t bytes = move_instructions(memory.data(), to);
    return {to, to + bytes};
}

#if defined(__x86_64__) && defined(__LP64__)

TEST(MoveInstructions, WholeInstructionsAreTakenAsTheyAre)
{
    const struct {
        code from;
        std::size_t bytes;
    } cases[] = {
        {{0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08}, 6}, // as in driver 580
        {{0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54}, 6},
        {{0x41, 0x54, 0xbe, 2, 0, 0, 0, 0x55}, 7},          // mov esi, 2
        {{0x41, 0xb8, 1, 2, 3, 4, 0xc3}, 6},                // mov r8d
        {{0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xc3}, 5},          // endbr64, push
        {{0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 8}, 8}, // sub rsp
        {{0x48, 0x81, 0xec, 0, 1, 0, 0, 0xc3}, 7},          // sub rsp, four bytes
        {{0x48, 0x83, 0xc4, 0x10, 0x5b, 0xc3}, 5},          // add rsp, pop
        {{0x31, 0xc0, 0x85, 0xff, 0x33, 0xc9}, 6},          // xor, test, xor
        {{0x48, 0x85, 0xff, 0x4d, 0x89, 0xc8}, 6},          // test rdi, mov r8
        {{0x89, 0xf8, 0x8b, 0xc1, 0x50}, 5},                // mov, both ways
    };
    for (const auto &each : cases) {
        const code expected(each.from.begin(),
                            each.from.begin() + static_cast<std::ptrdiff_t>(each.bytes));
        EXPECT_EQ(expected, moved(each.from)) << "case " << &each - cases;
    }
}

TEST(MoveInstructions, WhatIsNamedByDistanceStaysTheSame)
{
    // push r12; lea r12, [rip + 0x1000]
    EXPECT_EQ((code{0x41, 0x54, 0x4c, 0x8d, 0x25, 0xc0, 0x0f, 0x00, 0x00}),
              moved({0x41, 0x54, 0x4c, 0x8d, 0x25, 0x00, 0x10, 0x00, 0x00}, 64));
    // mov rax, [rip - 2]
    EXPECT_EQ((code{0x48, 0x8b, 0x05, 0xbe, 0xff, 0xff, 0xff}),
              moved({0x48, 0x8b, 0x05, 0xfe, 0xff, 0xff, 0xff}, 64));
    // mov eax, [rip + 0x100]
    EXPECT_EQ((code{0x8b, 0x05, 0x80, 0x00, 0x00, 0x00}),
              moved({0x8b, 0x05, 0x00, 0x01, 0x00, 0x00}, 128));
    EXPECT_EQ(code{}, moved({0x48, 0x8d, 0x05, 0x3f, 0x00, 0x00, 0x80}, 64))
        << "it would be out of reach by one byte";
    EXPECT_EQ((code{0x48, 0x8d, 0x05, 0x00, 0x00, 0x00, 0x80}),
              moved({0x48, 0x8d, 0x05, 0x40, 0x00, 0x00, 0x80}, 64));
}

TEST(MoveInstructions, EverythingElseIsRefused)
{
    const code cases[] = {
        {0xc3, 0x90, 0x90, 0x90, 0x90, 0x90},          // ret
        {0x31, 0xc0, 0xc3, 0x90, 0x90, 0x90},          // xor eax, eax; ret
        {0x55, 0x5d, 0xc2, 0x08, 0x00, 0x90},          // ret 8
        {0xe9, 1, 2, 3, 4, 0x90},                      // jmp: somebody else's patch
        {0xff, 0x25, 0, 0, 0, 0},                      // jmp through memory: likewise
        {0x49, 0xbb, 1, 2, 3, 4, 5, 6, 7, 8},          // mov r11, eight bytes: likewise
        {0xcc, 0x48, 0x89, 0xe5, 0x41, 0x54},          // a breakpoint
        {0x55, 0xeb, 0xfd, 0x90, 0x90, 0x90},          // jmp
        {0x50, 0x74, 0x01, 0x90, 0x90, 0x90},          // jz
        {0x50, 0xe8, 1, 2, 3, 4},                      // call
        {0x50, 0xff, 0xd0, 0x90, 0x90, 0x90},          // call rax
        {0xf3, 0x0f, 0x1e, 0xfb, 0x50},                // not endbr64
        {0x66, 0x89, 0xf8, 0x50, 0x50},                // 16 bits
        {0x48, 0x89, 0x7c, 0x24, 0xf8},                // mov [rsp - 8], rdi
        {0x48, 0x8d, 0x47, 0x01, 0x50},                // lea rax, [rdi + 1]
        {0x48, 0x83, 0xe4, 0xf0, 0x50},                // and rsp
        {0x83, 0xec, 0x08, 0x50, 0x50},                // sub esp
        {0x48, 0x83, 0x3d, 1, 2, 3, 4, 0},             // cmp [rip + ], 0
        {0x48, 0x85, 0x05, 1, 2, 3, 4},                // test [rip + ], rax
        {0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0}, // mov rax, fs:[0x28]
    };
    for (const code &each : cases) {
        EXPECT_EQ(code{}, moved(each)) << "case " << &each - cases;
    }
}

#else

TEST(MoveInstructions, NothingIsMovedOnOtherProcessors)
{
    EXPECT_EQ(code{}, moved({0x55, 0x48, 0x89, 0xe5, 0x41, 0x54}));
}

#endif

} // namespace
