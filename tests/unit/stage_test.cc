// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stage_test.cc: who gets which part of a staging ring, and when a staged get is over.
#include "tests/unit/stage_support.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace gpusm {
namespace {

TEST(StagePieceLen, BeginsSmallAndDoublesUpToTheLongest)
{
    const std::uint64_t much = 1 << 30;
    EXPECT_EQ(stage_piece_len(usual, 0, much), 32 * kibi);
    EXPECT_EQ(stage_piece_len(usual, 1, much), 64 * kibi);
    EXPECT_EQ(stage_piece_len(usual, 2, much), 128 * kibi);
    EXPECT_EQ(stage_piece_len(usual, 3, much), 256 * kibi);
    EXPECT_EQ(stage_piece_len(usual, 4, much), 256 * kibi);
    EXPECT_EQ(stage_piece_len(usual, UINT32_MAX, much), 256 * kibi);
}

TEST(StagePieceLen, EndsWithTheRangeAndNotInTinyPieces)
{
    EXPECT_EQ(stage_piece_len(usual, 0, 1), 1U);
    EXPECT_EQ(stage_piece_len(usual, 9, 256 * kibi), 256 * kibi);
    for (const std::uint64_t len : {1UL, 31 * kibi, 32 * kibi + 1, 96 * kibi + 7, 1024 * kibi + 1,
                                    480 * kibi + 3, 5000 * kibi + 4095}) {
        std::uint64_t left = len;
        for (std::uint32_t pieces = 0; left > 0; ++pieces) {
            const std::size_t piece = stage_piece_len(usual, pieces, left);
            ASSERT_GT(piece, 0U);
            ASSERT_LE(piece, 256 * kibi);
            ASSERT_LE(piece, left);
            left -= piece;
            // Of those that can be chosen none is less than half of the first.
            ASSERT_TRUE(len < 16 * kibi || piece >= 12 * kibi) << len << " " << piece;
        }
    }
}

TEST(StageRing, TellsTheWholeRangeInOrderAndEachPieceOnce)
{
    stage_ring ring(usual);
    ASSERT_EQ(fetch(&ring, 3, 77, 300 * kibi), status::ok);
    const std::vector<stage_piece> pieces = cut_all(&ring);
    ASSERT_EQ(pieces.size(), 4U); // 32, 64, 128, the rest
    EXPECT_EQ(pieces[1].source, 0x1000 + 32 * kibi);
    // The last one is full first, and has to wait for the others.
    for (std::size_t i = pieces.size(); i > 1; --i) {
        ring.filled(pieces[i - 1].number, true);
        EXPECT_TRUE(all_words(&ring).empty());
    }
    ring.filled(pieces[0].number, true);
    const std::vector<stage_word> words = all_words(&ring);
    ASSERT_EQ(words.size(), 4U);
    std::uint64_t expected = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
        EXPECT_EQ(words[i].peer, 3U);
        EXPECT_EQ(words[i].get, 77U);
        EXPECT_FALSE(words[i].failed);
        EXPECT_EQ(words[i].number, pieces[i].number);
        EXPECT_EQ(words[i].position, pieces[i].position);
        EXPECT_EQ(words[i].offset, expected);
        expected += words[i].len_bytes;
    }
    EXPECT_EQ(expected, 300 * kibi);
    EXPECT_EQ(ring.fetches(), 0U);
    EXPECT_FALSE(ring.idle());
    for (const stage_word &each : words) {
        EXPECT_EQ(ring.release(3, each.number), status::ok);
    }
    EXPECT_TRUE(ring.idle());
}

TEST(StageRing, PiecesDoNotOverlapAndStayInsideTheRing)
{
    stage_ring ring(usual);
    for (std::uint32_t peer = 0; peer < 6; ++peer) {
        ASSERT_EQ(fetch(&ring, peer, peer, 3000 * kibi + peer), status::ok);
    }
    std::vector<bool> used(stage_ring_blocks);
    for (const stage_piece &each : cut_all(&ring)) {
        const std::size_t last = (each.position + each.len_bytes - 1) / usual.block_bytes;
        ASSERT_LT(last, used.size());
        for (std::size_t block = each.position / usual.block_bytes; block <= last; ++block) {
            EXPECT_FALSE(used[block]);
            used[block] = true;
        }
    }
    EXPECT_GE(std::count(used.begin(), used.end(), true), 48);
}

