// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// written_messages_test.cc: that a program writes its messages anew is noticed, and so is that it
// does not any more, or that they go to a device.
#include "opal/mca/btl/gpusm/shm/written_messages.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::memory_samples;
using gpusm::written_messages;

constexpr std::size_t lone = 8448;
constexpr std::size_t most = 28928;
constexpr std::size_t header = 64;
constexpr int between = 1024; // messages that are not looked at

// Memory of a program's that it may write before each message.
class buffer {
  public:
    explicit buffer(std::size_t len_bytes) : bytes_(len_bytes) {}

    const void *data() const { return bytes_.data(); }
    std::size_t len_bytes() const { return bytes_.size(); }
    std::size_t bytes() const { return bytes_.size() + header; }
    void write()
    {
        ++value_;
        for (std::size_t i = 0; i < bytes_.size(); ++i) {
            bytes_[i] = static_cast<unsigned char>(value_ + i);
        }
    }

  private:
    std::vector<unsigned char> bytes_;
    unsigned char value_ = 0;
};

using answer = memory_samples::answer;

TEST(MemorySamples, TellWhatHasBeenWrittenSinceTheLastLook)
{
    memory_samples samples;
    buffer one(16384);
    EXPECT_EQ(answer::unknown, samples.look(one.data(), one.len_bytes()));
    EXPECT_EQ(answer::same, samples.look(one.data(), one.len_bytes()));
    one.write();
    EXPECT_EQ(answer::changed, samples.look(one.data(), one.len_bytes()));
    EXPECT_EQ(answer::same, samples.look(one.data(), one.len_bytes()));
    samples.forget();
    EXPECT_EQ(answer::unknown, samples.look(one.data(), one.len_bytes()));
}

TEST(MemorySamples, OfAnotherLengthSayNothing)
{
    memory_samples samples;
    buffer one(16384);
    one.write();
    (void)samples.look(one.data(), 16384);
    EXPECT_EQ(answer::unknown, samples.look(one.data(), 16000));
    EXPECT_NE(answer::changed, samples.look(one.data(), 16384));
}

TEST(MemorySamples, StayWithinTheMemory)
{
    memory_samples samples;
    for (std::size_t len = memory_samples::least_bytes; len < 3000; ++len) {
        std::vector<unsigned char> exact(len); // a sanitizer sees what is read behind it
        (void)samples.look(exact.data(), len);
        exact[len / 8] ^= 1U;
        exact[3 * len / 8] ^= 1U;
        EXPECT_EQ(answer::changed, samples.look(exact.data(), len));
    }
}

class WrittenMessages : public testing::Test {
  protected:
    // Single copies, of which every so many are written anew, until it is noticed: how many it
    // took, or -1 if that does not happen within `limit`.
    int offer(int written_every, int limit = 1 << 20)
    {
        for (int i = 1; i <= limit; ++i) {
            write(i, written_every);
            if (messages_.offered(one_.bytes(), one_.data(), one_.len_bytes())) {
                EXPECT_TRUE(messages_.are_written());
                return i;
            }
        }
        return -1;
    }
    // Messages in two copies, until it is noticed that they are not written.
    int send(int written_every, int limit)
    {
        for (int i = 1; i <= limit; ++i) {
            write(i, written_every);
            if (messages_.sent(one_.bytes(), one_.data(), one_.len_bytes())) {
                EXPECT_FALSE(messages_.are_written());
                return i;
            }
        }
        return -1;
    }
    void write(int number, int every)
    {
        if (every > 0 && 0 == number % every) {
            one_.write();
        }
    }

    buffer one_{8500};
    written_messages messages_{lone, most};
};

TEST_F(WrittenMessages, ThatAreNotLookedForAreNotFound)
{
    messages_ = {};
    EXPECT_EQ(offer(1, 1000), -1);
    messages_ = written_messages(most, most);
    EXPECT_EQ(offer(1, 1000), -1) << "they go in two copies anyway";
    EXPECT_FALSE(messages_.went_to_device(one_.bytes()));
}

TEST_F(WrittenMessages, AreNoticed)
{
    EXPECT_LE(offer(1), 128) << "the first";
    messages_ = written_messages(lone, most);
    EXPECT_EQ(offer(0, 10000), -1);
    const int took = offer(1);
    EXPECT_GT(took, 0);
    EXPECT_LE(took, between + 128);
    EXPECT_EQ(messages_.most_bytes(), most);
    EXPECT_FALSE(messages_.offered(one_.bytes(), one_.data(), one_.len_bytes())) << "a sample";
}

