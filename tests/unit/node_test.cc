// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// node_test.cc: messages between the nodes of two and three processes, played in one process, by
// FIFOs and fast boxes, and the garbage that a broken process may leave in either.
#include "opal/mca/common/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

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
    EXPECT_EQ(&one_.towards(three_), &three);
    EXPECT_EQ(three.number, 0U);
    EXPECT_EQ(&one_.towards(two_), one_.its().peer_at(1));
    EXPECT_EQ(one_.its().peer_at(2), nullptr);
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
    const expect_lines log(1);
    GetParam().leave(one_, two_);
    (void)three_.send(one_, "b");
    EXPECT_EQ(one_.poll(), "3:b ");
    EXPECT_EQ(one_.towards(two_).closed(), GetParam().sender_is_known);
    EXPECT_FALSE(one_.towards(three_).closed());

    (void)two_.send(one_, "more");
    (void)three_.send(one_, "c");
    EXPECT_EQ(one_.poll(), GetParam().sender_is_known ? "3:c " : "2:more 3:c ");
    EXPECT_NE(three_.towards(one_).reap(), nullptr);
}

// All that may be stored there is for fuzz_fifo.
TEST_F(Node, AFifoThatSomebodyHasOverwrittenIsMendedAndThatIsSaidOnce)
{
    const expect_lines log(1);
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
}

TEST_F(Node, OfAClosedSenderNothingIsHandledAndNothingGivenBack)
{
    (void)two_.send(one_, "good");
    ASSERT_EQ(one_.poll(), "2:good ");
    ASSERT_NE(two_.towards(one_).reap(), nullptr);
    one_.towards(two_).close();
    const expect_lines log(0);
    (void)two_.send(one_, "late");
    EXPECT_EQ(one_.poll(), "");
    EXPECT_EQ(two_.towards(one_).reap(), nullptr);
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
        const expect_lines log(1);
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
        EXPECT_FALSE(one_.towards(unreadable).has_left_unseen());
        EXPECT_EQ(one_.towards(unreadable).has_lost_messages(), file_is_gone);
    }
}

// A sender that fails to be mapped in passing must not lose a message: the one behind it would be
// taken for nonsense.
TEST_F(Node, MessagesOfASenderThatCannotBeMappedNowArePutAsideInOrderAndOthersGoOn)
{
    (void)three_.send(one_, "a");
    ASSERT_EQ(one_.poll(), "3:a ");
    const expect_lines log(1);
    (void)two_.send(one_, "b");
    (void)two_.send(one_, "c");
    (void)three_.send(one_, "d");
    {
        const no_descriptors_left none;
        EXPECT_EQ(one_.poll(), "3:d ");
        for (int i = 0; i < 20; ++i) {
            (void)three_.send(one_, "e");
            EXPECT_EQ(one_.poll(), "3:e ");
            EXPECT_EQ(one_.take_put_aside(), "");
        }
        EXPECT_EQ(two_.reap(one_), 0);
    }
    (void)two_.send(one_, "f");
    EXPECT_EQ(one_.poll(), "") << "it may not pass those before it";
    EXPECT_EQ(one_.take_put_aside(), "2:b 2:c 2:f ");
    EXPECT_FALSE(one_.towards(two_).closed());
    EXPECT_EQ(two_.reap(one_), 3);
    (void)two_.send(one_, "g");
    EXPECT_EQ(one_.poll(), "2:g ");
    EXPECT_EQ(one_.take_put_aside(), "");
}

TEST_F(Node, SeveralSendersThatCannotBeMappedAreTriedInTurn)
{
    const expect_lines log(2);
    (void)two_.send(one_, "a");
    (void)three_.send(one_, "b");
    {
        const no_descriptors_left none;
        EXPECT_EQ(one_.poll(), "");
    }
    std::string arrived = one_.take_put_aside();
    arrived += one_.take_put_aside();
    EXPECT_TRUE(arrived == "2:a 3:b " || arrived == "3:b 2:a ") << arrived;
}