TEST(StageRing, APieceThatCannotBeFilledEndsItsFetchAndLeaksNothing)
{
    stage_ring ring(even);
    ASSERT_EQ(fetch(&ring, 1, 5, 4 * 64 * kibi), status::ok);
    const std::vector<stage_piece> pieces = cut_all(&ring);
    ASSERT_EQ(pieces.size(), 4U);
    ring.filled(pieces[0].number, true);
    const std::vector<stage_word> first = all_words(&ring);
    ASSERT_EQ(first.size(), 1U);
    ring.filled(pieces[2].number, true);
    ring.filled(pieces[1].number, false);
    EXPECT_TRUE(all_words(&ring).empty()) << "the source is still being read";
    ring.filled(pieces[3].number, true);
    const std::vector<stage_word> last = all_words(&ring);
    ASSERT_EQ(last.size(), 1U);
    EXPECT_TRUE(last[0].failed);
    EXPECT_EQ(last[0].get, 5U);
    EXPECT_EQ(ring.held(1), 1U) << "what has been told stays valid";
    EXPECT_EQ(ring.release(1, first[0].number), status::ok);
    EXPECT_TRUE(ring.idle());
}

TEST(StageRing, ACancelledFetchSendsNoMoreAndEndsInAFailure)
{
    stage_ring ring(even);
    ASSERT_EQ(fetch(&ring, 1, 5, 1000 * 64 * kibi), status::ok);
    ASSERT_EQ(fetch(&ring, 1, 6, 64 * kibi), status::ok);
    stage_piece piece;
    ASSERT_TRUE(ring.cut(&piece));
    ring.cancel(1, 5);
    ring.cancel(1, 5);
    ring.cancel(1, 1234); // unknown
    ring.cancel(9, 5);    // somebody else's
    EXPECT_TRUE(all_words(&ring).empty());
    ring.filled(piece.number, true);
    std::vector<stage_word> words = all_words(&ring);
    ASSERT_EQ(words.size(), 1U);
    EXPECT_TRUE(words[0].failed);
    EXPECT_EQ(words[0].get, 5U);
    ASSERT_TRUE(ring.cut(&piece)); // the other one goes on
    ring.filled(piece.number, true);
    words = all_words(&ring);
    ASSERT_EQ(words.size(), 1U);
    EXPECT_EQ(words[0].get, 6U);
    EXPECT_FALSE(words[0].failed);
    EXPECT_FALSE(ring.cut(&piece));
}

TEST(StageRing, OnlyWhoHasAPieceCanGiveItBackAndOnlyOnce)
{
    stage_ring ring(even);
    ASSERT_EQ(fetch(&ring, 1, 5, 2 * 64 * kibi), status::ok);
    const std::vector<stage_piece> pieces = cut_all(&ring);
    ASSERT_EQ(pieces.size(), 2U);
    EXPECT_EQ(ring.release(1, pieces[0].number), status::bad_peer) << "is being filled";
    ring.filled(pieces[0].number, true);
    EXPECT_EQ(ring.release(1, pieces[0].number), status::bad_peer) << "has not been told";
    ASSERT_EQ(all_words(&ring).size(), 1U);
    EXPECT_EQ(ring.release(2, pieces[0].number), status::bad_peer);
    EXPECT_EQ(ring.release(1, 64), status::bad_peer);
    EXPECT_EQ(ring.release(1, UINT32_MAX), status::bad_peer);
    EXPECT_EQ(ring.release(1, 40), status::bad_peer);
    EXPECT_EQ(ring.release(1, pieces[0].number), status::ok);
    EXPECT_EQ(ring.release(1, pieces[0].number), status::bad_peer);
}

TEST(StageRing, RefusesWhatNoReaderAsksFor)
{
    stage_ring ring(even);
    EXPECT_EQ(fetch(&ring, 1, 5, 0), status::bad_peer);
    for (std::uint32_t get = 0; get < gpusm::stage_fetches_at_once; ++get) {
        ASSERT_EQ(fetch(&ring, 1, get, 1), status::ok);
    }
    EXPECT_EQ(fetch(&ring, 1, 99, 1), status::bad_peer);
    EXPECT_EQ(fetch(&ring, 2, 99, 1), status::ok);
}