// As in a window of messages, each from its own memory: places in the table are shared then.
TEST_F(WrittenMessages, OfManyBuffersAreNoticedToo)
{
    for (const int buffers : {2, 16, 64, 128}) {
        for (const std::size_t len : {8500U, 10000U, 12288U, 16384U}) {
            std::vector<buffer> all(static_cast<std::size_t>(buffers), buffer(len));
            messages_ = written_messages(lone, most);
            int rounds = 0;
            while (!messages_.are_written() && ++rounds < 100) {
                for (buffer &each : all) {
                    each.write();
                    (void)messages_.offered(each.bytes(), each.data(), each.len_bytes());
                }
            }
            EXPECT_LE(rounds * buffers, 8 * 64 + buffers) << buffers << " of " << len << " bytes";
        }
    }
}

TEST_F(WrittenMessages, ThatAreNeverSeenAgainAreNotTakenForSuch)
{
    std::vector<unsigned char> large(4 << 20);
    for (std::size_t round = 0; round < 20; ++round) {
        for (std::size_t at = 0; at + 16384 <= large.size();
             at += 64) { // other addresses each time
            EXPECT_FALSE(messages_.offered(16384 + header, large.data() + at, 16384));
        }
        std::fill(large.begin(), large.end(), static_cast<unsigned char>(round + 1));
    }
}

TEST_F(WrittenMessages, OfWhichEachIsSentManyTimesAreNotTakenForSuch)
{
    constexpr std::size_t times = 16;
    constexpr std::size_t buffers = 64;
    std::vector<buffer> all(buffers, buffer(8500));
    for (std::size_t i = 0; i < 20000; ++i) {
        buffer &each = all[i % buffers];
        if (0 == (i / buffers + i) % times) { // by turns
            each.write();
        }
        ASSERT_FALSE(messages_.offered(each.bytes(), each.data(), each.len_bytes())) << i;
    }
}

TEST_F(WrittenMessages, OfWhichHalfAreNotAreNotTakenForSuch)
{
    EXPECT_EQ(offer(2, 10000), -1);
}

TEST_F(WrittenMessages, OfOtherLengthsDoNotCount)
{
    for (const std::size_t bytes : {lone, most + 1}) {
        for (int i = 0; i < 10000; ++i) {
            one_.write();
            EXPECT_FALSE(messages_.offered(bytes, one_.data(), one_.len_bytes()));
        }
    }
    (void)offer(1);
    for (int i = 0; i < 10000; ++i) {
        EXPECT_FALSE(messages_.sent(lone, one_.data(), one_.len_bytes()));
    }
    EXPECT_TRUE(messages_.are_written());
}

TEST_F(WrittenMessages, AreOverWhenTheyAreNotWrittenAnyMore)
{
    (void)offer(1);
    EXPECT_EQ(send(1, 10000), -1);
    EXPECT_EQ(send(2, 10000), -1) << "half of them are";
    const int took = send(0, 10000);
    EXPECT_GT(took, 0);
    EXPECT_LE(took, between + 128);
}

TEST_F(WrittenMessages, ThatAreSoonOverAreLookedForMoreAndMoreSeldom)
{
    int before = offer(1);
    for (int i = 0; i < 12; ++i) {
        EXPECT_GT(send(0, 1000), 0);
        const int took = offer(1);
        EXPECT_GE(took, before);
        EXPECT_LE(took, 65536 + 128);
        before = took;
    }
    EXPECT_GT(before, 60000);
}

TEST_F(WrittenMessages, IntoADeviceAreNotLookedForAsLongAsTheyGoThere)
{
    (void)offer(1);
    EXPECT_FALSE(messages_.went_to_device(most + 1)) << "others";
    EXPECT_TRUE(messages_.went_to_device(one_.bytes()));
    EXPECT_FALSE(messages_.are_written());
    for (int i = 0; i < 10000; ++i) {
        one_.write();
        EXPECT_FALSE(messages_.offered(one_.bytes(), one_.data(), one_.len_bytes()));
        EXPECT_FALSE(messages_.went_to_device(one_.bytes()));
    }
    EXPECT_GE(offer(1), between);
}

} // namespace
