// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// message_rows_test.cc: rows are noticed, and so is that they are over, or that they go to a
// device.
#include "opal/mca/btl/gpusm/shm/message_rows.h"

#include <cstddef>

#include <gtest/gtest.h>

namespace {

using gpusm::message_rows;

constexpr std::size_t lone = 8448;
constexpr std::size_t most = 16640;
constexpr std::size_t len = 16384 + 64;

class MessageRows : public testing::Test {
  protected:
    // Single copies, so many of them under way at once, until rows are noticed: how many it took,
    // or -1 if that does not happen within `limit`.
    int offer(std::uint32_t others, int limit = 1 << 20)
    {
        for (int i = 1; i <= limit; ++i) {
            if (rows_.offered(len, others)) {
                return i;
            }
        }
        return -1;
    }
    // Messages in two copies, every so many of them answered, until they are not in rows any more.
    int send(int answered_every, int limit)
    {
        for (int i = 1; i <= limit; ++i) {
            if (rows_.sent(answered_every > 0 && 0 == i % answered_every)) {
                EXPECT_FALSE(rows_.in_rows());
                return i;
            }
            EXPECT_TRUE(rows_.in_rows());
            EXPECT_FALSE(rows_.offered(len, 64)) << "a sample changes nothing";
        }
        return -1;
    }

    message_rows rows_{lone, most};
};

TEST_F(MessageRows, ThatAreNotLookedForAreNotFound)
{
    rows_ = {};
    EXPECT_EQ(offer(1000, 10000), -1);
    EXPECT_FALSE(rows_.concerns(len));
    EXPECT_FALSE(rows_.went_to_device(lone));
    rows_ = message_rows(lone, lone - 1);
    EXPECT_EQ(offer(1000, 10000), -1) << "not longer than for one that comes alone";
    EXPECT_EQ(rows_.most_bytes(), lone);
}

TEST_F(MessageRows, OfLongerMessagesAreNoticedOnceTheyMayGoSo)
{
    EXPECT_FALSE(rows_.offered(2 * most, 64));
    rows_.up_to(2 * most);
    rows_.up_to(most);
    EXPECT_EQ(rows_.most_bytes(), 2 * most);
    EXPECT_GT(offer(4), 0);
    rows_ = {};
    rows_.up_to(most);
    EXPECT_EQ(offer(1000, 10000), -1) << "nobody looks";
}

TEST_F(MessageRows, AreNoticedWhenSeveralAreUnderWayAtOnce)
{
    EXPECT_EQ(offer(3, 10000), -1);
    EXPECT_FALSE(rows_.in_rows());
    const int took = offer(4);
    EXPECT_GT(took, 0);
    EXPECT_LE(took, 64);
    EXPECT_TRUE(rows_.in_rows());
    EXPECT_TRUE(rows_.concerns(len));
    EXPECT_FALSE(rows_.concerns(lone)) << "went so before";
}

TEST_F(MessageRows, WindowsAreRowsThoughTheyBeginWithOneAlone)
{
    bool found = false;
    for (std::uint32_t i = 0; i < 256; ++i) {
        found = found || rows_.offered(len, i % 64);
    }
    EXPECT_TRUE(found);
}

TEST_F(MessageRows, MessagesOfOtherLengthsDoNotCount)
{
    for (int i = 0; i < 10000; ++i) {
        EXPECT_FALSE(rows_.offered(lone, 64));
        EXPECT_FALSE(rows_.offered(most + 1, 64));
    }
}

TEST_F(MessageRows, AreOverWhenThePeerAnswersEachMessage)
{
    (void)offer(4);
    EXPECT_EQ(send(64, 100000), -1) << "a window and its answer";
    const int took = send(1, 1000);
    EXPECT_GT(took, 0);
    EXPECT_LE(took, 64);
    EXPECT_FALSE(rows_.in_rows());
}

TEST_F(MessageRows, ThatAreSoonOverAreLookedForMoreAndMoreSeldom)
{
    int before = offer(4);
    for (int i = 0; i < 12; ++i) {
        EXPECT_GT(send(1, 1000), 0);
        const int took = offer(4);
        EXPECT_GE(took, before);
        EXPECT_LE(took, 65536 + 64);
        before = took;
    }
    EXPECT_GT(before, 60000);
    EXPECT_EQ(send(0, 100000), -1) << "a long row";
    EXPECT_GT(send(1, 1000), 0);
    EXPECT_LE(offer(4), 1024 + 64) << "soon again";
}

TEST_F(MessageRows, IntoADeviceAreLeftAtOnceAndNotLookedForAsLongAsTheyGoThere)
{
    (void)offer(4);
    EXPECT_TRUE(rows_.went_to_device(lone));
    EXPECT_FALSE(rows_.in_rows());
    for (int i = 0; i < 10000; ++i) {
        EXPECT_FALSE(rows_.offered(len, 64));
        EXPECT_FALSE(rows_.went_to_device(lone));
    }
    EXPECT_GE(offer(4), 1024);
    EXPECT_TRUE(rows_.in_rows());
}

} // namespace
