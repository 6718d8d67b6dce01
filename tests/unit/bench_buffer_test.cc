// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// bench_buffer_test.cc: the checker is checked: what the MPI tests and gpusm_perf -c rely on.
#include "bench/common/buffer.h"
#include "bench/common/sizes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace {

using namespace gpusm::bench;

std::unique_ptr<buffer> host_memory(std::size_t len_bytes, std::size_t offset_bytes = 0)
{
    std::string why;
    auto made = buffer::make(memory_kind::host, len_bytes, nullptr, &why, offset_bytes);
    EXPECT_NE(nullptr, made) << why;
    return made;
}

TEST(BenchBuffer, WhatWasFilledComparesEqual)
{
    constexpr std::size_t len = (3u << 20) + 5;
    auto memory = host_memory(len, 3);
    ASSERT_EQ("", memory->fill(0, len, 42));
    EXPECT_EQ("", memory->compare(0, len, 42));
    EXPECT_NE("", memory->compare(0, len, 43));
}

TEST(BenchBuffer, OneWrongBitIsNamedByPosition)
{
    constexpr std::size_t len = (2u << 20) + 77;
    auto memory = host_memory(len);
    for (std::size_t wrong : {std::size_t{0}, std::size_t{1} << 20, len - 1}) {
        ASSERT_EQ("", memory->fill(0, len, 7));
        auto *byte = static_cast<unsigned char *>(memory->at(wrong));
        *byte ^= 1;
        const std::string found = memory->compare(0, len, 7);
        EXPECT_EQ(0u, found.find("byte " + std::to_string(wrong) + " is ")) << found;
    }
}

TEST(BenchBuffer, ShiftedContentIsWrong)
{
    auto memory = host_memory(4096);
    for (std::size_t shift : {1u, 8u, 256u}) {
        ASSERT_EQ("", memory->fill(0, 2048, 9));
        std::memmove(memory->at(shift), memory->data(), 2048 - shift);
        EXPECT_NE("", memory->compare(0, 2048, 9)) << shift;
    }
}

TEST(BenchBuffer, PiecesOfAMessageKeepTheirPosition)
{
    std::vector<unsigned char> whole(1000);
    write_pattern(whole.data(), whole.size(), 5, 0);
    for (std::size_t begin : {0u, 1u, 7u, 8u, 13u}) {
        std::vector<unsigned char> piece(500);
        write_pattern(piece.data(), piece.size(), 5, begin);
        EXPECT_EQ(0, std::memcmp(piece.data(), whole.data() + begin, piece.size())) << begin;
        EXPECT_EQ(whole[begin], pattern_byte(5, begin));
    }
}

TEST(BenchBuffer, PoisonIsNoticedToBeGone)
{
    auto memory = host_memory(256);
    ASSERT_EQ("", memory->poison());
    EXPECT_EQ("", memory->compare_poison(0, 256));
    *static_cast<unsigned char *>(memory->at(200)) ^= 1;
    EXPECT_EQ("", memory->compare_poison(0, 200));
    EXPECT_NE("", memory->compare_poison(0, 256));
}

TEST(BenchBuffer, GpuMemoryWithoutDeviceIsRefused)
{
    std::string why;
    EXPECT_EQ(nullptr, buffer::make(memory_kind::pool, 8, nullptr, &why));
    EXPECT_NE("", why);
}

TEST(BenchSizes, SuffixesAndLimits)
{
    struct size_case {
        const char *text;
        bool good;
        std::size_t bytes;
    };
    const size_case cases[] = {
        {"0", true, 0},
        {"17", true, 17},
        {"4K", true, 4096},
        {"4k", true, 4096},
        {"64M", true, 64u << 20},
        {"1G", true, 1u << 30},
        {"2G", false, 0},
        {"2147483647", true, 2147483647u},
        {"", false, 0},
        {"K", false, 0},
        {"4Q", false, 0},
        {"4KK", false, 0},
        {"-1", false, 0},
        {"1.5K", false, 0},
        {"99999999999999999999", false, 0},
    };
    for (const size_case &c : cases) {
        std::size_t bytes = 0;
        EXPECT_EQ(c.good, parse_size(c.text, &bytes)) << c.text;
        if (c.good) {
            EXPECT_EQ(c.bytes, bytes) << c.text;
        }
    }
}

} // namespace
