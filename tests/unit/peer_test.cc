// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// peer_test.cc: what shm/peer.h promises a sender: order, waiting when the FIFO is full, getting
// fragments back, and what happens when the peer is closed, dead, full or broken.
#include "opal/mca/common/gpusm/shm/peer.h"

#include "tests/unit/shm_support.h"

#include <optional>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint32_t room = 4; // slots of the receiver's FIFO

class Peer : public testing::Test {
  protected:
    outgoing *fragment(const std::string &payload)
    {
        fragments_.push_back(make_fragment(own_, payload));
        return &fragments_.back();
    }
    // What the receiver finds next in its FIFO; "-" for nothing.
    std::string receive()
    {
        fifo_message message{};
        if (!take(inbox_, &message)) {
            return "-";
        }
        return payload_of(*reinterpret_cast<const frag_header *>(own_.at(message.granule)));
    }
    std::string receive(int count)
    {
        std::string all;
        for (int i = 0; i < count; ++i) {
            all += receive();
        }
        return all;
    }
    // The receiver's FIFO has as many messages "a" as it can, and so many wait.
    void fill_and_leave(std::uint32_t waiting)
    {
        for (std::uint32_t i = 0; i < room + waiting; ++i) {
            ASSERT_EQ(to_.post(fragment("a")), i < room ? status::ok : status::busy);
        }
    }
    // The receiver is done with that many fragments in all.
    void consume(std::uint64_t count)
    {
        theirs_->view().peers[0].consumed.store(count, std::memory_order_release);
    }

    scratch_folder folder_;
    segment own_ = make_segment(folder_.path(), 1);
    std::optional<segment> theirs_ = make_segment(folder_.path(), 2);
    peer to_{own_.identity(), theirs_->identity(), folder_.path()};
    fifo_reader inbox_{theirs_->view().fifo};
    std::deque<outgoing> fragments_;
};

TEST_F(Peer, AllThatThePeerIsDoneWithAreReclaimedUpToOneThatStays)
{
    for (const char *payload : {"a", "b", "c", "d"}) {
        ASSERT_EQ(to_.post(fragment(payload)), status::ok);
    }
    fragments_[2].stays = true;
    EXPECT_EQ(to_.reclaim(), nullptr);
    consume(1);
    EXPECT_EQ(to_.reclaim(), &fragments_[0]);
    EXPECT_EQ(fragments_[0].next, nullptr) << "the peer is not done with the second";
    consume(4);
    EXPECT_EQ(to_.reclaim(), &fragments_[1]);
    EXPECT_EQ(fragments_[1].next, nullptr);
    EXPECT_EQ(to_.reclaim(), nullptr);
    EXPECT_EQ(to_.reap(), &fragments_[2]);
    EXPECT_EQ(to_.reclaim(), &fragments_[3]);
    EXPECT_TRUE(to_.idle());
}

TEST_F(Peer, WhenTheFifoIsFullFragmentsWaitAndAreFlushedInOrderAndNothingOvertakesThem)
{
    const std::string payloads = "abcdefghi";
    for (std::size_t i = 0; i + 1 < payloads.size(); ++i) {
        const status expected = i < room ? status::ok : status::busy;
        ASSERT_EQ(to_.post(fragment(payloads.substr(i, 1))), expected) << i;
    }
    EXPECT_FALSE(to_.flush()) << "there is no room";
    std::string arrived = receive(2);
    EXPECT_EQ(to_.post(fragment("i")), status::busy) << "there is room, but others are first";
    EXPECT_TRUE(to_.flush());
    for (int i = 0; i < 20; ++i) {
        const std::string next = receive();
        arrived += "-" == next ? "" : next;
        (void)to_.flush();
    }
    EXPECT_EQ(arrived, payloads);
    consume(payloads.size());
    for (std::size_t i = 0; i < payloads.size(); ++i) {
        EXPECT_EQ(to_.reap(), &fragments_[i]);
        EXPECT_EQ(fragments_[i].header->sequence, i);
    }
    EXPECT_TRUE(to_.idle());
}

TEST_F(Peer, APeerThatGivesBackMoreThanItGotGetsNothingThatStillWaits)
{
    fill_and_leave(1);
    consume(~0ULL);
    EXPECT_EQ(to_.reap(), nullptr) << "that cannot be";
    consume(room + 1);
    EXPECT_EQ(to_.reap(), &fragments_[0]);
    EXPECT_EQ(to_.reclaim(), &fragments_[1]);
    EXPECT_EQ(fragments_[room - 1].next, nullptr);
    EXPECT_EQ(to_.reap(), nullptr) << "the last one is not in the peer's FIFO yet";
}

