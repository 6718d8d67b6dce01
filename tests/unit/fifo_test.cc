// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fifo_test.cc: the FIFO alone: what shm/fifo.h promises, what senders leave behind that are killed
// in the middle of a post, words that somebody has overwritten, and threads.
#include "opal/mca/btl/gpusm/shm/fifo.h"

#include "tests/unit/shm_support.h"

#include <array>
#include <thread>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

struct ring {
    explicit ring(std::uint32_t slots) : slot(slots) {}

    fifo_view view() { return {&tail, slot.data(), static_cast<std::uint32_t>(slot.size())}; }

    // The first half of a post: the word is there, the tail has not been moved. What a sender
    // leaves behind that is killed between its two compare-and-swaps.
    bool publish_and_die(fifo_message message)
    {
        const std::uint64_t ticket = tail.load();
        const std::uint64_t lap = view().lap_of_ticket(ticket);
        std::uint64_t expected = fifo_word::empty(lap);
        return slot[ticket % slot.size()].word.compare_exchange_strong(
            expected, fifo_word::full(lap, message));
    }

    std::vector<std::uint64_t> bytes() const
    {
        std::vector<std::uint64_t> all{tail.load()};
        for (const fifo_slot &each : slot) {
            all.push_back(each.word.load());
        }
        return all;
    }

    std::atomic<std::uint64_t> tail{0};
    std::vector<fifo_slot> slot;
};

class Fifo : public testing::TestWithParam<std::uint32_t> {
  protected:
    ring ring_{GetParam()};
    fifo_view view_ = ring_.view();
    fifo_reader reader_{view_};

