// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_test.cc: messages streamed between processes that are played in one: in order, both ways,
// more than the ring holds, from a sender that is away, and what a broken peer may do.
#include "opal/mca/btl/gpusm/protocol/stream.h"

#include "tests/unit/shm_support.h"

#include <deque>
#include <numeric>
#include <vector>

#include <unistd.h>

#include <gtest/gtest.h>

namespace {

using gpusm::no_single_copy;
using gpusm::node;
using gpusm::peer;
using gpusm::share_kind;
using gpusm::status;
using gpusm::stream_engine;
using gpusm::stream_fetch;
using gpusm::stream_message;
using gpusm_test::deadline;
using gpusm_test::log_capture;

constexpr std::size_t kibi = 1024;

gpusm::segment_options options(const std::string &folder, std::uint32_t vpid)
{
    gpusm::segment_options made = gpusm_test::small_options(folder, vpid);
    made.segment_bytes = 8 * kibi * kibi;
    return made;
}

// A process with streams; what it sends lies in `sent` until somebody delivers it.
class process final : public gpusm::stream_services {
  public:
    process(const std::string &folder, std::uint32_t vpid)
        : folder_(folder), node_(gpusm_test::make_segment(options(folder, vpid)), false),
          streams(node_, *this, false)
    {
    }

    status send(peer &, const stream_message &message) override
    {
        sent.push_back(message);
        return status::ok;
    }
    const unsigned char *source_of(const stream_message &message) override
    {
        return refuses ? nullptr : reinterpret_cast<const unsigned char *>(message.address);
    }
    status read_rest(peer &, const stream_fetch &fetch) override
    {
        ++rests;
        if (status::ok == rest_outcome) {
            std::memcpy(fetch.destination + fetch.received,
                        reinterpret_cast<const void *>(fetch.address + fetch.received),
                        fetch.len_bytes - fetch.received);
        }
        return rest_outcome;
    }

    peer &towards(process &other)
    {
        peer &known = *node_.add_peer(other.node_.own().identity(), folder_);
        EXPECT_EQ(status::ok, known.attach());
        return known;
    }
    // Gives what this process has sent to `other`. Returns whether all of it made sense.
    bool deliver_to(process &other)
    {
        bool sane = true;
        for (; !sent.empty(); sent.pop_front()) {
            sane = other.streams.take(other.towards(*this), sent.front()) && sane;
        }
        return sane;
    }

  private:
    const std::string folder_;
    node node_;

  public:
    std::deque<stream_message> sent;
    bool refuses = false;
    status rest_outcome = status::ok;
    int rests = 0;
    stream_engine streams;
};

// A message with the bytes that it should have.
struct message {
    explicit message(std::size_t len_bytes, unsigned char first = 1)
        : source(len_bytes), destination(len_bytes)
    {
        std::iota(source.begin(), source.end(), first);
        fetch.source = {};
        fetch.source.kind = share_kind::host;
        fetch.address = reinterpret_cast<std::uint64_t>(source.data());
        fetch.destination = destination.data();
        fetch.len_bytes = len_bytes;
    }
    bool right() const { return source == destination; }

    std::vector<unsigned char> source;
    std::vector<unsigned char> destination;
    stream_fetch fetch{};
};

class Stream : public testing::Test {
  protected:
    const gpusm_test::scratch_folder folder_;
    process reader_{folder_.path(), 1};
    process sender_{folder_.path(), 2};

    // Both sides make progress until so many messages have ended at the reader, which come back.
    std::vector<stream_fetch *> run(std::size_t wanted, bool sender_too = true)
    {
        const deadline limit(20);
        std::vector<stream_fetch *> ended;
        while (ended.size() < wanted && !limit.over()) {
            if (sender_too) {
                EXPECT_EQ(nullptr, sender_.streams.progress());
            }
            for (stream_fetch *each = reader_.streams.progress(); each != nullptr;
                 each = each->next) {
                ended.push_back(each);
            }
        }
        EXPECT_EQ(wanted, ended.size());
        return ended;
    }
};

TEST_F(Stream, MessagesOfManyLengthsArriveInOrder)
{
    std::deque<message> all;
    for (const std::size_t len :
         {std::size_t{1}, 16 * kibi, 16 * kibi + 1, 100 * kibi + 3, 5000 * kibi}) {
        all.emplace_back(len, static_cast<unsigned char>(len));
        ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &all.back().fetch));
    }
    EXPECT_FALSE(reader_.streams.idle());
    ASSERT_TRUE(reader_.deliver_to(sender_));
    const std::vector<stream_fetch *> ended = run(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(&all[i].fetch, ended[i]);
        EXPECT_EQ(status::ok, all[i].fetch.outcome);
        EXPECT_TRUE(all[i].right());
    }
    EXPECT_TRUE(reader_.streams.idle());
    EXPECT_TRUE(sender_.streams.idle());
    EXPECT_EQ(0, reader_.rests);
}