// Whoever flushes all peers does not know which are closed; the fragments may be in use again.
TEST_F(Peer, FromAClosedPeerEveryFragmentComesBackOldestFirstAndNothingIsPostedToIt)
{
    fill_and_leave(3);
    EXPECT_EQ(receive(2), "aa");
    to_.close();
    EXPECT_TRUE(to_.closed());
    EXPECT_FALSE(to_.flush());
    EXPECT_EQ(receive(room - 1), "aa-") << "though there is room";
    outgoing *refused = fragment("b");
    EXPECT_EQ(to_.post(refused), status::peer_gone);
    for (outgoing &each : fragments_) {
        EXPECT_EQ(to_.reap(), &each == refused ? nullptr : &each);
        EXPECT_EQ(each.next, nullptr);
    }
    EXPECT_TRUE(to_.idle());
}

TEST_F(Peer, WithoutAUsableSegmentItIsGoneWhichIsReportedOnceAndFragmentsStayWithTheCaller)
{
    theirs_->view().header->magic = 0;
    for (const auto &[identity, first_answer] :
         {std::pair{theirs_->identity(), status::bad_peer},
          std::pair{segment_identity{1, 2, 3}, status::peer_gone}}) { // of which there is no file
        peer gone(own_.identity(), identity, folder_.path());
        const expect_lines log(1);
        EXPECT_EQ(gone.post(fragment("a")), first_answer);
        for (int i = 0; i < 10; ++i) {
            EXPECT_EQ(gone.post(fragment("a")), status::peer_gone);
        }
        EXPECT_EQ(gone.attach(), status::peer_gone);
        EXPECT_EQ(gone.reap(), nullptr);
        EXPECT_FALSE(gone.flush());
        EXPECT_TRUE(gone.idle());
    }
}

// Flushes until something has been posted.
bool flush_in_time(peer &to)
{
    const deadline end(20);
    while (!end.over()) {
        if (to.flush()) {
            return true;
        }
    }
    return false;
}

TEST_F(Peer, WhenAllPeerSlotsAreTakenMessagesWaitForOneAndOthersGoOn)
{
    ASSERT_EQ(to_.post(fragment("a")), status::ok);
    std::uint32_t slot = 0;
    while (status::ok == to_.shared().claim_peer_slot({1, 1, 1}, &slot)) {
    }
    peer late({1, 1, 2}, theirs_->identity(), folder_.path());
    const expect_lines log(1);
    EXPECT_EQ(late.post(fragment("late")), status::busy);
    EXPECT_EQ(late.post(fragment("later")), status::busy);
    EXPECT_FALSE(late.idle());
    EXPECT_FALSE(late.flush());
    EXPECT_EQ(late.reap(), nullptr);
    EXPECT_EQ(to_.post(fragment("b")), status::ok);
    EXPECT_EQ(receive(3), "ab-");
    theirs_->view().peers[slot].ready.store(0);
    EXPECT_TRUE(flush_in_time(late));
    EXPECT_EQ(receive(3), "latelater-");
    EXPECT_FALSE(late.closed());
}

TEST_F(Peer, MessagesWaitWhileThereIsNoDescriptorToMapThePeerWithAndGoInOrderThen)
{
    const expect_lines log(1);
    outgoing *first = fragment("a");
    outgoing *second = fragment("b");
    {
        const no_descriptors_left none; // not even for a sanitizer
        EXPECT_EQ(to_.post(first), status::busy);
        EXPECT_EQ(to_.post(second), status::busy);
        for (int i = 0; i < 20; ++i) {
            EXPECT_FALSE(to_.flush());
        }
        EXPECT_EQ(to_.reap(), nullptr);
        EXPECT_FALSE(to_.closed());
    }
    EXPECT_EQ(to_.post(fragment("c")), status::busy) << "it may not pass those";
    EXPECT_TRUE(flush_in_time(to_));
    EXPECT_EQ(to_.post(fragment("d")), status::ok);
    EXPECT_EQ(receive(4), "abcd");
    consume(4);
    for (outgoing &each : fragments_) {
        EXPECT_EQ(to_.reap(), &each);
    }
    EXPECT_TRUE(to_.idle());
}

TEST_F(Peer, WhatWaitsForAPeerThatEndsBeforeItCouldBeMappedComesBack)
{
    const log_capture log;
    outgoing *first = fragment("a");
    {
        const no_descriptors_left none;
        EXPECT_EQ(to_.post(first), status::busy);
    }
    theirs_.reset();
    const deadline end(20);
    while (!to_.closed() && !end.over()) {
        EXPECT_FALSE(to_.flush());
    }
    EXPECT_TRUE(to_.closed());
    EXPECT_EQ(to_.reap(), &fragments_.front());
    EXPECT_EQ(to_.post(fragment("b")), status::peer_gone);
    EXPECT_EQ(log.count(), 2U) << log.text(); // that they wait, and that it is gone
}

