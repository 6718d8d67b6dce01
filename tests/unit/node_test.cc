// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// node_test.cc: messages between the nodes of two and three processes, played in one process, and
// the garbage that a broken process may leave in somebody's inbox.
#include "opal/mca/btl/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

class Node : public testing::Test {
  protected:
    scratch_folder folder_;
    process one_{folder_.path(), 1};
    process two_{folder_.path(), 2};
    process three_{folder_.path(), 3};
};

TEST_F(Node, MessagesGoBothWaysAndToItselfAndFragmentsComeBack)
{
    (void)one_.send(one_, "note");
    EXPECT_EQ(one_.poll(), "1:note ");
    EXPECT_EQ(one_.reap(one_), 1);
    outgoing &ping = one_.send(two_, "ping");
    EXPECT_EQ(two_.poll(), "1:ping ");
    outgoing &pong = two_.send(one_, "pong");
    EXPECT_EQ(one_.poll(), "2:pong ");
    EXPECT_EQ(one_.towards(two_).reap(), &ping);
    EXPECT_EQ(two_.towards(one_).reap(), &pong);
    EXPECT_TRUE(one_.towards(two_).idle());
    EXPECT_EQ(one_.poll(), "");
}

TEST_F(Node, PollStopsAtItsLimit)
{
    for (const char *payload : {"a", "b", "c"}) {
        (void)one_.send(two_, payload);
    }
    EXPECT_EQ(two_.poll(2), "1:a 1:b ");
    EXPECT_EQ(two_.poll(2), "1:c ");
    EXPECT_EQ(two_.poll(0), "");
}

TEST_F(Node, TheSamePeerIsMadeOnceBySendingOrByAMessageOfIts)
{
    peer &three = one_.towards(three_);
    (void)two_.send(one_, "hello");
    (void)three_.send(one_, "hello");
    EXPECT_EQ(one_.poll(), "2:hello 3:hello ");
    EXPECT_EQ(one_.its().peers().size(), 2U);
    EXPECT_EQ(&one_.towards(three_), &three);
    EXPECT_EQ(&one_.towards(two_), one_.its().peers()[1].get());
}

// --- garbage: `two` is broken and has sent one good message; `three` is a good citizen ----------

constexpr std::uint32_t of_broken = 0; // two is the first to take a slot

struct garbage {
    const char *name;
    bool sender_is_known; // and must be closed
    void (*leave)(process &receiver, process &broken);
};
void PrintTo(const garbage &about, std::ostream *out)
{
    *out << about.name;
}

void put(process &receiver, std::uint32_t slot, std::uint32_t granule)
{
    ASSERT_EQ(fifo_post(receiver.its().own().view().fifo, {slot, granule}), status::ok);
}

const garbage kinds_of_garbage[] = {
    {"SlotThatNobodyTook", false, [](process &to, process &) { put(to, 7, 1000); }},
    {"SlotBeyondTheTable", false, [](process &to, process &) { put(to, 8, 1000); }},
    {"LargestSlot", false, [](process &to, process &) { put(to, 0xffff, 1000); }},
    {"GranuleThatIsNoFragment", true, [](process &to, process &) { put(to, of_broken, 1); }},
    {"PayloadBeyondTheSegment", true,
     [](process &to, process &from) { from.send(to, "x").header->payload_bytes = 1U << 20; }},
    {"SequenceNumberAhead", true,
     [](process &to, process &from) { ++from.send(to, "x").header->sequence; }},
    {"SequenceNumberAgain", true,
     [](process &to, process &from) { --from.send(to, "x").header->sequence; }},
    {"TheSameFragmentTwice", true,
     [](process &to, process &from) {
         const outgoing &sent = from.send(to, "x");
         (void)to.poll();
         put(to, of_broken, sent.granule);
     }},
    {"MemoryThatWasNeverWritten", true,
     [](process &to, process &from) {
         put(to, of_broken, from.its().own().view().frag_offset / 64 + 500);
     }},
};

class Garbage : public Node, public testing::WithParamInterface<garbage> {};

INSTANTIATE_TEST_SUITE_P(Kinds, Garbage, testing::ValuesIn(kinds_of_garbage), name_of_row);

TEST_P(Garbage, IsDroppedWithOneLineItsSenderIsClosedAndOthersGoOn)
{
    (void)two_.send(one_, "good");
    (void)three_.send(one_, "a");
    ASSERT_EQ(one_.poll(), "2:good 3:a ");
    const log_capture log;
    GetParam().leave(one_, two_);
    (void)three_.send(one_, "b");
    EXPECT_EQ(one_.poll(), "3:b ");
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_EQ(one_.towards(two_).closed(), GetParam().sender_is_known);
    EXPECT_FALSE(one_.towards(three_).closed());

    (void)two_.send(one_, "more");
    (void)three_.send(one_, "c");
    EXPECT_EQ(one_.poll(), GetParam().sender_is_known ? "3:c " : "2:more 3:c ");
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_NE(three_.towards(one_).reap(), nullptr);
}

