// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// node_fast_box_test.cc: fast boxes between the nodes of several processes, played in one process:
// who gets one, the order between fast box and FIFO, fragments that come back, and garbage.
#include "opal/mca/btl/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <deque>
#include <random>

#include <gtest/gtest.h>

namespace {

using gpusm::frag_header;
using gpusm::frag_kind;
using gpusm::node;
using gpusm::outgoing;
using gpusm::peer;
using gpusm::status;
using gpusm_test::log_capture;
using gpusm_test::scratch_folder;

constexpr int before_fast_box = 16; // messages that a sender sends in fragments

class process {
  public:
    process(const std::string &folder, std::uint32_t vpid, std::uint32_t fast_box_max = 4)
        : folder_(folder),
          node_(gpusm_test::make_segment(options(folder, vpid)), false, fast_box_max)
    {
    }

    node &its() { return node_; }
    peer &towards(process &other) { return *node_.add_peer(other.node_.own().identity(), folder_); }
    void send(process &to, const std::string &payload)
    {
        fragments_.push_back(gpusm_test::make_fragment(node_.own(), payload));
        const status s = towards(to).post(&fragments_.back());
        EXPECT_TRUE(status::ok == s || status::busy == s) << gpusm::to_string(s);
    }
    bool send_inline(process &to, const std::string &payload)
    {
        const auto fill = [&](unsigned char *at) {
            std::memcpy(at, payload.data(), payload.size());
        };
        peer &target = towards(to);
        constexpr frag_kind kind = frag_kind::active_message;
        return target.send_inline(kind, 3, payload.size(), fill);
    }
    std::string poll(int limit = 1000)
    {
        std::string all;
        (void)node_.poll(limit,
                         [&all](peer &, const frag_header &header, const unsigned char *payload) {
                             all += gpusm_test::payload_of(header, payload) + " ";
                         });
        return all;
    }
    int reap(process &to)
    {
        int reaped = 0;
        while (towards(to).reap() != nullptr) {
            ++reaped;
        }
        return reaped;
    }
    // Messages until `to` has made a fast box and we have seen it.
    void warm_up(process &to)
    {
        for (int i = 0; i < 2 * before_fast_box + 1; ++i) {
            send(to, "w");
            (void)to.poll();
        }
        (void)reap(to);
    }
    gpusm::fast_box_unit *fast_box_of(std::uint32_t slot)
    {
        const std::uint32_t granule = node_.own().view().peers[slot].fast_box.load();
        return 0 == granule ? nullptr
                            : reinterpret_cast<gpusm::fast_box_unit *>(node_.own().at(granule));
    }