TEST_F(Peer, FlushNoticesThatTheOwnerOfAFullFifoHasEnded)
{
    fill_and_leave(2);
    for (int i = 0; i < 40000; ++i) {
        ASSERT_FALSE(to_.flush());
    }
    ASSERT_FALSE(to_.closed()) << "it is only slow";
    theirs_.reset();
    const expect_lines log(1);
    const deadline end(20);
    while (!to_.closed() && !end.over()) {
        (void)to_.flush();
    }
    ASSERT_TRUE(to_.closed());
    for (outgoing &each : fragments_) {
        EXPECT_EQ(to_.reap(), &each);
    }
    EXPECT_TRUE(to_.idle());
}

TEST_F(Peer, NeedsTheSegmentUntilAllIsPostedAndOneFragmentHasBeenRead)
{
    using enum peer::at_stake;
    EXPECT_EQ(to_.needs_segment_for(), nothing) << "nothing has been sent";
    EXPECT_EQ(status::ok, to_.attach());
    EXPECT_EQ(to_.needs_segment_for(), nothing);
    fill_and_leave(1);
    EXPECT_EQ(to_.needs_segment_for(), unmapped);
    consume(1); // so it has mapped the segment
    EXPECT_EQ(to_.needs_segment_for(), unposted);
    EXPECT_EQ(receive(), "a");
    EXPECT_TRUE(to_.flush());
    EXPECT_EQ(to_.needs_segment_for(), nothing);
    EXPECT_EQ(receive(), "a");
    EXPECT_EQ(to_.post(fragment("b")), status::ok);
    EXPECT_EQ(to_.needs_segment_for(), nothing);
}

TEST_F(Peer, OfAClosedPeerNothingNeedsTheSegment)
{
    fill_and_leave(1);
    to_.close();
    EXPECT_EQ(to_.needs_segment_for(), peer::at_stake::nothing);
}

TEST_F(Peer, OneThatCouldNotBeMappedSoFarNeedsTheSegment)
{
    const expect_lines log(1);
    const no_descriptors_left none;
    EXPECT_EQ(to_.post(fragment("a")), status::busy);
    EXPECT_EQ(to_.needs_segment_for(), peer::at_stake::unmapped);
    EXPECT_FALSE(to_.reads_no_more()) << "nobody knows";
}

TEST_F(Peer, ReadsNoMoreOnceItSaysThatItEndsOrItsProcessHasEnded)
{
    EXPECT_FALSE(to_.reads_no_more()) << "nothing is known of it";
    EXPECT_EQ(status::ok, to_.attach());
    EXPECT_FALSE(to_.reads_no_more());
    theirs_->tell(use_of_mpi::ending);
    EXPECT_TRUE(to_.reads_no_more());
    EXPECT_FALSE(to_.has_ended());
    EXPECT_FALSE(to_.has_ended_in_order()) << "it still posts what waits, and may be killed";
    theirs_->tell(use_of_mpi::goes_on);
    EXPECT_FALSE(to_.reads_no_more());
    theirs_.reset();
    EXPECT_TRUE(to_.reads_no_more());
    EXPECT_TRUE(to_.has_ended());
    EXPECT_TRUE(to_.has_ended_in_order());
}

TEST_F(Peer, OneThatIsGoneBeforeItWasLookedAtHasLeftUnseenUnlessItIsSentTo)
{
    EXPECT_FALSE(to_.has_left_unseen());
    theirs_.reset();
    const expect_lines log(0);
    EXPECT_EQ(to_.attach(), status::peer_gone);
    EXPECT_TRUE(to_.closed());
    EXPECT_TRUE(to_.has_ended());
    EXPECT_TRUE(to_.has_left_unseen());
    EXPECT_FALSE(to_.has_lost_messages());
    EXPECT_EQ(to_.post(fragment("a")), status::peer_gone);
    EXPECT_FALSE(to_.has_left_unseen());
}

TEST(PeerOfTwo, OneThatCannotReadOurMemorySaysSo)
{
    const scratch_folder folder;
    process one(folder.path(), 1, 4);
    process two(folder.path(), 2, 4);
    (void)one.send(two, "a");
    (void)two.poll();
    EXPECT_EQ(0U, one.towards(two).single_copy_refusals());
    for (const std::uint32_t times : {1U, 2U}) {
        two.its().refuse_single_copies(two.towards(one));
        EXPECT_EQ(times, one.towards(two).single_copy_refusals());
    }
    EXPECT_EQ(0U, two.towards(one).single_copy_refusals());
    two.its().refuse_single_copies(two.towards(one), false); // it can, after all
    EXPECT_EQ(0U, one.towards(two).single_copy_refusals());
}

} // namespace
