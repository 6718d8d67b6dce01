// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_ring_test.cc: the ring of pieces, its two ends played in one process and by two threads.
#include "opal/mca/common/gpusm/shm/stream_ring.h"

#include "tests/unit/shm_support.h"

#include <array>
#include <algorithm>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint32_t stream_pieces = 24;

class StreamRing : public testing::Test {
  protected:
    const std::unique_ptr<stream_ring> ring_ = std::make_unique<stream_ring>();
    stream_writer writer_{ring_.get(), stream_pieces, 0};
    stream_reader reader_{ring_.get(), stream_pieces};

    // A piece of one byte, which says in which order it has been written.
    static void write(stream_writer *to, std::uint64_t offset)
    {
        ASSERT_GT(to->room(), 0U);
        to->claim(1);
        to->publish({offset, 1, 7, stream_answer::bytes});
    }
    void write(std::uint64_t offset) { write(&writer_, offset); }
};

TEST_F(StreamRing, APieceIsSeenWhenItIsPublishedAndSaysWhatItIs)
{
    stream_piece_facts piece;
    EXPECT_FALSE(reader_.look(0, &piece));
    ASSERT_GT(writer_.room(), 0U);
    const std::uint32_t slot = writer_.slot();
    writer_.claim(1);
    EXPECT_FALSE(reader_.look(0, &piece)) << "claimed, not published";
    writer_.publish({99, 5, 7, stream_answer::ended});
    ASSERT_TRUE(reader_.look(0, &piece));
    EXPECT_EQ(99U, piece.offset);
    EXPECT_EQ(5U, piece.bytes);
    EXPECT_EQ(7U, piece.want);
    EXPECT_EQ(slot, piece.slot);
    EXPECT_EQ(stream_answer::ended, piece.answer);
    EXPECT_TRUE(reader_.look(0, &piece)) << "it stays until it is released";
    reader_.release(1);
    EXPECT_FALSE(reader_.look(0, &piece));
}

TEST_F(StreamRing, IsFullUntilTheReaderReleases)
{
    std::uint32_t written = 0;
    while (writer_.room() > 0 && written <= stream_pieces) {
        write(written++);
    }
    EXPECT_EQ(stream_pieces, written);
    stream_piece_facts piece;
    ASSERT_TRUE(reader_.look(written - 1, &piece)) << "any of them can be looked at";
    EXPECT_EQ(written - 1, piece.offset);
    EXPECT_FALSE(reader_.look(written, &piece));
    reader_.release(2);
    EXPECT_EQ(2U, writer_.room());
    write(written);
    write(written);
    EXPECT_EQ(0U, writer_.room());
    ring_->released = UINT64_MAX;
    EXPECT_EQ(0U, writer_.room()) << "more than was written is ignored";
}

TEST_F(StreamRing, RoomLiesTogetherAndEndsWithTheRing)
{
    EXPECT_EQ(stream_pieces, writer_.room());
    for (std::uint32_t i = 0; i < stream_pieces - 3; ++i) {
        write(i);
    }
    reader_.release(stream_pieces - 3);
    EXPECT_EQ(3U, writer_.room(10)) << "up to the end";
    writer_.claim(3);
    EXPECT_EQ(0U, writer_.slot());
    EXPECT_EQ(stream_pieces - 3, writer_.room(10)) << "what is claimed is not free";
}

// A lone message is a writer of its own each time.
TEST_F(StreamRing, TheNextWriterGoesOnWhereTheLastOneEnded)
{
    for (std::uint32_t message = 0; message < 200; ++message) {
        stream_writer lone(ring_.get(), stream_pieces, reader_.next());
        for (std::uint64_t i = 0; i < 3; ++i) {
            EXPECT_EQ((3 * message + i) % stream_pieces, lone.slot());
            write(&lone, i);
            stream_piece_facts piece;
            ASSERT_TRUE(reader_.look(0, &piece));
            ASSERT_EQ(i, piece.offset);
            reader_.release(1);
        }
    }
}

TEST_F(StreamRing, TwoThreadsStreamInOrder)
{
    constexpr std::uint64_t pieces = 5000;
    const deadline limit(60);
    std::array<std::uint64_t, stream_pieces> content{};
    std::thread producer([&] {
        for (std::uint64_t i = 0; i < pieces && !limit.over();) {
            if (writer_.room() > 0) {
                content[writer_.slot()] = i;
                write(i++);
            }
        }
    });
    std::uint64_t wrong = 0;
    std::uint64_t next = 0;
    while (next < pieces && !limit.over()) {
        stream_piece_facts piece;
        if (reader_.look(0, &piece)) {
            wrong += piece.offset != next || content[piece.slot] != next;
            reader_.release(1);
            ++next;
        }
    }
    producer.join();
    EXPECT_EQ(pieces, next);
    EXPECT_EQ(0U, wrong);
}

TEST_F(StreamRing, AtLeastOneSideSeesWhatTheOtherHasTakenOfEachRange)
{
    reader_.want(4, 200);
    for (const std::uint32_t number : {3U, UINT32_MAX}) { // they wrap
        reader_.want(number, 1000);
        EXPECT_EQ(1000U, writer_.wanted_bytes(number));
        EXPECT_EQ(0U, reader_.begun_bytes(number));
        EXPECT_EQ(400U, writer_.begin(number, 0, 400));
        EXPECT_EQ(400U, reader_.begun_bytes(number));
        reader_.want_less(number, 600);
        EXPECT_EQ(600U, writer_.begin(number, 400, 800)) << "no more than is wanted";
        EXPECT_EQ(600U, reader_.begun_bytes(number));
        reader_.want_less(number, 0);
        EXPECT_EQ(600U, writer_.begin(number, 600, 1000)) << "nothing";
        reader_.want(number, 50); // of the next message of that number
        EXPECT_EQ(0U, reader_.begun_bytes(number));
    }
    EXPECT_EQ(200U, writer_.wanted_bytes(4)) << "that is another one";
}

// The writer goes on from the front and the reader from the end, until they meet. A reader that has
// seen nothing begun beyond its end may use the memory for something else: the writer is not to
// touch it any more.
TEST_F(StreamRing, WhatTheReaderHasTakenTheWriterNeverBegins)
{
    constexpr std::uint64_t len = 64;
    constexpr std::uint32_t rounds = 20000;
    std::atomic<std::uint32_t> round{0};
    std::atomic<std::uint32_t> over{0};
    std::uint64_t reached = 0; // by the writer, in the round before
    std::thread writer([&] {
        for (std::uint32_t i = 1; i <= rounds; ++i) {
            while (round.load() != i) {
            }
            std::uint64_t at = len; // of no round
            for (std::uint64_t end = 0; end != at;) {
                at = end;
                end = writer_.begin(i, at, std::min(at + 1, len));
            }
            reached = at;
            over.store(i);
        }
    });
    std::uint32_t early = 0;
    for (std::uint32_t i = 1; i <= rounds; ++i) {
        reader_.want(i, len);
        round.store(i);
        std::uint64_t end = len;
        while (reader_.begun_bytes(i) < end) {
            reader_.want_less(i, --end);
        }
        const bool alone = reader_.begun_bytes(i) <= end;
        while (over.load() != i) {
        }
        EXPECT_LE(end, reached) << "nobody has taken what lies between";
        early += alone && reached > end ? 1 : 0;
    }
    writer.join();
    EXPECT_EQ(0U, early);
}

} // namespace