  private:
    static gpusm::segment_options options(const std::string &folder, std::uint32_t vpid)
    {
        gpusm::segment_options made = gpusm_test::small_options(folder, vpid);
        made.fifo_slots = 16;
        made.fast_box_units = 32;
        return made;
    }
    const std::string folder_;
    node node_;
    std::deque<outgoing> fragments_;
};

class NodeFastBox : public testing::Test {
  protected:
    scratch_folder folder_;
    process one_{folder_.path(), 1};
    process two_{folder_.path(), 2};
};

TEST_F(NodeFastBox, ASenderGetsOneAfterSomeMessages)
{
    for (int i = 0; i < before_fast_box - 1; ++i) {
        one_.send(two_, "a");
        (void)two_.poll();
    }
    EXPECT_EQ(two_.fast_box_of(0), nullptr);
    EXPECT_FALSE(one_.send_inline(two_, "x"));
    one_.warm_up(two_);
    EXPECT_NE(two_.fast_box_of(0), nullptr);
    EXPECT_TRUE(one_.send_inline(two_, "x"));
    EXPECT_EQ(two_.poll(), "x ");
    EXPECT_EQ(two_.poll(), "");
}

TEST_F(NodeFastBox, ThereAreNoMoreThanAllowed)
{
    process few(folder_.path(), 3, 1);
    one_.warm_up(few);
    two_.warm_up(few);
    EXPECT_TRUE(one_.send_inline(few, "x"));
    EXPECT_FALSE(two_.send_inline(few, "y")) << "it goes on with fragments";
    two_.send(few, "y");
    EXPECT_EQ(few.poll(), "x y ");
    process none(folder_.path(), 4, 0);
    one_.warm_up(none);
    EXPECT_FALSE(one_.send_inline(none, "x"));
}

TEST_F(NodeFastBox, WhatIsTooLongForItGoesInAFragmentInOrder)
{
    one_.warm_up(two_);
    EXPECT_TRUE(one_.send_inline(two_, "a"));
    EXPECT_FALSE(one_.send_inline(two_, std::string(400, 'x')));
    one_.send(two_, "b");
    EXPECT_TRUE(one_.send_inline(two_, "c"));
    EXPECT_EQ(one_.reap(two_), 0);
    EXPECT_EQ(two_.poll(), "a b c ");
    EXPECT_EQ(one_.reap(two_), 1);
    EXPECT_TRUE(one_.towards(two_).idle());
}

// With the fast box full, fragments go by the FIFO, and then the fast box may have room again.
TEST_F(NodeFastBox, OrderIsKeptBetweenFastBoxFifoAndWhatWaits)
{
    one_.warm_up(two_);
    std::mt19937 random(1);
    std::string expected;
    std::string arrived;
    int number = 0;
    int fragments = 0;
    int inlined = 0;
    int reaped = 0;
    for (int step = 0; step < 3000; ++step) {
        const std::string payload = std::to_string(number);
        switch (random() % 4) {
        case 0:
        case 1:
            if (one_.send_inline(two_, payload + std::string(random() % 200, '.'))) {
                ++inlined;
            } else {
                one_.send(two_, payload);
                ++fragments;
            }
            ++number;
            break;
        case 2:
            one_.send(two_, payload);
            ++fragments;
            ++number;
            break;
        default:
            arrived += two_.poll(static_cast<int>(random() % 5));
            (void)one_.towards(two_).flush();
            reaped += one_.reap(two_);
            break;
        }
    }
    for (int i = 0; i < 2000; ++i) {
        arrived += two_.poll();
        (void)one_.towards(two_).flush();
        reaped += one_.reap(two_);
    }
    std::erase(arrived, '.');
    for (int i = 0; i < number; ++i) {
        expected += std::to_string(i) + " ";
    }
    EXPECT_EQ(arrived, expected);
    EXPECT_EQ(reaped, fragments);
    EXPECT_GT(inlined, 100);
    EXPECT_GT(fragments, 100);
    EXPECT_FALSE(one_.towards(two_).closed());
    EXPECT_FALSE(two_.towards(one_).closed());
}

TEST_F(NodeFastBox, NothingGoesInlineToAClosedPeer)
{
    one_.warm_up(two_);
    one_.towards(two_).close();
    EXPECT_FALSE(one_.send_inline(two_, "x"));
    EXPECT_EQ(two_.poll(), "");
}

TEST_F(NodeFastBox, GarbageInAFastBoxClosesItsSenderAndNobodyElse)
{
    process three(folder_.path(), 3);
    one_.warm_up(two_);
    three.warm_up(two_);
    EXPECT_TRUE(one_.send_inline(two_, "good"));
    ASSERT_EQ(two_.poll(), "good ");
    const auto due = static_cast<std::uint32_t>(two_.towards(one_).next_sequence);
    gpusm::fast_box_unit *ring = two_.fast_box_of(0);
    ASSERT_NE(ring, nullptr);
    for (std::uint32_t i = 0; i < 32; ++i) { // a reference to a place that is none
        ring[i].word.store(gpusm::fast_box_word::pack(
            {due, sizeof(gpusm::fast_box_reference), gpusm::fast_box_word::reference, 0}));
        std::memset(ring[i].payload, 0xff, sizeof(gpusm::fast_box_reference));
    }
    const log_capture log;
    EXPECT_EQ(two_.poll(), "");
    EXPECT_EQ(two_.poll(), "");
    EXPECT_TRUE(two_.towards(one_).closed());
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_TRUE(three.send_inline(two_, "fine"));
    EXPECT_EQ(two_.poll(), "fine ");
}

// The owner's word about where the fast box is.
TEST_F(NodeFastBox, AFastBoxThatCannotBeIsNotUsed)
{
    for (const std::uint32_t granule : {1U, (1U << 20) / 64 - 1, 0xffffffU, 0xffffffffU}) {
        process honest(folder_.path(), 10 + granule % 7);
        process liar(folder_.path(), 20 + granule % 7, 0);
        honest.send(liar, "a");
        liar.its().own().view().peers[0].fast_box.store(granule);
        honest.warm_up(liar);
        EXPECT_FALSE(honest.send_inline(liar, "x")) << granule;
    }
}

TEST_F(NodeFastBox, OneThatCannotReadOurMemorySaysSo)
{
    EXPECT_FALSE(one_.towards(two_).refuses_single_copies());
    one_.send(two_, "a");
    (void)two_.poll();
    EXPECT_FALSE(one_.towards(two_).refuses_single_copies());
    two_.its().refuse_single_copies(two_.towards(one_));
    EXPECT_TRUE(one_.towards(two_).refuses_single_copies());
    EXPECT_FALSE(two_.towards(one_).refuses_single_copies());
}

} // namespace