    void expect_next(std::uint32_t sender, std::uint32_t granule)
    {
        fifo_message message{};
        ASSERT_TRUE(take(reader_, &message));
        EXPECT_EQ(message.sender, sender);
        EXPECT_EQ(message.granule, granule);
    }
    void expect_empty()
    {
        fifo_message message{};
        EXPECT_FALSE(take(reader_, &message));
    }
    // The ring works as if nothing had happened: filled to the last slot and drained, for
    // several laps.
    void expect_working()
    {
        for (int lap = 0; lap < 3; ++lap) {
            for (std::uint32_t i = 1; i <= view_.slots; ++i) {
                ASSERT_EQ(fifo_post(view_, {9, i}), status::ok) << "message " << i;
            }
            ASSERT_EQ(fifo_post(view_, {9, 99}), status::busy);
            for (std::uint32_t i = 1; i <= view_.slots; ++i) {
                expect_next(9, i);
            }
            expect_empty();
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Slots, Fifo, testing::Values(1U, 2U, 4U, 64U),
                         testing::PrintToStringParamName());

TEST(FifoWord, EveryFieldSurvivesAtItsLargest)
{
    constexpr std::uint64_t lap = fifo_word::lap_mask;
    constexpr std::uint64_t word = fifo_word::full(lap, {0xffff, 0xffffff});
    EXPECT_EQ(fifo_word::message_of(word).sender, 0xffffU);
    EXPECT_EQ(fifo_word::message_of(word).granule, 0xffffffU);
    EXPECT_EQ(fifo_word::lap_of(word), lap);
    EXPECT_FALSE(fifo_word::is_empty(word));
    EXPECT_TRUE(fifo_word::is_empty(fifo_word::empty(lap)));
    EXPECT_EQ(fifo_word::empty(0), 0U) << "zeroed memory is an empty ring";
}

TEST_P(Fifo, MessagesComeOutInTheOrderOfTheirPosts)
{
    std::mt19937 random(GetParam());
    std::deque<fifo_message> model;
    for (std::uint32_t step = 1; step < 5000; ++step) {
        const fifo_message next{static_cast<std::uint32_t>(random() & 0xffffU), step};
        if (random() % 2 == 0) {
            const bool room = model.size() < GetParam();
            ASSERT_EQ(fifo_post(view_, next), room ? status::ok : status::busy);
            if (room) {
                model.push_back(next);
            }
        } else if (model.empty()) {
            expect_empty();
        } else {
            expect_next(model.front().sender, model.front().granule);
            model.pop_front();
        }
    }
}

TEST_P(Fifo, AFullRingAnswersBusyAndChangesNothingAndOneTakeMakesRoomForOnePost)
{
    for (std::uint32_t i = 1; i <= GetParam(); ++i) {
        ASSERT_EQ(fifo_post(view_, {1, i}), status::ok);
    }
    const std::vector<std::uint64_t> before = ring_.bytes();
    EXPECT_EQ(fifo_post(view_, {2, 77}), status::busy);
    EXPECT_EQ(ring_.bytes(), before);
    expect_next(1, 1);
    EXPECT_EQ(fifo_post(view_, {1, 1000}), status::ok);
    EXPECT_EQ(fifo_post(view_, {1, 1001}), status::busy);
}

TEST_P(Fifo, ASenderKilledBeforeItMovedTheTailIsHelpedByTheNext)
{
    ASSERT_TRUE(ring_.publish_and_die({3, 33}));
    if (GetParam() > 1) {
        EXPECT_EQ(fifo_post(view_, {4, 44}), status::ok);
        expect_next(3, 33);
        expect_next(4, 44);
    } else {
        EXPECT_EQ(fifo_post(view_, {4, 44}), status::busy);
        expect_next(3, 33);
    }
    expect_empty();
    expect_working();
}

// The reader is faster than the next sender: the tail still names a slot that the reader has
// already emptied for the lap after.
TEST_P(Fifo, ASenderKilledBeforeItMovedTheTailBlocksNobodyOnceItsMessageIsTaken)
{
    ASSERT_TRUE(ring_.publish_and_die({3, 33}));
    expect_next(3, 33);
    expect_empty();
    EXPECT_EQ(fifo_post(view_, {4, 44}), status::ok);
    expect_next(4, 44);
    expect_working();
}

TEST_P(Fifo, ManySendersKilledOneAfterTheOtherBlockNobody)
{
    std::mt19937 random(17);
    for (std::uint32_t killed = 1; killed < 200; ++killed) {
        if (ring_.publish_and_die({5, killed})) {
            if (random() % 2 == 0) {
                expect_next(5, killed);
                expect_empty();
            }
        }
        // A live sender gets through, and everything up to its message can be taken.
        fifo_message message{};
        while (status::ok != fifo_post(view_, {6, killed})) {
            ASSERT_TRUE(take(reader_, &message)) << "busy, though the ring is empty";
        }
        do {
            ASSERT_TRUE(take(reader_, &message));
        } while (message.sender != 6U);
        ASSERT_EQ(message.granule, killed);
        expect_empty();
    }
}

// --- words that a broken process has stored over those of the ring; an endless loop ends by alarm

// The value itself, one of its neighbours, or anything.
std::uint64_t wild(std::mt19937_64 &random, std::uint64_t right, std::uint32_t slots)
{
    const std::uint64_t near = random() % (4 * slots + 1) - 2 * slots;
    const std::uint64_t values[] = {right + near,          random(), 0, ~0ULL, right + (1ULL << 40),
                                    random() % (2 * slots)};
    return values[random() % std::size(values)];
}

TEST_P(Fifo, AnOverwrittenTailHoldsUpNobodyAndIsPutRightByTheReader)
{
    (void)alarm(60);
    std::mt19937_64 random(GetParam());
    std::uint32_t next = 1;  // message to be posted
    std::uint32_t taken = 1; // message to be taken
    for (int round = 0; round < 2000; ++round) {
        SCOPED_TRACE(round);
        for (std::uint64_t i = random() % (GetParam() + 1); i > 0; --i) {
            next += status::ok == fifo_post(view_, {1, next}) ? 1 : 0;
        }
        ring_.tail = wild(random, ring_.tail, GetParam());
        const std::uint32_t later = next + 4 * GetParam();
        for (std::uint32_t step = 0; next < later; ++step) {
            ASSERT_LT(step, 1000U) << "no room is ever found";
            next += status::ok == fifo_post(view_, {1, next}) ? 1 : 0;
            fifo_message message{};
            if (!take(reader_, &message)) {
                (void)reader_.mend();
            } else {
                ASSERT_EQ(message.granule, taken++) << "lost or overtaken";
            }
        }
        while (taken < next) {
            expect_next(1, taken++);
        }
        expect_empty();
        for (std::uint32_t left = 0; reader_.mend();) {
            ASSERT_LT(++left, 8 * GetParam()) << "it is never in order";
        }
    }
    expect_working();
    (void)alarm(0);
}

TEST_P(Fifo, OverwrittenSlotsHoldUpNobodyForLong)
{
    (void)alarm(60);
    std::mt19937_64 random(GetParam());
    for (int round = 0; round < 2000; ++round) {
        SCOPED_TRACE(round);
        const std::uint64_t lap = view_.lap_of_ticket(ring_.tail);
        for (fifo_slot &slot : ring_.slot) {
            const std::uint64_t words[] = {slot.word, random(), 0,
                                           fifo_word::empty(lap + random() % 5 - 2),
                                           fifo_word::full(lap + random() % 5 - 2, {3, 4})};
            slot.word = words[random() % std::size(words)];
        }
        ring_.tail = 0 == random() % 2 ? ring_.tail.load() : wild(random, ring_.tail, GetParam());
        fifo_message message{};
        for (std::uint32_t step = 0; step < 8 * GetParam(); ++step) {
            (void)(status::ok == fifo_post(view_, {6, 1 + step}));
            if (!take(reader_, &message)) {
                (void)reader_.mend();
            }
        }
        for (std::uint32_t left = 0; take(reader_, &message) || reader_.mend();) {
            ASSERT_LT(++left, 8 * GetParam()) << "more came out than the ring can hold";
        }
        expect_working();
        ASSERT_FALSE(reader_.mend()) << "it is in order";
    }
    (void)alarm(0);
}

TEST(FifoLap, TheLapCounterWrapsWithoutANotice)
{
    ring one(1);
    const fifo_view view = one.view();
    fifo_reader reader(view);
    fifo_message message{};
    constexpr std::uint64_t laps = (1ULL << fifo_word::lap_bits) + 3;
    for (std::uint64_t lap = 0; lap < laps; ++lap) {
        ASSERT_EQ(fifo_post(view, {1, 5}), status::ok) << "lap " << lap;
        ASSERT_EQ(fifo_post(view, {1, 6}), status::busy) << "lap " << lap;
        ASSERT_TRUE(take(reader, &message)) << "lap " << lap;
        ASSERT_FALSE(take(reader, &message)) << "lap " << lap;
    }
    EXPECT_LT(fifo_word::lap_of(one.slot[0].word.load()), 8U) << "it has wrapped";
}

// --- four senders and one reader in threads, for ThreadSanitizer as much as for the eye
// ------------

constexpr std::uint32_t senders = 4;
constexpr std::uint32_t fragments = 3; // each sender has that many buffers, and reuses them
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t messages = 5000;
#else
constexpr std::uint64_t messages = 30000;
#endif

struct sender_memory {
    std::array<std::uint64_t, fragments> payload{}; // plain memory: TSan watches it
    alignas(64) std::atomic<std::uint64_t> consumed{0};
};

class FifoThreads : public testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Slots, FifoThreads, testing::Values(2U, 4U, 16U),
                         testing::PrintToStringParamName());

TEST_P(FifoThreads, NothingIsLostDoubledOrOvertakenAndPayloadsAreComplete)
{
    std::atomic<std::uint64_t> tail{0};
    std::vector<fifo_slot> slots(GetParam());
    const fifo_view view{&tail, slots.data(), GetParam()};
    std::array<sender_memory, senders> memory;
    std::atomic<bool> give_up{false};
    const deadline end(60);

    const auto send = [&](std::uint32_t self) {
        sender_memory &own = memory[self];
        for (std::uint64_t i = 0; i < messages; ++i) {
            while (i - own.consumed.load(std::memory_order_acquire) >= fragments) {
                if (give_up.load(std::memory_order_relaxed)) {
                    return;
                }
                std::this_thread::yield();
            }
            own.payload[i % fragments] = i;
            const fifo_message message{self, static_cast<std::uint32_t>(1 + i % fragments)};
            while (status::ok != fifo_post(view, message)) {
                if (give_up.load(std::memory_order_relaxed)) {
                    return;
                }
                std::this_thread::yield();
            }
        }
    };
    std::vector<std::thread> threads;
    for (std::uint32_t self = 0; self < senders; ++self) {
        threads.emplace_back(send, self);
    }

    fifo_reader reader(view);
    std::array<std::uint64_t, senders> next{};
    std::uint64_t received = 0;
    std::uint64_t wrong = 0;
    while (received < senders * messages && 0 == wrong && !end.over()) {
        fifo_message message{};
        if (!take(reader, &message)) {
            std::this_thread::yield();
            continue;
        }
        ++received;
        if (message.sender >= senders) {
            ++wrong;
            break;
        }
        const std::uint64_t expected = next[message.sender]++;
        sender_memory &from = memory[message.sender];
        wrong += message.granule != 1 + expected % fragments ? 1 : 0;
        wrong += from.payload[expected % fragments] != expected ? 1 : 0;
        from.consumed.store(expected + 1, std::memory_order_release);
    }
    give_up.store(true);
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0U);
    EXPECT_EQ(received, senders * messages);
    fifo_message message{};
    EXPECT_FALSE(take(reader, &message)) << "more came out than went in";
}

} // namespace
