// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fifo_test.cc: the FIFO alone: what shm/fifo.h promises, words that somebody has overwritten, and
// threads. What senders leave behind that are killed in the middle of a post is in
// fifo_interleaving_test.cc and fifo_killed_sender.cc.
#include "opal/mca/common/gpusm/shm/fifo.h"

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

// Every field survives at its largest, and zeroed memory is an empty ring.
constexpr std::uint64_t largest = fifo_word::full(fifo_word::lap_mask, {0xffff, 0xffffff});
static_assert(fifo_word::message_of(largest).sender == 0xffff);
static_assert(fifo_word::message_of(largest).granule == 0xffffff);
static_assert(fifo_word::lap_of(largest) == fifo_word::lap_mask && !fifo_word::is_empty(largest));
static_assert(fifo_word::is_empty(fifo_word::empty(fifo_word::lap_mask)));
static_assert(fifo_word::empty(0) == 0);

TEST_P(Fifo, MessagesComeOutInTheOrderOfTheirPostsAndBusyChangesNothing)
{
    std::mt19937 random(GetParam());
    std::deque<fifo_message> model;
    for (std::uint32_t step = 1; step < 5000; ++step) {
        const fifo_message next{static_cast<std::uint32_t>(random() & 0xffffU), step};
        if (random() % 2 == 0) {
            if (const auto before = ring_.bytes(); model.size() == GetParam()) {
                ASSERT_EQ(fifo_post(view_, next), status::busy);
                ASSERT_EQ(ring_.bytes(), before);
            } else {
                ASSERT_EQ(fifo_post(view_, next), status::ok);
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

// --- words that a broken process has stored over those of the ring; an endless loop ends by alarm

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
        ring_.tail = any_word(random, ring_.tail);
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
        ring_.tail = 0 == random() % 2 ? ring_.tail.load() : any_word(random, ring_.tail);
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

// --- four senders and one reader in threads, for ThreadSanitizer as much as for the eye ---

constexpr std::uint32_t senders = 4;
#if defined(__SANITIZE_THREAD__)
constexpr std::uint32_t messages = 5000;
#else
constexpr std::uint32_t messages = 30000;
#endif

class FifoThreads : public testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Slots, FifoThreads, testing::Values(2U, 4U, 16U),
                         testing::PrintToStringParamName());

TEST_P(FifoThreads, NothingIsLostDoubledOrOvertakenAndPayloadsAreComplete)
{
    ring shared(GetParam());
    const fifo_view view = shared.view();
    std::vector<std::vector<std::uint32_t>> payload(senders); // plain memory: TSan watches it
    std::atomic<bool> give_up{false};
    const deadline end(60);
    std::vector<std::thread> threads;
    for (std::uint32_t self = 0; self < senders; ++self) {
        payload[self].resize(messages + 1);
        threads.emplace_back([&, self] {
            for (std::uint32_t i = 1; i <= messages; ++i) {
                payload[self][i] = i;
                while (!give_up && status::ok != fifo_post(view, {self, i})) {
                    std::this_thread::yield();
                }
            }
        });
    }

    fifo_reader reader(view);
    fifo_message message{};
    std::array<std::uint32_t, senders> last{};
    std::uint32_t received = 0;
    bool right = true;
    while (received < senders * messages && right && !end.over()) {
        if (!take(reader, &message)) {
            std::this_thread::yield();
            continue;
        }
        ++received;
        right = message.sender < senders && message.granule == ++last[message.sender] &&
                payload[message.sender][message.granule] == message.granule;
    }
    give_up.store(true);
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT_TRUE(right) << "message " << message.granule << " of " << message.sender;
    EXPECT_EQ(received, senders * messages);
    EXPECT_FALSE(take(reader, &message)) << "more came out than went in";
}

} // namespace