TEST(StageRing, ADroppedPeerGetsNoWordAndItsPiecesComeBack)
{
    stage_ring ring(even);
    ASSERT_EQ(fetch(&ring, 1, 5, 4 * 64 * kibi), status::ok);
    ASSERT_EQ(fetch(&ring, 1, 6, 64 * kibi), status::ok);
    ASSERT_EQ(fetch(&ring, 1, 7, 64 * kibi), status::ok);
    ring.cancel(1, 7); // its failure has not been told yet
    const std::vector<stage_piece> pieces = cut_all(&ring);
    ASSERT_EQ(pieces.size(), 5U);
    ring.filled(pieces[0].number, true);
    stage_word word;
    ASSERT_TRUE(ring.next_word(&word));
    ring.filled(pieces[1].number, true);
    ring.drop(1);
    EXPECT_TRUE(all_words(&ring).empty());
    EXPECT_EQ(ring.held(1), 3U) << "those are still being written";
    EXPECT_FALSE(ring.idle());
    for (std::size_t i = 2; i < pieces.size(); ++i) {
        ring.filled(pieces[i].number, 3 != i);
    }
    EXPECT_TRUE(all_words(&ring).empty());
    EXPECT_TRUE(ring.idle());
    EXPECT_EQ(fetch(&ring, 1, 5, 1), status::ok) << "it may come back";
}

// Everybody wants more than there is; each piece comes back at once, or a little later.
TEST(StageRing, PeersTakeTurnsWhateverTheyAskFor)
{
    for (const std::size_t under_way : {1U, 7U, 40U}) {
        stage_ring ring(usual);
        std::map<std::uint32_t, int> pieces;
        std::vector<stage_piece> waiting;
        std::map<std::uint32_t, std::uint32_t> peer_of; // by the fetch's tag
        for (std::uint32_t peer = 0; peer < 5; ++peer) {
            // The first one has many fetches, the others long ones.
            for (std::uint32_t get = 0; get < (0 == peer ? 60U : 1U); ++get) {
                ASSERT_EQ(ring.fetch(peer, get, 0, 10000 * kibi, nullptr, peer), status::ok);
            }
        }
        for (int i = 0; i < 100; ++i) {
            stage_piece piece;
            while (waiting.size() < under_way && ring.cut(&piece)) {
                waiting.push_back(piece);
                ++pieces[static_cast<std::uint32_t>(piece.tag)];
            }
            ASSERT_FALSE(waiting.empty());
            const stage_piece oldest = waiting.front();
            waiting.erase(waiting.begin());
            ring.filled(oldest.number, true);
            for (const stage_word &each : all_words(&ring)) {
                ASSERT_EQ(ring.release(each.peer, each.number), status::ok);
            }
        }
        ASSERT_EQ(pieces.size(), 5U);
        const auto [least, most] = std::minmax_element(
            pieces.begin(), pieces.end(),
            [](const auto &left, const auto &right) { return left.second < right.second; });
        EXPECT_LE(most->second - least->second, 40U == under_way ? 4 : 1) << under_way;
    }
}

TEST(StageRing, OldestFirstWithinOnePeer)
{
    stage_ring ring(even);
    for (std::uint32_t get = 0; get < 10; ++get) {
        ASSERT_EQ(ring.fetch(0, get, 0, 3 * 64 * kibi, nullptr, get), status::ok);
    }
    std::uint64_t last = 0;
    for (const stage_piece &each : cut_all(&ring)) {
        EXPECT_GE(each.tag, last);
        last = each.tag;
    }
    EXPECT_EQ(last, 9U);
}

TEST(StageRing, APeerThatKeepsItsPiecesLeavesRoomForTheOthers)
{
    stage_ring ring(usual);
    for (std::uint32_t get = 0; get < 60; ++get) {
        ASSERT_EQ(fetch(&ring, 0, get, 1024 * kibi), status::ok);
    }
    for (const stage_piece &each : cut_all(&ring)) { // and never comes back
        ring.filled(each.number, true);
    }
    (void)all_words(&ring);
    EXPECT_GE(ring.held(0), 40U);
    EXPECT_LE(ring.held(0), 48U);
    ASSERT_EQ(fetch(&ring, 1, 0, 100000 * kibi), status::ok);
    for (int i = 0; i < 300; ++i) {
        stage_piece piece;
        ASSERT_TRUE(ring.cut(&piece)) << "after " << i;
        ring.filled(piece.number, true);
        for (const stage_word &each : all_words(&ring)) {
            ASSERT_EQ(each.peer, 1U);
            ASSERT_EQ(ring.release(1, each.number), status::ok);
        }
    }
}

TEST(StageRing, ABlockHereAndABlockThereAreUsedWhenThereIsNothingElse)
{
    stage_ring ring({kibi, kibi, 16 * kibi});
    for (std::uint32_t get = 0; get < 64; ++get) {
        ASSERT_EQ(fetch(&ring, get % 2, get, kibi), status::ok);
    }
    std::vector<stage_piece> pieces = cut_all(&ring);
    ASSERT_GE(pieces.size(), 32U);
    for (const stage_piece &each : pieces) {
        ring.filled(each.number, true);
    }
    for (const stage_word &each : all_words(&ring)) {
        if (0 == each.peer) { // the other one keeps every second block
            ASSERT_EQ(ring.release(0, each.number), status::ok);
        }
    }
    ASSERT_EQ(fetch(&ring, 2, 0, 1000 * kibi), status::ok);
    EXPECT_GE(cut_all(&ring).size(), 8U);
}

