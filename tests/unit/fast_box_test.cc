// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fast_box_test.cc: what shm/fast_box.h promises: messages of all lengths in order, nothing before
// it is complete, no old payload taken for a message, and what nonsense in the ring leads to.
#include "opal/mca/common/gpusm/shm/fast_box.h"

#include "tests/unit/shm_support.h"

#include <thread>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint8_t some_kind = 1;

class FastBox : public testing::Test {
  protected:
    static constexpr std::size_t most_bytes = fast_box_most_bytes;

    bool send(const std::string &payload)
    {
        const fast_box_place place = writer_.place(payload.size());
        if (nullptr == place.payload) {
            return false;
        }
        EXPECT_LE(place.payload + payload.size(), reinterpret_cast<unsigned char *>(&box_ + 1));
        std::memcpy(place.payload, payload.data(), payload.size());
        writer_.publish(place, {static_cast<std::uint32_t>(sent_++),
                                static_cast<std::uint16_t>(payload.size()), some_kind, 7});
        return true;
    }
    // "-": nothing; "!": garbage.
    std::string receive()
    {
        fast_box_message message{};
        const unsigned char *payload = nullptr;
        switch (reader_.take(received_, &message, &payload)) {
        case fast_box_reader::look::nothing:
            return "-";
        case fast_box_reader::look::garbage:
            return "!";
        case fast_box_reader::look::message:
            break;
        }
        EXPECT_EQ(message.kind, some_kind);
        EXPECT_EQ(message.tag, 7);
        const std::string taken(reinterpret_cast<const char *>(payload), message.bytes);
        ++received_;
        return taken;
    }

    fast_box box_{};
    std::atomic<std::uint32_t> taken_{0};
    fast_box_writer writer_{&box_, &taken_};
    fast_box_reader reader_{&box_, &taken_};
    std::uint64_t sent_ = 0;
    std::uint64_t received_ = 0;
};

// A message of up to 24 bytes is half a cache line.
static_assert(fast_box_units_for(0) == 1 && fast_box_units_for(24) == 1);
static_assert(fast_box_units_for(25) == 2 && fast_box_units_for(56) == 2);
static_assert(fast_box_units_for(fast_box_most_bytes) == fast_box_most_units);

TEST_F(FastBox, NothingIsSeenOfAMessageThatIsNotComplete)
{
    unsigned char *place = writer_.place(100).payload;
    ASSERT_NE(place, nullptr);
    std::memset(place, 0xff, 100); // and there the sender is killed
    EXPECT_EQ(receive(), "-");
}

TEST_F(FastBox, APlaceThatIsNotUsedDoesNoHarm)
{
    for (std::uint32_t i = 0; i < 500; ++i) {
        for (const std::size_t bytes : {1200, 0, 1200, 60}) {
            ASSERT_NE(writer_.place(bytes).payload, nullptr) << i;
        }
        const std::string payload(i % 50, 'x');
        ASSERT_TRUE(send(payload)) << i;
        ASSERT_EQ(receive(), payload) << i;
        ASSERT_EQ(receive(), "-") << i;
        reader_.give_back();
    }
}

TEST_F(FastBox, WhenItIsFullThereIsNoPlaceUntilLinesAreGivenBack)
{
    int sent = 0;
    while (send("a")) {
        ASSERT_LT(++sent, 1000);
    }
    EXPECT_EQ(sent, static_cast<int>(fast_box_units) - 1) << "one unit stays for the next word";
    for (int i = 0; i < sent; ++i) {
        EXPECT_EQ(receive(), "a");
    }
    EXPECT_FALSE(send("a")) << "read, but not given back";
    reader_.give_back();
    EXPECT_TRUE(send("b"));
    EXPECT_EQ(receive(), "b");
}

TEST_F(FastBox, AReaderThatGivesBackMoreThanItGotIsNotBelieved)
{
    while (send("a")) {
    }
    for (const std::uint32_t lie : {fast_box_units, fast_box_units + 1, 0x80000000U, 0xffffffffU}) {
        taken_.store(lie);
        EXPECT_FALSE(send("b")) << lie;
    }
    EXPECT_EQ(receive(), "a");
}

