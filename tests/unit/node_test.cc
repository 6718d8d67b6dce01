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

TEST_F(Node, MessagesGoBothWaysAndFragmentsComeBack)
{
    outgoing &ping = one_.send(two_, "ping");
    EXPECT_EQ(two_.poll(), "1:ping ");
    outgoing &pong = two_.send(one_, "pong");
    EXPECT_EQ(one_.poll(), "2:pong ");
    EXPECT_EQ(one_.towards(two_).reap(), &ping);
    EXPECT_EQ(two_.towards(one_).reap(), &pong);
    EXPECT_TRUE(one_.towards(two_).idle());
    EXPECT_EQ(one_.poll(), "");
}

TEST_F(Node, AProcessCanSendToItself)
{
    (void)one_.send(one_, "note");
    EXPECT_EQ(one_.poll(), "1:note ");
    EXPECT_NE(one_.towards(one_).reap(), nullptr);
}

TEST_F(Node, PollStopsAtItsLimit)
{
    for (const char *payload : {"a", "b", "c"}) {
        (void)one_.send(two_, payload);
    }
    EXPECT_EQ(two_.poll(2), "1:a 1:b ");
    EXPECT_EQ(two_.last_count, 2);
    EXPECT_EQ(two_.poll(2), "1:c ");
    EXPECT_EQ(two_.last_count, 1);
    EXPECT_EQ(two_.poll(0), "");
}

TEST_F(Node, TheSamePeerIsMadeOnce)
{
    peer *first = one_.its().add_peer(two_.identity(), folder_.path());
    EXPECT_EQ(one_.its().add_peer(two_.identity(), folder_.path()), first);
    EXPECT_NE(one_.its().add_peer(three_.identity(), folder_.path()), first);
    EXPECT_EQ(one_.its().peers().size(), 2U);
    (void)two_.send(one_, "hello");
    EXPECT_EQ(one_.poll(), "2:hello ");
    EXPECT_EQ(one_.its().peers().size(), 2U) << "the sender was known";
}

TEST_F(Node, AMessageOfAPeerThatNobodyHasSpokenOfIsReceived)
{
    (void)two_.send(one_, "hello");
    EXPECT_TRUE(one_.its().peers().empty());
    EXPECT_EQ(one_.poll(), "2:hello ");
    ASSERT_EQ(one_.its().peers().size(), 1U);
    EXPECT_TRUE(one_.its().peers()[0]->identity() == two_.identity());
}

TEST_F(Node, TheFragmentIsNotGivenBackWhileItIsHandled)
{
    (void)one_.send(two_, "a");
    const int handled =
        two_.its().poll(1, [this](peer &, const frag_header &, const unsigned char *) {
            EXPECT_EQ(one_.towards(two_).reap(), nullptr);
        });
    EXPECT_EQ(handled, 1);
    EXPECT_NE(one_.towards(two_).reap(), nullptr);
}

// --- garbage: `two` is broken and has sent one good message; `three` is a good citizen ----------