TEST(StagedGets, IsOverWhenAllHasArrivedAndBeenCopied)
{
    staged_gets gets;
    staged_get *get = gets.open(4, 100, nullptr);
    EXPECT_EQ(gets.find(4, get->number), get);
    EXPECT_EQ(gets.find(5, get->number), nullptr) << "another peer's";
    EXPECT_EQ(gets.find(4, get->number + 1), nullptr);
    EXPECT_FALSE(get->accept(1, 10)) << "not the next one";
    EXPECT_FALSE(get->accept(0, 0));
    EXPECT_FALSE(get->accept(0, 101));
    EXPECT_FALSE(get->accept(0, UINT64_MAX));
    EXPECT_TRUE(get->accept(0, 60));
    EXPECT_FALSE(get->accept(0, 40)) << "a second time";
    EXPECT_FALSE(get->accept(60, 41));
    EXPECT_TRUE(get->accept(60, 40));
    EXPECT_TRUE(get->owner_is_done());
    EXPECT_FALSE(get->over());
    get->copying -= 2;
    EXPECT_TRUE(get->over());
}

TEST(StagedGets, AFailureWaitsForTheCopiesThatAreUnderWay)
{
    staged_gets gets;
    staged_get *get = gets.open(4, 100, nullptr);
    ASSERT_TRUE(get->accept(0, 60));
    get->bad = get->owner_failed = true;
    EXPECT_FALSE(get->accept(60, 40)) << "after the failure";
    EXPECT_FALSE(get->over());
    --get->copying;
    EXPECT_TRUE(get->over());
}

TEST(StagedGets, IsOverWhenTheOwnerHasWrittenAllOfIt)
{
    staged_gets gets;
    staged_get *get = gets.open(4, 100, nullptr);
    EXPECT_FALSE(get->accept_written()) << "it may not write";
    EXPECT_FALSE(get->owner_is_done());
    get->has_target = true;
    EXPECT_TRUE(get->accept_written());
    EXPECT_TRUE(get->owner_is_done());
    EXPECT_TRUE(get->over());
    EXPECT_FALSE(get->accept_written()) << "a second time";
    EXPECT_FALSE(get->accept(0, 100)) << "nothing is left";
    EXPECT_FALSE(get->accept(100, 1));
}

TEST(StagedGets, OfWhichTheOwnerWritesAPartDoNotComeInPieces)
{
    staged_gets gets;
    staged_get *get = gets.open(4, 100, nullptr);
    get->has_target = get->is_shared = true;
    EXPECT_FALSE(get->accept(0, 60));
    EXPECT_FALSE(get->owner_is_done());
    EXPECT_TRUE(get->accept_written());
    EXPECT_TRUE(get->over());
    gets.close(get);
    EXPECT_FALSE(gets.open(4, 100, nullptr)->is_shared) << "left over from another get";
}

TEST(StagedGets, CanComeInPiecesThoughTheOwnerMayWriteAndThenIsNotWritten)
{
    staged_gets gets;
    staged_get *get = gets.open(4, 100, nullptr);
    get->has_target = true;
    EXPECT_TRUE(get->accept(0, 60));
    EXPECT_FALSE(get->accept_written()) << "pieces have come";
    --get->copying;
    EXPECT_FALSE(get->accept_written()) << "nor after they have been copied";
    EXPECT_TRUE(get->accept(60, 40));
    EXPECT_FALSE(get->accept_written());

    get = gets.open(4, 100, nullptr);
    EXPECT_FALSE(get->has_target) << "left over from another get";
    get->has_target = true;
    get->bad = get->owner_failed = true;
    EXPECT_FALSE(get->accept_written()) << "after the failure";
    EXPECT_TRUE(get->over());
}

TEST(StagedGets, ANumberIsNotGivenAgainSoon)
{
    staged_gets gets;
    std::vector<std::uint32_t> numbers;
    for (int i = 0; i < 1000; ++i) {
        staged_get *get = gets.open(0, 1, nullptr);
        for (const std::uint32_t each : numbers) {
            ASSERT_NE(each, get->number);
        }
        numbers.push_back(get->number);
        gets.close(get);
        ASSERT_EQ(gets.find(0, get->number), nullptr);
    }
    EXPECT_EQ(gets.places(), 1U) << "the memory is used again";
    EXPECT_EQ(gets.open_count(), 0U);
}

} // namespace
} // namespace gpusm