// Payload that looks like the word of every message that may come next, at every place.
TEST_F(FastBox, OldPayloadIsNeverTakenForAMessage)
{
    std::mt19937 random(1);
    for (int round = 0; round < 20000; ++round) {
        std::string forged;
        const std::size_t words = random() % (0 == random() % 2 ? 4 : most_bytes / 8 + 1);
        for (std::size_t i = 0; i < words; ++i) {
            const std::uint64_t word = fast_box_word::pack(
                {static_cast<std::uint32_t>(sent_ + 1 + random() % 16), 8, some_kind, 7});
            forged.append(reinterpret_cast<const char *>(&word), sizeof(word));
        }
        ASSERT_TRUE(send(forged));
        ASSERT_EQ(receive(), forged) << round;
        ASSERT_EQ(receive(), "-") << round;
        reader_.give_back();
    }
}

// Messages of all lengths begin in every unit, the longest also in the last one.
TEST_F(FastBox, AgreesWithAListOverManyLapsAndWhereTheSequenceWraps)
{
    sent_ = received_ = 0xffff0000ULL;
    std::mt19937 random(2);
    std::deque<std::string> model;
    for (int step = 0; step < 200000; ++step) {
        if (0 == random() % 2) {
            const std::string payload(random() % (0 == random() % 2 ? 249 : most_bytes + 1),
                                      static_cast<char>('a' + random() % 26));
            if (send(payload)) {
                model.push_back(payload);
            } else {
                ASSERT_FALSE(model.empty());
            }
        } else if (model.empty()) {
            ASSERT_EQ(receive(), "-");
        } else {
            ASSERT_EQ(receive(), model.front()) << step;
            model.pop_front();
            if (model.empty() || 0 == random() % 3) {
                reader_.give_back();
            }
        }
    }
}

TEST_F(FastBox, AMessageWaitsForItsTurn)
{
    sent_ = 5;
    ASSERT_TRUE(send("late"));
    EXPECT_EQ(receive(), "-") << "0 is due, and comes by the FIFO";
    received_ = 6;
    EXPECT_EQ(receive(), "-") << "it is old";
    received_ = 5;
    EXPECT_EQ(receive(), "late");
}

TEST_F(FastBox, LongerThanAMessageMayBeIsGarbageAndStays)
{
    for (const std::uint16_t bytes : {std::uint16_t{most_bytes + 1}, std::uint16_t{0xffff}}) {
        box_.unit[0].word.store(fast_box_word::pack({0, bytes, some_kind, 7}));
        EXPECT_EQ(receive(), "!");
        EXPECT_EQ(receive(), "!");
    }
}

TEST_F(FastBox, TwoThreadsAgree)
{
    constexpr std::uint64_t messages = 200000;
    std::thread sender([this] {
        std::mt19937 random(3);
        const deadline end(60);
        for (std::uint64_t i = 0; i < messages && !end.over(); ++i) {
            const std::size_t bytes = 8 * (random() % (most_bytes / 8 + 1));
            std::string payload(bytes, 0);
            for (std::size_t at = 0; at < bytes; at += 8) {
                std::memcpy(payload.data() + at, &i, sizeof(i));
            }
            while (!send(payload) && !end.over()) {
                std::this_thread::yield();
            }
        }
    });
    const deadline end(60);
    std::uint64_t wrong = 0;
    while (received_ < messages && !end.over()) {
        const std::uint64_t number = received_;
        const std::string taken = receive();
        if ("-" == taken) {
            reader_.give_back();
            std::this_thread::yield();
            continue;
        }
        for (std::size_t at = 0; at + 8 <= taken.size(); at += 8) {
            wrong += 0 == std::memcmp(taken.data() + at, &number, sizeof(number)) ? 0 : 1;
        }
        wrong += 0 == taken.size() % 8 ? 0 : 1;
    }
    sender.join();
    EXPECT_EQ(received_, messages);
    EXPECT_EQ(wrong, 0U);
}

} // namespace
