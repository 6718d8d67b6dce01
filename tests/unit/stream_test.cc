// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_test.cc: messages streamed between processes that are played in one: in order, more
// than the ring holds, from a sender that is away, and what a broken peer may do.
#include "tests/unit/stream_support.h"

namespace gpusm_test {
namespace {

TEST_F(Stream, MessagesOfManyLengthsArriveInOrder)
{
    std::deque<message> all;
    for (const std::size_t len :
         {std::size_t{1}, 16 * kibi, 16 * kibi + 1, 100 * kibi + 3, 5000 * kibi}) {
        all.emplace_back(len, static_cast<unsigned char>(len));
        ask(&all.back());
    }
    EXPECT_FALSE(reader_.streams.idle());
    deliver();
    const std::vector<stream_fetch *> ended = run(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(&all[i].fetch, ended[i]);
        EXPECT_EQ(status::ok, all[i].fetch.outcome);
        EXPECT_TRUE(all[i].right());
    }
    EXPECT_TRUE(reader_.streams.idle());
    EXPECT_TRUE(sender_.streams.idle());
    EXPECT_EQ(0, reader_.parts_read);
}

TEST_F(Stream, ACallOfProgressCopiesABoundedAmount)
{
    message one(1024 * kibi);
    ask_and_deliver(&one);
    for (int calls = 0; calls < 7; ++calls) {
        ASSERT_EQ(nullptr, sender_.streams.progress());
        ASSERT_EQ(nullptr, reader_.streams.progress()) << "after " << calls << " calls";
    }
    expect_end(one);
}

TEST_F(Stream, ASenderIsWaitedFor)
{
    message one(20 * kibi);
    ask(&one);
    const deadline soon(1);
    while (!soon.over()) {
        ASSERT_EQ(nullptr, reader_.streams.progress());
    }
    EXPECT_EQ(0, reader_.parts_read);
    deliver();
    expect_end(one);
}

TEST_F(Stream, MemoryThatIsNotRegisteredIsRefused)
{
    message one(20 * kibi);
    sender_.refuses = true;
    ask_and_deliver(&one);
    expect_end(one, status::unsupported);
}

// A program may send one buffer several times at once.
TEST_F(Stream, MemoryThatIsForgottenIsNotReadAnyMoreForThatMessageAlone)
{
    message one(4096 * kibi);
    message two(4096 * kibi);
    message waiting(100 * kibi);
    two.fetch.address = one.fetch.address;
    for (message *each : {&one, &two, &waiting}) {
        ask(each);
    }
    deliver();
    EXPECT_EQ(nullptr, sender_.streams.progress());
    sender_.streams.forget(&one);
    sender_.streams.forget(&waiting);
    (void)run(3);
    EXPECT_EQ(status::unsupported, one.fetch.outcome);
    EXPECT_EQ(status::unsupported, waiting.fetch.outcome);
    EXPECT_EQ(status::ok, two.fetch.outcome);
    EXPECT_TRUE(two.right() && sender_.streams.idle());
}

TEST_F(Stream, RingsAreFewAndLentAgain)
{
    std::deque<stream_process> others;
    std::deque<message> all;
    int streamed = 0;
    for (status s = status::ok; status::ok == s && streamed < 6; streamed += status::ok == s) {
        stream_process &other = others.emplace_back(folder_.path(), 10 + streamed);
        message &one = all.emplace_back(20 * kibi).of_both(false);
        s = reader_.streams.fetch(reader_.towards(other), &one.fetch);
        EXPECT_TRUE(status::ok == s || status::busy == s);
    }
    EXPECT_GE(streamed, 2) << "of a segment of 8 MiB";
    EXPECT_LT(streamed, 6);
    (void)run(static_cast<std::size_t>(streamed), false); // they do not answer
}

// Numbers of messages are counted for each peer, and the ring remembers the last one that was
// stopped.
TEST_F(Stream, ARingThatWasStoppedServesAnotherPeer)
{
    for (int i = 0; i < 5; ++i) {
        message gone(20 * kibi);
        gone.of_both(false);
        ask(&gone);
        (void)run(1, false);
        deliver();
        stream_with(sender_);
    }
    stream_process other(folder_.path(), 3);
    message one(20 * kibi);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(other), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(other));
    stream_with(other);
    EXPECT_EQ(status::ok, one.fetch.outcome);
    EXPECT_TRUE(one.right());
}

// The pieces that it has published, and nobody has taken, are not taken for another peer's.
TEST_F(Stream, TheRingsOfAPeerThatHasEndedServeOthers)
{
    message gone(50 * kibi);
    ask_and_deliver(&gone);
    peer &ended = reader_.towards(sender_);
    peer &its_reader = sender_.towards(reader_);
    EXPECT_FALSE(reader_.streams.in.forget(ended)) << "it is under way";
    EXPECT_FALSE(sender_.streams.out.forget_peer(its_reader));
    ended.close();
    expect_end(gone, status::peer_gone, false);
    EXPECT_EQ(nullptr, sender_.streams.progress()); // its last pieces
    EXPECT_TRUE(reader_.streams.in.forget(ended));
    its_reader.close();
    EXPECT_EQ(nullptr, sender_.streams.progress());
    EXPECT_TRUE(sender_.streams.out.forget_peer(its_reader));
    EXPECT_EQ(0, sender_.opened);

    stream_process other(folder_.path(), 3);
    message one(50 * kibi, 7);
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(other), &one.fetch));
    EXPECT_EQ(nullptr, reader_.streams.progress()) << "it has not heard of it yet";
    ASSERT_TRUE(reader_.deliver_to(other));
    stream_with(other);
    EXPECT_EQ(status::ok, one.fetch.outcome);
    EXPECT_TRUE(one.right());
}

