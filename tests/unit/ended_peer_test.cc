// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ended_peer_test.cc: peers whose process has ended: what they have sent is read first, then all
// that was kept for them is given back, and newcomers use it without being taken for them.
#include "opal/mca/common/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <optional>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr int enough_for_fast_box = 2 * 16 + 1;

std::size_t mappings()
{
    std::ifstream maps("/proc/self/maps");
    std::size_t lines = 0;
    for (std::string line; std::getline(maps, line);) {
        lines += line.find("/gpusm.") != std::string::npos ? 1 : 0;
    }
    return lines;
}

class EndedPeer : public testing::Test {
  protected:
    // Messages to `one_` until the other process has a fast box.
    void warm_up(process &from)
    {
        for (int i = 0; i < enough_for_fast_box; ++i) {
            (void)from.send(one_, "w");
            (void)one_.poll();
        }
        (void)from.reap(one_);
    }
    bool has_read_all(peer &of) { return one_.its().has_read_all_of(of, end_of_inbox_); }
    // Its process ends; what it has sent is still there.
    void end(std::optional<process> *mortal, peer &seen)
    {
        EXPECT_FALSE(seen.has_ended());
        mortal->reset();
        EXPECT_TRUE(seen.has_ended());
        EXPECT_TRUE(seen.has_ended_in_order());
        end_of_inbox_ = one_.its().end_of_inbox();
    }
    void give_back(peer &seen)
    {
        ASSERT_TRUE(has_read_all(seen));
        seen.close();
        while (seen.reap() != nullptr) {
        }
        ASSERT_TRUE(seen.idle());
        one_.its().forget(seen);
        seen.unmap();
    }
    std::uint64_t slots_claimed() { return one_.its().own().view().header->peers_claimed.load(); }
    std::uint64_t memory() { return one_.its().own().view().header->committed_bytes.load(); }

    scratch_folder folder_;
    process one_{folder_.path(), 1, 4};
    std::uint64_t end_of_inbox_ = 0;
};

TEST_F(EndedPeer, DescriptorMappingSlotAndFastBoxAreUsedAgain)
{
    const expect_lines log(0);
    std::size_t descriptors = 0;
    std::size_t mapped = 0;
    std::uint64_t bytes = 0;
    for (std::uint32_t round = 0; round < 100; ++round) {
        std::optional<process> mortal(std::in_place, folder_.path(), 10 + round, 4);
        peer &seen = one_.towards(*mortal);
        (void)one_.send(*mortal, "hello");
        warm_up(*mortal);
        ASSERT_TRUE(mortal->send_inline(one_, "inline")) << round;
        const std::string vpid = std::to_string(10 + round);
        ASSERT_EQ(one_.poll(), vpid + ":inline ");
        end(&mortal, seen);
        give_back(seen);
        if (0 == round) {
            descriptors = open_descriptors();
            mapped = mappings();
            bytes = memory();
        }
    }
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_EQ(mappings(), mapped);
    EXPECT_LE(memory(), bytes + 32 * 1024) << "but for the messages of this test";
    EXPECT_LE(slots_claimed(), 1U);
}

TEST_F(EndedPeer, WhatItHasSentIsReadFirst)
{
    const expect_lines log(0);
    std::optional<process> mortal(std::in_place, folder_.path(), 2, 4);
    peer &seen = one_.towards(*mortal);
    (void)mortal->send(one_, "a");
    ASSERT_EQ(one_.poll(), "2:a ");
    (void)mortal->send(one_, "b");
    (void)mortal->send(one_, "c");
    end(&mortal, seen);
    EXPECT_FALSE(has_read_all(seen));
    EXPECT_EQ(one_.poll(1), "2:b ");
    EXPECT_FALSE(has_read_all(seen));
    EXPECT_EQ(one_.poll(), "2:c ");
    give_back(seen);

    std::optional<process> other(std::in_place, folder_.path(), 3, 4);
    peer &with_fast_box = one_.towards(*other);
    warm_up(*other);
    ASSERT_TRUE(other->send_inline(one_, "x"));
    (void)other->send(one_, "y"); // named in the fast box
    end(&other, with_fast_box);
    EXPECT_FALSE(has_read_all(with_fast_box));
    EXPECT_EQ(one_.poll(1), "3:x ");
    EXPECT_FALSE(has_read_all(with_fast_box));
    EXPECT_EQ(one_.poll(1), "3:y ");
    give_back(with_fast_box);
}