struct garbage {
    const char *name;
    bool sender_is_known; // and must be closed
    void (*leave)(process &receiver, process &broken, std::uint32_t slot_of_broken);
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
    {"SlotThatNobodyTook", false, [](process &to, process &, std::uint32_t) { put(to, 7, 1000); }},
    {"SlotBeyondTheTable", false, [](process &to, process &, std::uint32_t) { put(to, 8, 1000); }},
    {"LargestSlot", false, [](process &to, process &, std::uint32_t) { put(to, 0xffff, 1000); }},
    {"GranuleInTheHeader", true,
     [](process &to, process &, std::uint32_t slot) { put(to, slot, 1); }},
    {"GranuleInTheTables", true,
     [](process &to, process &from, std::uint32_t slot) {
         put(to, slot, from.its().own().view().frag_offset / 64 - 1);
     }},
    {"GranuleBeyondTheSegment", true,
     [](process &to, process &, std::uint32_t slot) { put(to, slot, (1U << 20) / 64); }},
    {"LargestGranule", true,
     [](process &to, process &, std::uint32_t slot) { put(to, slot, 0xffffff); }},
    {"PayloadBeyondTheSegment", true,
     [](process &to, process &from, std::uint32_t) {
         from.send(to, "x").header->payload_bytes = 1U << 20;
     }},
    {"LargestPayload", true,
     [](process &to, process &from, std::uint32_t) {
         from.send(to, "x").header->payload_bytes = 0xffffffffU;
     }},
    {"SequenceNumberAhead", true,
     [](process &to, process &from, std::uint32_t) { ++from.send(to, "x").header->sequence; }},
    {"SequenceNumberAgain", true,
     [](process &to, process &from, std::uint32_t) { --from.send(to, "x").header->sequence; }},
    {"TheSameFragmentTwice", true,
     [](process &to, process &from, std::uint32_t slot) {
         const outgoing &sent = from.send(to, "x");
         (void)to.poll();
         put(to, slot, sent.granule);
     }},
    {"MemoryThatWasNeverWritten", true,
     [](process &to, process &from, std::uint32_t slot) {
         put(to, slot, from.its().own().view().frag_offset / 64 + 500);
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
    GetParam().leave(one_, two_, 0); // two was the first to take a slot
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

// In words that say they are of others than `three`, in the tail, and in what `two` sends.
TEST_F(Node, WhateverIsStoredInItsFifoOthersGetThroughAndNothingEndsItOrRunsForEver)
{
    (void)alarm(60); // an endless loop ends the test
    (void)two_.send(one_, "good");
    (void)three_.send(one_, "a");
    ASSERT_EQ(one_.poll(), "2:good 3:a ");
    const log_capture log;
    std::mt19937_64 random(8);
    segment &sender = two_.its().own();
    std::uint32_t granule = 0;
    ASSERT_EQ(sender.carve(4096, &granule), status::ok);
    for (int round = 0; round < 500; ++round) {
        SCOPED_TRACE(round);
        for (std::uint32_t i = 0; i < 512; ++i) {
            const std::uint64_t word = 0 == random() % 2 ? random() : random() % 256;
            std::memcpy(sender.at(granule) + i * sizeof(word), &word, sizeof(word));
        }
        const fifo_view &fifo = one_.its().own().view().fifo;
        for (std::uint32_t i = random() % fifo.slots; i < fifo.slots; ++i) {
            const auto named = static_cast<std::uint32_t>(granule + random() % 64);
            const std::uint64_t words[] = {
                fifo_word::full(random(), {0, named}),
                fifo_word::full(random(), {static_cast<std::uint32_t>(2 + random()), named}),
                fifo_word::empty(random())};
            fifo.slot[i].word = words[random() % std::size(words)];
        }
        fifo.tail->store(random() % (0 == random() % 2 ? 64 : UINT64_MAX));
        const std::string payload = std::to_string(round);
        (void)three_.send(one_, payload);
        std::string arrived;
        for (int step = 0; step < 200; ++step) {
            arrived += one_.poll();
            one_.its().mend_inbox();
            (void)three_.towards(one_).flush();
        }
        ASSERT_NE(arrived.find("3:" + payload + " "), std::string::npos) << arrived;
    }
    EXPECT_TRUE(one_.towards(two_).closed());
    EXPECT_FALSE(one_.towards(three_).closed());
    EXPECT_NE(log.text().find("has overwritten the FIFO"), std::string::npos);
    (void)alarm(0);
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

TEST_F(Node, AHeaderThatChangesAfterItWasPostedIsCheckedAsItIsHandled)
{
    outgoing &shorter = one_.send(two_, "abcdef");
    shorter.header->payload_bytes = 3;
    EXPECT_EQ(two_.poll(), "1:abc ");
    outgoing &longer = one_.send(two_, "abcdef");
    longer.header->payload_bytes = 1U << 20;
    const log_capture log;
    EXPECT_EQ(two_.poll(), "");
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_TRUE(two_.towards(one_).closed());
}

TEST_F(Node, AHeaderThatChangesWhileItIsHandledIsSeenAsItWas)
{
    outgoing &sent = one_.send(two_, "abcdef");
    const std::uint64_t sequence = sent.header->sequence;
    int handled = 0;
    (void)two_.its().poll(10, [&](peer &, const frag_header &header, const unsigned char *payload) {
        ++handled;
        std::memset(static_cast<void *>(sent.header), 0xff, sizeof(*sent.header));
        EXPECT_EQ(header.payload_bytes, 6U);
        EXPECT_EQ(header.kind, frag_kind::active_message);
        EXPECT_EQ(header.tag, 0);
        EXPECT_EQ(header.sequence, sequence);
        EXPECT_EQ(payload_of(header, payload), "abcdef");
    });
    EXPECT_EQ(handled, 1);
    EXPECT_NE(one_.towards(two_).reap(), nullptr) << "and it is given back as usual";
}

TEST_F(Node, MessagesOfASenderWhoseFileIsGoneAreDroppedAndReportedOnce)
{
    const log_capture log;
    for (int i = 0; i < 5; ++i) {
        (void)two_.send(one_, "unreadable");
    }
    (void)three_.send(one_, "a");
    ASSERT_EQ(unlink(two_.its().own().path().c_str()), 0);
    EXPECT_EQ(one_.poll(), "3:a ");
    EXPECT_EQ(log.count(), 1U) << log.text();
}

TEST_F(Node, APeerSlotThatNamesABrokenSegmentIsDroppedAndReportedOnce)
{
    const log_capture log;
    for (int i = 0; i < 5; ++i) {
        (void)two_.send(one_, "unreadable");
    }
    (void)three_.send(one_, "a");
    two_.its().own().view().header->magic = 0;
    EXPECT_EQ(one_.poll(), "3:a ");
    EXPECT_EQ(log.count(), 1U) << log.text();
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
