// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/host_messages.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace gpusm {
namespace {

constexpr std::size_t from = 28 * 1024;
constexpr std::size_t to = 64 * 1024;

// How many messages of that length it takes, of at most so many; 0: more.
int until_known(host_messages *watched, std::size_t bytes, std::uint32_t others, int most)
{
    for (int i = 1; i <= most; ++i) {
        if (watched->offered(bytes, others)) {
            return i;
        }
    }
    return 0;
}

TEST(HostMessages, WithoutBoundsNothingIsLookedAt)
{
    host_messages watched;
    EXPECT_EQ(until_known(&watched, to, 0, 1000), 0);
}

TEST(HostMessages, OfSixtyFourThatAreOverNoneHasGoneToADevice)
{
    host_messages alone(from, to);
    EXPECT_EQ(until_known(&alone, to, 0, 1000), 64);
    EXPECT_EQ(until_known(&alone, to, 0, 1000), 0) << "it is known";
    EXPECT_EQ(alone.to_bytes(), to);
    host_messages in_windows(from, to);
    EXPECT_EQ(until_known(&in_windows, from + 1, 63, 1000), 63 + 64) << "63 may still go to one";
}

TEST(HostMessages, OtherLengthsSayNothing)
{
    host_messages watched(from, to);
    EXPECT_EQ(until_known(&watched, from, 0, 1000), 0);
    EXPECT_EQ(until_known(&watched, to + 1, 0, 1000), 0);
    EXPECT_EQ(until_known(&watched, to, 0, 1000), 64);
}

TEST(HostMessages, OneThatHasGoneToADeviceEndsIt)
{
    host_messages watched(from, to);
    EXPECT_EQ(until_known(&watched, to, 0, 63), 0);
    watched.stop();
    EXPECT_EQ(until_known(&watched, to, 0, 1000), 0);
}

} // namespace
} // namespace gpusm