// Of a closed one nothing is read, but its words have to be out of the FIFO before others get its
// slot.
TEST_F(EndedPeer, ItsLastMessagesAreNotTakenForThoseOfWhoGetsItsSlot)
{
    const expect_lines log(0);
    std::optional<process> mortal(std::in_place, folder_.path(), 2, 4);
    peer &seen = one_.towards(*mortal);
    (void)mortal->send(one_, "a");
    ASSERT_EQ(one_.poll(), "2:a ");
    (void)mortal->send(one_, "late");
    (void)mortal->send(one_, "late");
    seen.close();
    end(&mortal, seen);
    EXPECT_FALSE(has_read_all(seen));
    EXPECT_EQ(one_.poll(), "");
    give_back(seen);
    process newcomer(folder_.path(), 3, 4);
    (void)newcomer.send(one_, "new");
    EXPECT_EQ(slots_claimed(), 1U) << "it has the same slot";
    EXPECT_EQ(one_.poll(), "3:new ");
    warm_up(newcomer);
    EXPECT_TRUE(newcomer.send_inline(one_, "x"));
    EXPECT_EQ(one_.poll(), "3:x ");
}

TEST_F(EndedPeer, WhatHasBeenPutAsideOfItCountsAsUnread)
{
    const expect_lines log(1);
    std::optional<process> mortal(std::in_place, folder_.path(), 2, 4);
    (void)mortal->send(one_, "a");
    {
        const no_descriptors_left none;
        ASSERT_EQ(one_.poll(), "");
    }
    peer &seen = one_.towards(*mortal);
    ASSERT_EQ(status::ok, seen.attach()); // it has been sent to
    end(&mortal, seen);
    EXPECT_FALSE(has_read_all(seen));
    EXPECT_EQ(one_.take_put_aside(), "2:a ");
    give_back(seen);
}

TEST_F(EndedPeer, TheSlotOfOneThatIsGoneBeforeItsMessagesWereReadIsForOthers)
{
    for (std::uint32_t round = 0; round < 20; ++round) { // there are 8 slots
        const expect_lines log(1);
        std::optional<process> mortal(std::in_place, folder_.path(), 10 + round, 4);
        (void)mortal->send(one_, "lost");
        peer &seen = one_.towards(*mortal);
        mortal.reset();
        ASSERT_EQ(one_.poll(), "") << round;
        EXPECT_TRUE(seen.has_ended());
        EXPECT_TRUE(seen.has_lost_messages());
        end_of_inbox_ = one_.its().end_of_inbox();
        give_back(seen);
    }
    EXPECT_LE(slots_claimed(), 1U);
}

TEST_F(EndedPeer, OnceUnmappedItIsGoneForEveryQuestion)
{
    std::optional<process> mortal(std::in_place, folder_.path(), 2, 4);
    peer &seen = one_.towards(*mortal);
    (void)one_.send(*mortal, "hello");
    warm_up(*mortal);
    mortal->its().refuse_single_copies(mortal->towards(one_));
    end(&mortal, seen);
    give_back(seen);
    const expect_lines log(0);
    outgoing fragment = make_fragment(one_.its().own(), "x");
    EXPECT_EQ(seen.post(&fragment), status::peer_gone);
    EXPECT_EQ(seen.attach(), status::peer_gone);
    EXPECT_FALSE(seen.attached());
    EXPECT_FALSE(send_inline(seen, "x"));
    EXPECT_FALSE(seen.flush());
    EXPECT_EQ(seen.reap(), nullptr);
    EXPECT_FALSE(seen.lives());
    EXPECT_FALSE(seen.has_ended());
    EXPECT_FALSE(seen.single_copy_refusals());
    EXPECT_TRUE(seen.idle());
}

} // namespace
