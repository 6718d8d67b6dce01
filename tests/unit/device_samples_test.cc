// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/device_samples.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace gpusm {
namespace {

constexpr std::size_t beyond = 8448;
constexpr std::size_t longer = beyond + 1;

// Messages in two copies until a sample is to be taken; -1 if there is none among `limit`.
int send(device_samples *samples, std::size_t bytes, int limit = 100000)
{
    for (int i = 1; i <= limit; ++i) {
        if (samples->sent(bytes)) {
            return i;
        }
    }
    return -1;
}

TEST(DeviceSamples, AreTakenSoonAndThenLessAndLess)
{
    device_samples samples(beyond);
    int before = send(&samples, longer);
    EXPECT_GT(before, 0);
    EXPECT_LE(before, 64);
    for (int i = 0; i < 20; ++i) {
        EXPECT_TRUE(samples.is_sampling());
        EXPECT_TRUE(samples.offered(longer));
        EXPECT_FALSE(samples.is_sampling());
        EXPECT_FALSE(samples.offered(longer)) << "one at a time";
        const int next = send(&samples, longer);
        EXPECT_GE(next, before);
        EXPECT_LE(next, 1024);
        before = next;
    }
    EXPECT_GE(before, 1024);
}

TEST(DeviceSamples, ASampleWaitsForAMessageThatIsLongEnough)
{
    device_samples samples(beyond);
    (void)send(&samples, longer);
    EXPECT_FALSE(samples.offered(beyond));
    EXPECT_TRUE(samples.is_sampling());
    EXPECT_EQ(send(&samples, longer), -1) << "it is asked for already";
    EXPECT_TRUE(samples.offered(longer));
}

TEST(DeviceSamples, AreNotTakenOfShorterMessages)
{
    device_samples samples(beyond);
    EXPECT_EQ(send(&samples, beyond), -1);
    EXPECT_FALSE(samples.is_sampling());
    device_samples none;
    EXPECT_EQ(send(&none, SIZE_MAX), -1);
}

} // namespace
} // namespace gpusm