// One that has ended in order takes its file with it, one that was killed leaves it.
TEST_F(Node, WhatWasPutAsideOfASenderThatHasEndedIsDroppedIfItsFileIsGoneAndArrivesIfNot)
{
    for (const bool leaves_file : {true, false}) {
        const expect_lines log(leaves_file ? 1 : 2);
        const std::uint32_t vpid = leaves_file ? 4 : 5;
        auto mortal = std::make_unique<process>(folder_.path(), vpid);
        (void)mortal->send(one_, "x");
        {
            const no_descriptors_left none;
            EXPECT_EQ(one_.poll(), "");
        }
        const std::string path = mortal->its().own().path();
        const std::string kept = path + ".kept";
        ASSERT_EQ(0, link(path.c_str(), kept.c_str()));
        peer &seen = one_.towards(*mortal);
        mortal.reset();
        if (leaves_file) {
            ASSERT_EQ(0, rename(kept.c_str(), path.c_str()));
        }
        (void)three_.send(one_, "a");
        EXPECT_EQ(one_.poll(), "3:a ");
        EXPECT_EQ(one_.take_put_aside(), leaves_file ? "4:x " : "");
        EXPECT_EQ(seen.closed(), !leaves_file);
        EXPECT_EQ(one_.take_put_aside(), "");
    }
}

// --- fast boxes: who gets one, the order between fast box and FIFO, and garbage in one ---

constexpr int before_fast_box = 16; // messages that a sender sends in fragments

// Messages until `to` has made a fast box for `from` and that one has seen it.
void warm_up(process &from, process &to)
{
    for (int i = 0; i < 2 * before_fast_box + 1; ++i) {
        (void)from.send(to, "w");
        (void)to.poll();
    }
    (void)from.reap(to);
}

fast_box *fast_box_of(process &owner, std::uint32_t slot)
{
    const std::uint32_t granule = owner.its().own().view().peers[slot].fast_box.load();
    return 0 == granule ? nullptr : reinterpret_cast<fast_box *>(owner.its().own().at(granule));
}

class NodeFastBox : public testing::Test {
  protected:
    scratch_folder folder_;
    process one_{folder_.path(), 1, 4};
    process two_{folder_.path(), 2, 4};
};

TEST_F(NodeFastBox, ASenderGetsOneAfterSomeMessages)
{
    for (int i = 0; i < before_fast_box - 1; ++i) {
        (void)one_.send(two_, "a");
        (void)two_.poll();
    }
    EXPECT_EQ(fast_box_of(two_, 0), nullptr);
    EXPECT_FALSE(one_.send_inline(two_, "x"));
    warm_up(one_, two_);
    EXPECT_NE(fast_box_of(two_, 0), nullptr);
    EXPECT_TRUE(one_.send_inline(two_, "x"));
    EXPECT_EQ(two_.poll(), "1:x ");
    EXPECT_EQ(two_.poll(), "");
}

TEST_F(NodeFastBox, ThereAreNoMoreThanAllowed)
{
    process few(folder_.path(), 3, 1);
    warm_up(one_, few);
    warm_up(two_, few);
    EXPECT_TRUE(one_.send_inline(few, "x"));
    EXPECT_FALSE(two_.send_inline(few, "y")) << "it goes on with fragments";
    (void)two_.send(few, "y");
    EXPECT_EQ(few.poll(), "1:x 2:y ");
    process none(folder_.path(), 4, 0);
    warm_up(one_, none);
    EXPECT_FALSE(one_.send_inline(none, "x"));
}

TEST_F(NodeFastBox, ThatOfTheNextRankIsReadFirst)
{
    process three(folder_.path(), 3, 4);
    process four(folder_.path(), 4, 4);
    for (process *each : {&one_, &two_, &four}) {
        warm_up(*each, three);
    }
    for (process *each : {&one_, &two_, &four}) {
        EXPECT_TRUE(each->send_inline(three, "x"));
    }
    EXPECT_EQ(three.poll(), "4:x 1:x 2:x ");
}

