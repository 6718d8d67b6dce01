// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_ring_test.cc: the ring of pieces, its two ends played in one process and by two threads.
#include "opal/mca/btl/gpusm/shm/stream_ring.h"

#include "tests/unit/shm_support.h"

#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace {

using gpusm::stream_piece_bytes;
using gpusm::stream_piece_facts;
using gpusm::stream_pieces;
using gpusm::stream_reader;
using gpusm::stream_ring;
using gpusm::stream_writer;

std::unique_ptr<stream_ring> short_ring()
{
    auto made = std::make_unique<stream_ring>();
    made->slots = 8;
    return made;
}

class StreamRing : public testing::Test {
  protected:
    const std::unique_ptr<stream_ring> ring_ = short_ring();
    stream_writer writer_{ring_.get(), 0};
    stream_reader reader_{ring_.get()};

    void write(std::uint64_t offset, unsigned char content)
    {
        ASSERT_TRUE(writer_.has_room());
        std::memset(writer_.data(), content, stream_piece_bytes);
        writer_.publish(offset, stream_piece_bytes, 7);
    }
};

TEST_F(StreamRing, APieceIsSeenWhenItIsPublishedAndSaysWhatItIs)
{
    stream_piece_facts piece;
    EXPECT_FALSE(reader_.look(&piece));
    write(3 * stream_piece_bytes, 0x5a);
    ASSERT_TRUE(reader_.look(&piece));
    EXPECT_EQ(3 * stream_piece_bytes, piece.offset);
    EXPECT_EQ(stream_piece_bytes, piece.bytes);
    EXPECT_EQ(7U, piece.want);
    EXPECT_EQ(0x5a, piece.data[stream_piece_bytes - 1]);
    EXPECT_TRUE(reader_.look(&piece)) << "it stays until it is released";
    reader_.release();
    EXPECT_FALSE(reader_.look(&piece));
}

TEST_F(StreamRing, IsFullUntilTheReaderReleases)
{
    std::uint32_t written = 0;
    while (writer_.has_room() && written <= stream_pieces) {
        write(written++, 1);
    }
    EXPECT_EQ(8U, written) << "slots that the owner has not given are not used";
    stream_piece_facts piece;
    ASSERT_TRUE(reader_.look(&piece));
    reader_.release();
    EXPECT_TRUE(writer_.has_room());
    write(written, 2);
    EXPECT_FALSE(writer_.has_room());
}

// Every piece keeps its bytes until it is released, while the ring becomes longer, up to its bound.
TEST_F(StreamRing, BecomesLongerAndLosesNothing)
{
    std::set<const unsigned char *> places;
    std::uint64_t read = 0;
    std::uint64_t written = 0;
    for (std::uint32_t round = 0; round < 20000; ++round) {
        ring_->slots = std::min(8 + round / 8, stream_pieces);
        while (writer_.has_room()) {
            write(written, static_cast<unsigned char>(written));
            ++written;
        }
        for (int i = 0; i < 3; ++i) {
            stream_piece_facts piece;
            ASSERT_TRUE(reader_.look(&piece));
            ASSERT_EQ(read, piece.offset);
            ASSERT_EQ(static_cast<unsigned char>(read), piece.data[0]);
            ASSERT_EQ(static_cast<unsigned char>(read), piece.data[stream_piece_bytes - 1]);
            places.insert(piece.data);
            reader_.release();
            ++read;
        }
    }
    EXPECT_EQ(stream_pieces, places.size());
}

TEST_F(StreamRing, AnotherWriterGoesOnWhereTheLastOneEnded)
{
    stream_piece_facts piece;
    for (unsigned i = 0; i < 5; ++i) {
        write(i, 1);
        ASSERT_TRUE(reader_.look(&piece));
        reader_.release();
    }
    stream_writer other(ring_.get(), reader_.next());
    ASSERT_TRUE(other.has_room());
    other.publish(99, 1, 8);
    ASSERT_TRUE(reader_.look(&piece));
    EXPECT_EQ(99U, piece.offset);
}

// A lone message is a writer of its own each time; it must not use the first slots over and over.
TEST_F(StreamRing, LoneMessagesUseAllSlotsAlsoThoseThatComeLater)
{
    std::set<const unsigned char *> places;
    for (int message = 0; message < 200; ++message) {
        ring_->slots = message < 100 ? 8 : 20;
        stream_writer lone(ring_.get(), reader_.next());
        for (int i = 0; i < 3; ++i) {
            ASSERT_TRUE(lone.has_room());
            places.insert(lone.data());
            lone.publish(0, 1, 0);
            stream_piece_facts piece;
            ASSERT_TRUE(reader_.look(&piece));
            reader_.release();
        }
        EXPECT_LE(places.size(), ring_->slots);
    }
    EXPECT_EQ(20U, places.size());
}

TEST_F(StreamRing, WhatAPeerMayWriteNeverLeadsOutOfTheRing)
{
    ring_->slots = 0xffffffff;
    stream_writer other(ring_.get(), 0);
    for (std::uint32_t i = 0; i < 3 * stream_pieces; ++i) {
        if (other.has_room()) {
            ASSERT_GE(other.data(), ring_->data[0]);
            ASSERT_LE(other.data(), ring_->data[stream_pieces - 1]);
            other.publish(0, 1, 0);
        }
    }
    ring_->released = UINT64_MAX; // more than was written: ignored
    EXPECT_FALSE(other.has_room());
    ring_->pieces[0].slot = 0xffffffff;
    stream_piece_facts piece;
    ASSERT_TRUE(reader_.look(&piece));
    EXPECT_LE(piece.data, ring_->data[stream_pieces - 1]);
}

TEST_F(StreamRing, MessagesBeforeANumberAreStopped)
{
    EXPECT_FALSE(writer_.is_stopped(0));
    reader_.stop_before(5);
    EXPECT_TRUE(writer_.is_stopped(4));
    EXPECT_FALSE(writer_.is_stopped(5));
    reader_.stop_before(2);
    EXPECT_TRUE(writer_.is_stopped(0xfffffff0)) << "the numbers wrap";
}

TEST_F(StreamRing, TwoThreadsStreamAMillionBytesInOrder)
{
    constexpr std::uint64_t pieces = 5000;
    const gpusm_test::deadline limit(60);
    std::thread producer([&] {
        for (std::uint64_t i = 0; i < pieces && !limit.over();) {
            if (writer_.has_room()) {
                std::memset(writer_.data(), static_cast<int>(i % 251), 512);
                writer_.publish(i++, 512, 1);
            }
        }
    });
    std::uint64_t wrong = 0;
    std::uint64_t next = 0;
    while (next < pieces && !limit.over()) {
        stream_piece_facts piece;
        if (reader_.look(&piece)) {
            wrong += piece.offset != next || piece.data[0] != next % 251 ||
                     piece.data[511] != next % 251;
            reader_.release();
            ++next;
        }
    }
    producer.join();
    EXPECT_EQ(pieces, next);
    EXPECT_EQ(0U, wrong);
}

} // namespace
