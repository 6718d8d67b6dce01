// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stage_split_test.cc: ranges that the reader copies a part of: the owner's ring takes chunks from
// the front, and says where its part ends.
#include "tests/unit/stage_support.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace gpusm {
namespace {

// The reader takes what is left of a split range after so many pieces of the owner's.
TEST(StageRing, OfASplitRangeTellsWhatItHasTakenAndThenThatThisIsAll)
{
    constexpr std::uint64_t len_bytes = 40 * pull_chunk_bytes + 7;
    for (std::uint32_t cuts = 0; cuts < 12; ++cuts) {
        stage_ring ring(usual);
        split_word split{};
        split_begin(&split, static_cast<std::uint32_t>(split_chunks(len_bytes, pull_chunk_bytes)));
        ASSERT_EQ(ring.fetch(3, 5, 0x1000, len_bytes, nullptr, 0, &split), status::ok);
        std::uint64_t cut_bytes = 0;
        stage_piece piece;
        for (std::uint32_t i = 0; i < cuts && ring.cut(&piece); ++i) {
            EXPECT_EQ(piece.source, 0x1000 + cut_bytes);
            EXPECT_LE(piece.len_bytes, usual.piece_bytes);
            cut_bytes += piece.len_bytes;
            ring.filled(piece.number, true);
        }
        for (std::uint32_t chunk = 0; split_take(&split, split_end::back, &chunk);) {
        }
        EXPECT_FALSE(ring.cut(&piece)) << "the rest is the reader's";
        EXPECT_EQ(cut_bytes, std::min(len_bytes, split_look(split).front * pull_chunk_bytes));
        std::uint64_t told_bytes = 0;
        const std::vector<stage_word> words = all_words(&ring);
        ASSERT_FALSE(words.empty());
        for (const stage_word &word : words) {
            EXPECT_FALSE(word.failed);
            EXPECT_EQ(word.get, 5U);
            EXPECT_EQ(word.all_told, &word == &words.back());
            if (!word.all_told) {
                EXPECT_EQ(word.offset, told_bytes);
                told_bytes += word.len_bytes;
                EXPECT_EQ(ring.release(3, word.number), status::ok);
            }
        }
        EXPECT_EQ(told_bytes, cut_bytes);
        EXPECT_TRUE(ring.idle());
    }
}

TEST(StageRing, ASplitRangeThatNobodyElseCopiesIsCopiedWhole)
{
    constexpr std::uint64_t len_bytes = 9 * pull_chunk_bytes + 1;
    stage_ring ring(usual);
    split_word split{};
    split_begin(&split, static_cast<std::uint32_t>(split_chunks(len_bytes, pull_chunk_bytes)));
    ASSERT_EQ(ring.fetch(0, 0, 0, len_bytes, nullptr, 0, &split), status::ok);
    ASSERT_EQ(fetch(&ring, 0, 1, 100), status::ok) << "an ordinary one behind it";
    std::uint64_t bytes = 0;
    for (const stage_piece &each : cut_all(&ring)) {
        bytes += each.len_bytes;
        ring.filled(each.number, true);
    }
    EXPECT_EQ(bytes, len_bytes + 100);
    const std::vector<stage_word> words = all_words(&ring);
    const auto all_told = std::find_if(words.begin(), words.end(),
                                       [](const stage_word &each) { return each.all_told; });
    ASSERT_NE(all_told, words.end());
    EXPECT_EQ(all_told + 2, words.end()) << "behind its pieces, before the other one's";
}

TEST(StageRing, ASplitRangeThatIsCancelledEndsInAFailure)
{
    stage_ring ring(usual);
    split_word split{};
    split_begin(&split, 100);
    ASSERT_EQ(ring.fetch(0, 4, 0, 100 * pull_chunk_bytes, nullptr, 0, &split), status::ok);
    stage_piece piece;
    ASSERT_TRUE(ring.cut(&piece));
    ring.cancel(0, 4);
    ring.filled(piece.number, true);
    EXPECT_FALSE(ring.cut(&piece));
    const std::vector<stage_word> words = all_words(&ring);
    ASSERT_EQ(words.size(), 1U);
    EXPECT_TRUE(words[0].failed);
    EXPECT_TRUE(ring.idle());
}

// The word may be a peer's mistake.
TEST(StageRing, ASplitThatSkipsChunksEndsInAFailure)
{
    stage_ring ring(usual);
    split_word split{};
    split_begin(&split, 100);
    ASSERT_EQ(ring.fetch(0, 4, 0, 50 * pull_chunk_bytes, nullptr, 0, &split), status::ok);
    stage_piece piece;
    ASSERT_TRUE(ring.cut(&piece));
    ring.filled(piece.number, true);
    split.word.store(split_pack({2, 100}));
    EXPECT_FALSE(ring.cut(&piece));
    const std::vector<stage_word> words = all_words(&ring);
    ASSERT_EQ(words.size(), 1U) << "the piece that was not told is free again";
    EXPECT_TRUE(words[0].failed);
    EXPECT_TRUE(ring.idle());
}

TEST(StagedGets, OfASplitRangeTheOwnerSaysWhereItsPartEnds)
{
    staged_gets gets;
    staged_get *get = gets.open(4, 100, nullptr);
    EXPECT_FALSE(get->accept_all_told(0)) << "it is not split";
    get->has_target = get->is_split = true;
    EXPECT_TRUE(get->accept(0, 60));
    EXPECT_FALSE(get->accept_written());
    EXPECT_FALSE(get->owner_is_done());
    EXPECT_FALSE(get->accept_all_told(70)) << "a piece is missing";
    EXPECT_TRUE(get->accept_all_told(60));
    EXPECT_FALSE(get->accept_all_told(60)) << "a second time";
    EXPECT_FALSE(get->accept(60, 10)) << "after the last one";
    EXPECT_TRUE(get->owner_is_done());
    EXPECT_FALSE(get->over());
    --get->copying;
    EXPECT_TRUE(get->over());
}

} // namespace
} // namespace gpusm