TEST_F(Stream, ARingBeginsShortAndBecomesLongerWithUse)
{
    message one(16 * 1024 * kibi);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    const auto *ring = reinterpret_cast<const gpusm::stream_ring *>(
        sender_.towards(reader_).shared().base() +
        std::size_t{reader_.sent.front().granule} * gpusm::granule_bytes);
    const std::uint32_t slots = ring->slots;
    EXPECT_GE(slots, 2U);
    EXPECT_LE(slots, 8U);
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_TRUE(one.right());
    EXPECT_GT(ring->slots, slots);
}

TEST_F(Stream, WhatIsThereAlreadyIsNotSent)
{
    message one(50 * kibi);
    std::copy_n(one.source.begin(), 8 * kibi, one.destination.begin());
    one.fetch.received = 8 * kibi;
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_EQ(42 * kibi, reader_.sent.front().len_bytes);
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_TRUE(one.right());
}

TEST_F(Stream, BothWaysAtOnce)
{
    message there(700 * kibi, 3);
    message back(900 * kibi, 9);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &there.fetch));
    ASSERT_EQ(status::ok, sender_.streams.fetch(sender_.towards(reader_), &back.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_) && sender_.deliver_to(reader_));
    const deadline limit(20);
    int ended = 0;
    while (ended < 2 && !limit.over()) {
        ended += nullptr != reader_.streams.progress();
        ended += nullptr != sender_.streams.progress();
    }
    EXPECT_TRUE(there.right());
    EXPECT_TRUE(back.right());
}

TEST_F(Stream, ACallOfProgressCopiesABoundedAmount)
{
    message one(1024 * kibi);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    for (int calls = 0; calls < 7; ++calls) {
        ASSERT_EQ(nullptr, sender_.streams.progress());
        ASSERT_EQ(nullptr, reader_.streams.progress()) << "after " << calls << " calls";
    }
    (void)run(1);
    EXPECT_TRUE(one.right());
}

