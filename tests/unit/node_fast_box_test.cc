// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// node_fast_box_test.cc: fast boxes between the nodes of several processes, played in one process:
// who gets one, the order between fast box and FIFO, fragments that come back, and garbage.
#include "opal/mca/btl/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

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
    const log_capture log;
    EXPECT_EQ(two_.poll(), "");
    EXPECT_EQ(two_.poll(), "");
    EXPECT_TRUE(two_.towards(one_).closed());
    EXPECT_EQ(log.count(), 1U) << log.text();
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

TEST_F(NodeFastBox, OneThatCannotReadOurMemorySaysSo)
{
    (void)one_.send(two_, "a");
    (void)two_.poll();
    EXPECT_FALSE(one_.towards(two_).refuses_single_copies());
    two_.its().refuse_single_copies(two_.towards(one_));
    EXPECT_TRUE(one_.towards(two_).refuses_single_copies());
    EXPECT_FALSE(two_.towards(one_).refuses_single_copies());
}

} // namespace