TEST_F(Stream, APieceThatMakesNoSenseClosesThePeerAndEndsItsMessages)
{
    const log_capture log;
    message one(50 * kibi);
    peer &from = reader_.towards(sender_);
    ask(&one);
    const stream_message asked = reader_.sent.front().first;
    auto *ring =
        reinterpret_cast<gpusm::stream_ring *>(sender_.towards(reader_).shared().base() +
                                               std::size_t{asked.granule} * gpusm::granule_bytes);
    ring->pieces[0].offset = 0;
    ring->pieces[0].bytes = host_pool.slot_bytes + 1;
    ring->pieces[0].want = asked.want;
    ring->pieces[0].sequence = asked.sequence + 1;
    expect_end(one, status::bad_peer, false);
    EXPECT_TRUE(from.closed());
    EXPECT_NE(std::string::npos, log.text().find("makes no sense"));
}

TEST_F(Stream, ASilentSenderIsPolledAsOftenAsTheMessageSaysAndNoLonger)
{
    constexpr std::uint32_t polls = 64;
    message one(300 * kibi);
    one.of_both(false).fetch.empty_polls = polls;
    ask(&one);
    for (std::uint32_t i = 1; i < polls; ++i) {
        EXPECT_EQ(nullptr, reader_.streams.progress());
        EXPECT_EQ(0, reader_.parts_read) << i;
    }
    expect_end(one, status::ok, false);
    EXPECT_EQ(0U, one.fetch.received) << "through the ring";
    ASSERT_TRUE(reader_.deliver_to(sender_)) << "the sender is back, and has nothing to do";

    message two(300 * kibi, 2);
    two.of_both(false).fetch.empty_polls = polls;
    reader_.parts_read = 0;
    ask_and_deliver(&two);
    expect_end(two);
    EXPECT_EQ(0, reader_.parts_read) << "of a sender that answers";

    message three(700 * kibi, 3);
    three.of_both(false).fetch.empty_polls = polls;
    ask_and_deliver(&three);
    EXPECT_EQ(nullptr, sender_.streams.progress());
    expect_end(three, status::ok, false);
    EXPECT_GT(reader_.parts_read, 0) << "of a sender that leaves in the middle";
    EXPECT_GT(three.fetch.received, 0U);
    EXPECT_LT(three.fetch.received, three.fetch.len_bytes);
}

TEST_F(Stream, MessagesThatMakeNoSenseAreNotTaken)
{
    peer &from = sender_.towards(reader_);
    message one(50 * kibi);
    ask(&one);
    const stream_message right = reader_.sent.front().first;
    const stream_memory memory{{0, 0, share_kind::legacy, 0, 0, 4096, 50 * kibi}, 4096};
    const auto takes = [&](auto change, const stream_memory *with = nullptr) {
        stream_message wrong = right;
        change(wrong);
        return sender_.streams.take(from, wrong, with);
    };
    EXPECT_FALSE(takes([](auto &m) { m.granule = 0xffffff; })) << "outside of the segment";
    EXPECT_FALSE(takes([](auto &m) { m.granule += 1; })) << "not at a page";
    EXPECT_FALSE(takes([](auto &m) { m.len_bytes = 0; })) << "of no bytes";
    EXPECT_FALSE(takes([](auto &m) { m.slot_bytes = 0; })) << "in no slots";
    EXPECT_FALSE(takes([](auto &m) { m.slot_bytes = 1U << 30; })) << "longer than the segment";
    EXPECT_FALSE(takes([](auto &m) { m.pieces = 0; })) << "in no pieces";
    EXPECT_FALSE(takes([](auto &m) { m.pieces = gpusm::most_stream_pieces + 1; })) << "in too many";
    EXPECT_FALSE(takes([](auto &m) { m.sequence = UINT64_MAX; })) << "goes on from nothing";
    EXPECT_FALSE(takes([](auto &m) { m.uses = stream_memory_use::target; })) << "no target";
    EXPECT_FALSE(takes([](auto &) {}, &memory)) << "memory for nothing";
    EXPECT_FALSE(takes([](auto &m) { m.uses = stream_memory_use::slots; }, &memory))
        << "more slots than there is memory";
    stream_memory short_memory = memory;
    short_memory.handle.len_bytes -= 1;
    EXPECT_FALSE(takes([](auto &m) { m.uses = stream_memory_use::target; }, &short_memory))
        << "ends behind the target";
    EXPECT_TRUE(takes([](auto &) {}));
    EXPECT_FALSE(takes([](auto &) {})) << "begins anew before the first one is sent";
}

} // namespace
} // namespace gpusm_test