TEST_F(NodeFastBox, WhatIsTooLongForItGoesInAFragmentInOrder)
{
    warm_up(one_, two_);
    EXPECT_TRUE(one_.send_inline(two_, "a"));
    EXPECT_FALSE(one_.send_inline(two_, std::string(1300, 'x')));
    (void)one_.send(two_, "b");
    EXPECT_TRUE(one_.send_inline(two_, "c"));
    EXPECT_EQ(one_.reap(two_), 0);
    EXPECT_EQ(two_.poll(), "1:a 1:b 1:c ");
    EXPECT_EQ(one_.reap(two_), 1);
    EXPECT_TRUE(one_.towards(two_).idle());
    one_.towards(two_).close();
    EXPECT_FALSE(one_.send_inline(two_, "to a closed peer"));
}

// With the fast box full, fragments go by the FIFO, and then the fast box may have room again.
TEST_F(NodeFastBox, OrderIsKeptBetweenFastBoxFifoAndWhatWaits)
{
    warm_up(one_, two_);
    std::mt19937 random(1);
    std::string expected;
    std::string arrived;
    int fragments = 0;
    int inlined = 0;
    int reaped = 0;
    const auto receive = [&](int limit) {
        arrived += two_.poll(limit);
        (void)one_.towards(two_).flush();
        reaped += one_.reap(two_);
    };
    for (int step = 0; step < 3000; ++step) {
        const std::uint64_t what = random() % 4;
        if (3 == what) {
            receive(static_cast<int>(random() % 5));
            continue;
        }
        const std::string payload = std::to_string(step);
        expected += "1:" + payload + " ";
        if (what < 2 && one_.send_inline(two_, payload + std::string(random() % 200, '.'))) {
            ++inlined;
        } else {
            (void)one_.send(two_, payload);
            ++fragments;
        }
    }
    for (int i = 0; i < 2000; ++i) {
        receive(1000);
    }
    std::erase(arrived, '.');
    EXPECT_EQ(arrived, expected);
    EXPECT_EQ(reaped, fragments);
    EXPECT_GT(inlined, 100);
    EXPECT_GT(fragments, 100);
    EXPECT_FALSE(one_.towards(two_).closed());
    EXPECT_FALSE(two_.towards(one_).closed());
}

TEST_F(NodeFastBox, GarbageInAFastBoxClosesItsSenderAndNobodyElse)
{
    process three(folder_.path(), 3, 4);
    warm_up(one_, two_);
    warm_up(three, two_);
    EXPECT_TRUE(one_.send_inline(two_, "good"));
    ASSERT_EQ(two_.poll(), "1:good ");
    const auto due = static_cast<std::uint32_t>(two_.towards(one_).next_sequence);
    fast_box *box = fast_box_of(two_, 0);
    ASSERT_NE(box, nullptr);
    for (fast_box_unit &each : box->unit) { // a reference to a place that is none
        each.word.store(
            fast_box_word::pack({due, sizeof(fast_box_reference), fast_box_word::reference, 0}));
        std::memset(each.payload, 0xff, sizeof(fast_box_reference));
    }
    const expect_lines log(1);
    EXPECT_EQ(two_.poll(), "");
    EXPECT_EQ(two_.poll(), "");
    EXPECT_TRUE(two_.towards(one_).closed());
    EXPECT_TRUE(three.send_inline(two_, "fine"));
    EXPECT_EQ(two_.poll(), "3:fine ");
}

// The owner's word about where the fast box is.
TEST_F(NodeFastBox, AFastBoxThatCannotBeIsNotUsed)
{
    for (std::uint32_t granule : {0U, 1U, (1U << 20) / 64 - 1, 0xffffffU, 0xffffffffU}) {
        process honest(folder_.path(), 10 + granule % 7, 4);
        process liar(folder_.path(), 20 + granule % 7);
        (void)honest.send(liar, "a");
        if (0 == granule) { // where other things are
            ASSERT_EQ(status::ok, liar.its().own().carve(sizeof(fast_box), &granule));
        }
        liar.its().own().view().peers[0].fast_box.store(granule);
        warm_up(honest, liar);
        EXPECT_FALSE(honest.send_inline(liar, "x")) << granule;
    }
}

} // namespace