// All that may be stored there is for fuzz_fifo.
TEST_F(Node, AFifoThatSomebodyHasOverwrittenIsMendedAndThatIsSaidOnce)
{
    const log_capture log;
    for (std::uint64_t round = 1; round < 4; ++round) {
        const fifo_view &fifo = one_.its().own().view().fifo;
        for (std::uint32_t i = 0; i < fifo.slots; ++i) {
            fifo.slot[i].word = fifo_word::empty(17 * round);
        }
        *fifo.tail = 1ULL << (20 * round);
        (void)three_.send(one_, "a");
        std::string arrived;
        for (int step = 0; step < 200; ++step) {
            arrived += one_.poll();
            one_.its().mend_inbox();
            (void)three_.towards(one_).flush();
        }
        ASSERT_EQ(arrived, "3:a ") << round;
    }
    EXPECT_EQ(log.count(), 1U) << log.text();
}

TEST_F(Node, OfAClosedSenderNothingIsHandledAndNothingGivenBack)
{
    (void)two_.send(one_, "good");
    ASSERT_EQ(one_.poll(), "2:good ");
    ASSERT_NE(two_.towards(one_).reap(), nullptr);
    one_.towards(two_).close();
    const log_capture log;
    (void)two_.send(one_, "late");
    EXPECT_EQ(one_.poll(), "");
    EXPECT_EQ(two_.towards(one_).reap(), nullptr);
    EXPECT_EQ(log.count(), 0U) << log.text();
}

TEST_F(Node, AHandlerMayCloseTheSender)
{
    (void)two_.send(one_, "a");
    (void)two_.send(one_, "b");
    int handled = 0;
    (void)one_.its().poll(10, [&handled](peer &from, const frag_header &, const unsigned char *) {
        ++handled;
        from.close();
    });
    EXPECT_EQ(handled, 1);
}

TEST_F(Node, AFragmentThatIsHandledIsNotGivenBackAndItsHeaderIsSeenAsItWas)
{
    outgoing &sent = one_.send(two_, "abcdef");
    const std::uint64_t sequence = sent.header->sequence;
    const int handled =
        two_.its().poll(10, [&](peer &, const frag_header &header, const unsigned char *payload) {
            std::memset(static_cast<void *>(sent.header), 0xff, sizeof(*sent.header));
            EXPECT_EQ(header.payload_bytes, 6U);
            EXPECT_EQ(header.kind, frag_kind::active_message);
            EXPECT_EQ(header.tag, 0);
            EXPECT_EQ(header.sequence, sequence);
            EXPECT_EQ(payload_of(header, payload), "abcdef");
            EXPECT_EQ(one_.reap(two_), 0);
        });
    EXPECT_EQ(handled, 1);
    EXPECT_NE(one_.towards(two_).reap(), nullptr) << "and it is given back as usual";
}

TEST_F(Node, MessagesOfASenderThatCannotBeMappedAreDroppedAndReportedOnce)
{
    for (const bool file_is_gone : {false, true}) {
        const log_capture log;
        process unreadable(folder_.path(), file_is_gone ? 4 : 5);
        for (int i = 0; i < 5; ++i) {
            (void)unreadable.send(one_, "x");
        }
        (void)three_.send(one_, "a");
        unreadable.its().own().view().header->magic = 0;
        if (file_is_gone) {
            ASSERT_EQ(unlink(unreadable.its().own().path().c_str()), 0);
        }
        EXPECT_EQ(one_.poll(), "3:a ");
        EXPECT_EQ(log.count(), 1U) << log.text();
    }
}

// A sender that fails to be mapped in passing must not lose a message: the one behind it would be
// taken for nonsense.
TEST_F(Node, MessagesWaitWhileThereIsNoDescriptorToMapTheirSenderWith)
{
    (void)three_.send(one_, "a");
    ASSERT_EQ(one_.poll(), "3:a ");
    const log_capture log;
    (void)two_.send(one_, "b");
    (void)two_.send(one_, "c");
    (void)three_.send(one_, "d");
    rlimit usual{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
    const rlimit none{0, usual.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(one_.poll(), "");
    }
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_EQ(one_.poll(), "2:b 2:c 3:d ");
    EXPECT_FALSE(one_.towards(two_).closed());
    EXPECT_EQ(two_.reap(one_), 2);
}

} // namespace