TEST_F(Stream, ASenderThatIsAwayIsReadByASingleCopyAndTheNextMessageTooUntilItAnswers)
{
    message one(300 * kibi);
    message two(300 * kibi, 5);
    message three(300 * kibi, 6);
    peer &from = reader_.towards(sender_);
    ASSERT_EQ(status::ok, reader_.streams.fetch(from, &one.fetch));
    ASSERT_EQ(status::ok, reader_.streams.fetch(from, &two.fetch));
    (void)run(2, false);
    EXPECT_TRUE(one.right() && two.right());
    EXPECT_EQ(2, reader_.rests);
    EXPECT_EQ(status::busy, reader_.streams.fetch(from, &three.fetch));
    // Now it comes, and finds that nobody wants what it was asked for.
    one.source.assign(one.source.size(), 0);
    ASSERT_TRUE(reader_.deliver_to(sender_));
    const deadline limit(20);
    while (!reader_.streams.idle() && !limit.over()) {
        EXPECT_EQ(nullptr, sender_.streams.progress());
        EXPECT_EQ(nullptr, reader_.streams.progress());
    }
    EXPECT_NE(one.source, one.destination) << "a piece that comes late goes nowhere";
    ASSERT_EQ(status::ok, reader_.streams.fetch(from, &three.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_TRUE(three.right());
    EXPECT_EQ(2, reader_.rests);
}

TEST_F(Stream, ASenderThatGoesAwayInTheMiddleIsReadByASingleCopyFromThere)
{
    message one(4096 * kibi);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    EXPECT_EQ(nullptr, sender_.streams.progress());
    (void)run(1, false);
    EXPECT_TRUE(one.right());
    EXPECT_EQ(1, reader_.rests);
    EXPECT_GT(one.fetch.received, 0U);
    EXPECT_LT(one.fetch.received, one.fetch.len_bytes);
}

TEST_F(Stream, WithoutSingleCopiesASenderIsWaitedFor)
{
    message one(20 * kibi);
    one.fetch.source.flags = no_single_copy;
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    const deadline soon(1);
    while (!soon.over()) {
        ASSERT_EQ(nullptr, reader_.streams.progress());
    }
    EXPECT_EQ(0, reader_.rests);
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_TRUE(one.right());
}

TEST_F(Stream, ASingleCopyThatFailsIsSaid)
{
    message one(20 * kibi);
    reader_.rest_outcome = status::unsupported;
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    (void)run(1, false);
    EXPECT_EQ(status::unsupported, one.fetch.outcome);
}

TEST_F(Stream, MemoryThatIsNotRegisteredIsRefused)
{
    message one(20 * kibi);
    sender_.refuses = true;
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_EQ(status::unsupported, one.fetch.outcome);
}

TEST_F(Stream, MemoryThatIsForgottenIsNotReadAnyMore)
{
    message one(4096 * kibi);
    one.fetch.received = 8 * kibi; // the range that is wanted begins behind them
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    EXPECT_EQ(nullptr, sender_.streams.progress());
    sender_.streams.forget(one.source.data(), one.source.size());
    (void)run(1);
    EXPECT_EQ(status::unsupported, one.fetch.outcome);
    EXPECT_TRUE(sender_.streams.idle());
}

TEST_F(Stream, RingsAreFewAndLentAgain)
{
    std::deque<process> others;
    std::deque<message> all;
    int streamed = 0;
    for (std::uint32_t i = 0; i < 6; ++i) {
        others.emplace_back(folder_.path(), 10 + i);
        all.emplace_back(20 * kibi, static_cast<unsigned char>(i));
        const status s = reader_.streams.fetch(reader_.towards(others.back()), &all.back().fetch);
        EXPECT_TRUE(status::ok == s || status::busy == s);
        streamed += status::ok == s;
        reader_.sent.clear();
        if (status::ok != s) {
            break;
        }
    }
    EXPECT_GE(streamed, 2) << "of a segment of 8 MiB";
    EXPECT_LT(streamed, 6);
    (void)run(static_cast<std::size_t>(streamed), false); // by single copies: they do not answer
}

// Numbers of messages are counted for each peer, and the ring remembers the last one that was
// stopped.
TEST_F(Stream, ARingThatWasStoppedServesAnotherPeer)
{
    peer &from = reader_.towards(sender_);
    for (int i = 0; i < 5; ++i) {
        message gone(20 * kibi);
        ASSERT_EQ(status::ok, reader_.streams.fetch(from, &gone.fetch));
        (void)run(1, false);
        ASSERT_TRUE(reader_.deliver_to(sender_));
        const deadline limit(20);
        while (!reader_.streams.idle() && !limit.over()) {
            EXPECT_EQ(nullptr, sender_.streams.progress());
            EXPECT_EQ(nullptr, reader_.streams.progress());
        }
    }
    process other(folder_.path(), 3);
    message one(20 * kibi);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(other), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(other));
    const deadline limit(20);
    while (!reader_.streams.idle() && !limit.over()) {
        EXPECT_EQ(nullptr, other.streams.progress());
        (void)reader_.streams.progress();
    }
    EXPECT_EQ(status::ok, one.fetch.outcome);
    EXPECT_TRUE(one.right());
}

TEST_F(Stream, APieceThatMakesNoSenseClosesThePeerAndEndsItsMessages)
{
    const log_capture log;
    message one(50 * kibi);
    peer &from = reader_.towards(sender_);
    ASSERT_EQ(status::ok, reader_.streams.fetch(from, &one.fetch));
    const stream_message asked = reader_.sent.front();
    auto *ring =
        reinterpret_cast<gpusm::stream_ring *>(sender_.towards(reader_).shared().base() +
                                               std::size_t{asked.granule} * gpusm::granule_bytes);
    ring->pieces[0].offset = 0;
    ring->pieces[0].bytes = gpusm::stream_piece_bytes + 1;
    ring->pieces[0].want = asked.want;
    ring->pieces[0].sequence = asked.sequence + 1;
    (void)run(1, false);
    EXPECT_EQ(status::bad_peer, one.fetch.outcome);
    EXPECT_TRUE(from.closed());
    EXPECT_NE(std::string::npos, log.text().find("makes no sense"));
}

TEST_F(Stream, MessagesThatMakeNoSenseAreNotTaken)
{
    peer &from = sender_.towards(reader_);
    stream_message wrong{};
    wrong.len_bytes = 1;
    wrong.granule = 0xffffff;
    EXPECT_FALSE(sender_.streams.take(from, wrong)) << "outside of the segment";
    message one(50 * kibi);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    stream_message right = reader_.sent.front();
    wrong = right;
    wrong.granule += 1;
    EXPECT_FALSE(sender_.streams.take(from, wrong)) << "not at a page";
    wrong = right;
    wrong.len_bytes = 0;
    EXPECT_FALSE(sender_.streams.take(from, wrong)) << "of no bytes";
    wrong = right;
    wrong.sequence = UINT64_MAX;
    EXPECT_FALSE(sender_.streams.take(from, wrong)) << "goes on where nothing has begun";
    EXPECT_TRUE(sender_.streams.take(from, right));
    EXPECT_FALSE(sender_.streams.take(from, right)) << "begins anew before the first one is sent";
}

} // namespace
