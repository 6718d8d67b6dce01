// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/shm/device_rows.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace gpusm {
namespace {

constexpr std::size_t limit = 4096;
constexpr std::size_t most = 8448;
constexpr std::size_t bytes = 8000;
constexpr std::uint32_t window = 64;

device_rows in_rows()
{
    device_rows rows(limit, most);
    EXPECT_TRUE(rows.went_to_device(bytes));
    return rows;
}

// Offers windows until rows are over; the device asks for all messages of a window, for one, or for
// none. Messages until then, -1 if it is none of `limit`.
int offer(device_rows *rows, std::uint32_t asked_for, int messages = 100000,
          std::uint32_t in_window = window)
{
    for (int i = 0; i < messages;) {
        for (std::uint32_t others = 0; others < in_window; ++others) {
            ++i;
            if (rows->offered(bytes, others)) {
                return i;
            }
        }
        for (std::uint32_t asked = 0; asked < asked_for; ++asked) {
            EXPECT_FALSE(rows->went_to_device(bytes)) << "they are tried already";
        }
    }
    return -1;
}

// Samples that go to a device until rows are tried again.
int samples_until_tried(device_rows *rows)
{
    for (int i = 1; i <= 1000; ++i) {
        if (rows->went_to_device(bytes)) {
            return i;
        }
    }
    return -1;
}

TEST(DeviceRows, AreTriedWhenASampleHasGoneToADevice)
{
    device_rows rows(limit, most);
    EXPECT_FALSE(rows.in_rows());
    EXPECT_FALSE(rows.offered(bytes, 10));
    EXPECT_TRUE(rows.went_to_device(bytes));
    EXPECT_TRUE(rows.in_rows());
    EXPECT_EQ(rows.limit_bytes(), limit);
}

TEST(DeviceRows, LastAsLongAsWindowsAreFetched)
{
    for (const std::uint32_t in_window : {8U, 64U, 500U}) {
        device_rows rows = in_rows();
        EXPECT_EQ(offer(&rows, in_window, 100000, in_window), -1) << in_window;
        EXPECT_TRUE(rows.in_rows());
    }
}

TEST(DeviceRows, EndSoonWhereMessagesComeAlone)
{
    device_rows rows = in_rows();
    for (int i = 1; i < 64; ++i) {
        ASSERT_FALSE(rows.offered(bytes, 0)) << i;
        (void)rows.went_to_device(bytes);
    }
    EXPECT_TRUE(rows.offered(bytes, 0));
    EXPECT_FALSE(rows.in_rows());
}

TEST(DeviceRows, EndWhereMostMessagesGoToHostMemory)
{
    device_rows rows = in_rows();
    const int none = offer(&rows, 0);
    EXPECT_GE(none, 1024) << "a window may be longer than a block";
    EXPECT_LE(none, 1024 + 64);
    device_rows mixed = in_rows();
    EXPECT_EQ(offer(&mixed, window * 3 / 4), -1);
    device_rows few = in_rows();
    EXPECT_GT(offer(&few, window / 4), 0);
    // Also when they have been fetched for long.
    device_rows later = in_rows();
    EXPECT_EQ(offer(&later, window, 50000), -1);
    const int then = offer(&later, 0);
    EXPECT_GT(then, 0);
    EXPECT_LE(then, 2048);
}

TEST(DeviceRows, AreTriedMoreAndMoreSeldomWhereTheyAreNone)
{
    device_rows rows = in_rows();
    int before = 0;
    for (int i = 0; i < 12; ++i) {
        (void)offer(&rows, 1, 10000, 1); // messages alone
        ASSERT_FALSE(rows.in_rows());
        const int samples = samples_until_tried(&rows);
        EXPECT_GE(samples, before);
        EXPECT_GT(samples, 1);
        before = samples;
    }
    EXPECT_EQ(before, 64 + 1);
    EXPECT_EQ(offer(&rows, window, 20000), -1);
    (void)offer(&rows, 1, 10000, 1);
    EXPECT_LE(samples_until_tried(&rows), 3) << "a long row has been seen";
}

TEST(DeviceRows, AreNotMadeOfMessagesThatGoOneWayAnyhow)
{
    device_rows rows(limit, most);
    EXPECT_FALSE(rows.went_to_device(limit));
    EXPECT_FALSE(rows.went_to_device(most + 1));
    EXPECT_FALSE(rows.in_rows());
    EXPECT_TRUE(rows.went_to_device(most));
    for (int i = 0; i < 1000; ++i) {
        EXPECT_FALSE(rows.offered(most + 1, 0));
        EXPECT_FALSE(rows.offered(limit, 0));
    }
    EXPECT_TRUE(rows.in_rows());
    device_rows none;
    EXPECT_FALSE(none.went_to_device(bytes));
    EXPECT_FALSE(none.in_rows());
}

} // namespace
} // namespace gpusm
