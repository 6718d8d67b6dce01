// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/split.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace gpusm {
namespace {

TEST(Split, TheLastChunkMayBeShort)
{
    EXPECT_EQ(0U, split_chunks(0, 10));
    EXPECT_EQ(1U, split_chunks(1, 10));
    EXPECT_EQ(1U, split_chunks(10, 10));
    EXPECT_EQ(2U, split_chunks(11, 10));
    EXPECT_EQ(10U, split_bytes(0, 11, 10));
    EXPECT_EQ(1U, split_bytes(1, 11, 10));
    EXPECT_EQ(10U, split_bytes(1, 20, 10));
}

TEST(Split, HostMemoryHasTwoChunksOrMore)
{
    constexpr std::uint64_t kibi = 1024;
    for (std::uint64_t len = 256 * kibi; len < 4096 * kibi; len += 10000) {
        EXPECT_EQ(0U, cooperative_chunk_bytes(len) % (4 * kibi)) << len;
    }
    EXPECT_EQ(64 * kibi, cooperative_chunk_bytes(256 * kibi));
    EXPECT_EQ(128 * kibi, cooperative_chunk_bytes(1024 * kibi));
    EXPECT_EQ(256 * kibi, cooperative_chunk_bytes(1024 * 1024 * kibi));
}

TEST(Split, PiecesBeginShortAndDouble)
{
    EXPECT_EQ(1U, split_longest_piece(1, 0));
    EXPECT_EQ(1U, split_longest_piece(15, 0)) << "an eighth of it";
    EXPECT_EQ(1U, split_longest_piece(15, 1));
    EXPECT_EQ(2U, split_longest_piece(15, 2)) << "as much as there has been";
    EXPECT_EQ(4U, split_longest_piece(15, 4));
    EXPECT_EQ(2U, split_longest_piece(16, 0));
    EXPECT_EQ(16U, split_longest_piece(128, 3)) << "a long one does not begin with a single chunk";
    EXPECT_EQ(UINT32_MAX / 8, split_longest_piece(UINT32_MAX, 0)) << "the longest there may be";
}

TEST(Split, BothTakeUntilTheyMeet)
{
    split_word split{};
    split_begin(&split, 4);
    std::uint32_t chunk = 99;
    ASSERT_TRUE(split_take(&split, split_end::front, &chunk));
    EXPECT_EQ(0U, chunk);
    ASSERT_TRUE(split_take(&split, split_end::back, &chunk));
    EXPECT_EQ(3U, chunk);
    ASSERT_TRUE(split_take(&split, split_end::back, &chunk));
    EXPECT_EQ(2U, chunk);
    ASSERT_TRUE(split_take(&split, split_end::front, &chunk));
    EXPECT_EQ(1U, chunk);
    chunk = 99;
    EXPECT_FALSE(split_take(&split, split_end::front, &chunk));
    EXPECT_FALSE(split_take(&split, split_end::back, &chunk));
    EXPECT_EQ(99U, chunk);
    EXPECT_EQ(2U, split_look(split).front);
    EXPECT_EQ(2U, split_look(split).back);
}

TEST(Split, OneOfThemMayTakeEverything)
{
    split_word split{};
    std::uint32_t chunk = 0;
    split_begin(&split, 3);
    for (std::uint32_t i = 0; i < 3; ++i) {
        ASSERT_TRUE(split_take(&split, split_end::front, &chunk));
        EXPECT_EQ(i, chunk);
    }
    EXPECT_FALSE(split_take(&split, split_end::back, &chunk));
    EXPECT_EQ(3U, split_look(split).back) << "the other one has nothing";
    split_begin(&split, 3);
    for (std::uint32_t i = 3; i-- > 0;) {
        ASSERT_TRUE(split_take(&split, split_end::back, &chunk));
        EXPECT_EQ(i, chunk);
    }
    EXPECT_FALSE(split_take(&split, split_end::front, &chunk));
    EXPECT_EQ(0U, split_look(split).front);
}

TEST(Split, OfSomeNoMoreThanHalfOfTheRestIsTaken)
{
    split_word split{};
    split_begin(&split, 20);
    std::uint32_t first = 99;
    EXPECT_EQ(4U, split_take_some(&split, split_end::front, 4, &first));
    EXPECT_EQ(0U, first);
    EXPECT_EQ(8U, split_take_some(&split, split_end::back, 100, &first));
    EXPECT_EQ(12U, first) << "the lowest of 12 .. 19";
    EXPECT_EQ(4U, split_take_some(&split, split_end::front, 8, &first));
    EXPECT_EQ(4U, first);
    EXPECT_EQ(2U, split_take_some(&split, split_end::back, 8, &first));
    EXPECT_EQ(10U, first);
    EXPECT_EQ(1U, split_take_some(&split, split_end::back, 8, &first));
    EXPECT_EQ(9U, first);
    EXPECT_EQ(1U, split_take_some(&split, split_end::front, 8, &first)) << "the last one";
    EXPECT_EQ(8U, first);
    EXPECT_EQ(0U, split_take_some(&split, split_end::front, 8, &first));
    EXPECT_EQ(0U, split_take_some(&split, split_end::back, 8, &first));
}

TEST(Split, NothingIsTakenWhereAPeerHasMixedUpTheWord)
{
    split_word split{};
    split.word.store(split_pack({7, 3}));
    std::uint32_t chunk = 0;
    EXPECT_FALSE(split_take(&split, split_end::front, &chunk));
    EXPECT_FALSE(split_take(&split, split_end::back, &chunk));
}

TEST(Split, EachChunkIsTakenOnceByTwoThreads)
{
    constexpr std::uint32_t chunks = 64;
    constexpr int rounds = 2000;
    split_word split{};
    std::vector<int> taken(chunks, 0);
    for (int round = 0; round < rounds; ++round) {
        split_begin(&split, chunks);
        std::vector<std::uint32_t> front;
        std::vector<std::uint32_t> back;
        std::thread other([&] {
            std::uint32_t chunk = 0;
            while (split_take(&split, split_end::back, &chunk)) {
                back.push_back(chunk);
            }
        });
        std::uint32_t chunk = 0;
        while (split_take(&split, split_end::front, &chunk)) {
            front.push_back(chunk);
        }
        other.join();
        for (const std::uint32_t each : front) {
            ++taken[each];
        }
        for (const std::uint32_t each : back) {
            ++taken[each];
        }
        ASSERT_EQ(chunks, front.size() + back.size());
    }
    EXPECT_EQ(std::vector<int>(chunks, rounds), taken);
}

} // namespace
} // namespace gpusm
