// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stream_device_test.cc: streams with a device at one end or both, and of which the receiver gets
// a part in another way: all bytes arrive, and whatever fails fails alone.
#include "tests/unit/stream_support.h"

namespace gpusm_test {
namespace {

// Every combination of ends, short and long, many at once.
TEST_F(Stream, DevicesAtEitherEndCopyManyPiecesTogether)
{
    struct ends {
        bool of_device, to_device;
        stream_pool *pool;
    };
    for (const auto &[of, to, pool] :
         {ends{false, false, &small_pool}, ends{false, true, &small_pool},
          ends{true, false, &small_pool}, ends{true, true, &small_pool},
          ends{true, true, &device_pool}}) {
        std::deque<message> all;
        for (const std::size_t len : {std::size_t{1}, 1 * kibi, 5 * kibi + 1, 2000 * kibi}) {
            message &made = all.emplace_back(len, static_cast<unsigned char>(len)).by(pool);
            (void)(of ? &made.of_device() : nullptr);
            (void)(to ? &made.to_device() : nullptr);
            ask(&made);
        }
        deliver();
        (void)run(all.size());
        for (const message &each : all) {
            EXPECT_EQ(status::ok, each.fetch.outcome);
            EXPECT_TRUE(each.right()) << of << to << each.source.size();
        }
    }
    EXPECT_GE(sender_.longest_copy, 8 * kibi) << "of slots of 1 KiB";
    EXPECT_GE(reader_.longest_copy, 8 * kibi);
    EXPECT_TRUE(reader_.streams.idle() && sender_.streams.idle());
    EXPECT_EQ(0, sender_.opened);
}

TEST_F(Stream, ASenderMayWriteAllOfAMessageItselfAndSeveralAtOnce)
{
    std::deque<message> all;
    for (int i = 0; i < 5; ++i) {
        message &made = all.emplace_back(100 * kibi, static_cast<unsigned char>(i))
                            .by(&small_pool)
                            .with_target();
        ask(&made);
    }
    deliver();
    EXPECT_EQ(nullptr, sender_.streams.progress());
    EXPECT_EQ(5U, sender_.copies.size());
    (void)run(5);
    for (const message &each : all) {
        EXPECT_TRUE(each.right() && each.fetch.written == 100 * kibi);
    }
    sender_.writes = false;
    message streamed(100 * kibi, 9);
    streamed.by(&small_pool).with_target();
    ask_and_deliver(&streamed);
    expect_end(streamed);
    EXPECT_EQ(0U, streamed.fetch.written);
}

// A copy that fails, at either end and anywhere in the message: that message fails, and the ones
// before and behind it do not.
TEST_F(Stream, ACopyThatFailsEndsItsMessageOnly)
{
    for (const bool at_sender : {false, true}) {
        stream_process &fails = at_sender ? sender_ : reader_;
        fails.at_once = 1;
        for (int good = 0; good < 12; ++good) {
            message before(3 * kibi, 1);
            message one(100 * kibi, 2);
            message behind(3 * kibi, 3);
            for (message *each : {&before, &one, &behind}) {
                each->by(&small_pool).of_device().to_device();
                ask(each);
            }
            deliver();
            fails.fails_at = fails.copies_made + good;
            (void)run(3);
            int failed = 0;
            for (const message *each : {&before, &one, &behind}) {
                failed += status::ok != each->fetch.outcome;
                EXPECT_TRUE(status::ok != each->fetch.outcome || each->right());
            }
            EXPECT_EQ(fails.copies_made > fails.fails_at ? 1 : 0, failed);
        }
        fails.fails_at = -1;
    }
    EXPECT_TRUE(reader_.streams.idle() && sender_.streams.idle());
    EXPECT_EQ(0, sender_.opened);
}

TEST_F(Stream, ARingThatTheSenderCannotMapIsSaidToBeOne)
{
    sender_.cannot_map = true;
    message one(50 * kibi);
    one.by(&device_pool).of_device().to_device();
    ask_and_deliver(&one);
    expect_end(one, status::not_found);
    reader_.no_device_memory = true;
    stream_pool other = device_pool;
    message two(50 * kibi);
    two.by(&other).of_device().to_device();
    EXPECT_EQ(status::no_memory, reader_.streams.fetch(reader_.towards(sender_), &two.fetch));
}

// Asking again takes nothing of the segment, and is for the services to do without.
TEST_F(Stream, MemoryForAnotherRingIsTakenOnceThereIsSome)
{
    stream_pool pool = device_pool;
    message one(50 * kibi), two(50 * kibi);
    ask(&one.by(&pool).of_device().to_device());
    reader_.no_device_memory = true;
    for (int i = 0; i < 5000; ++i) {
        ASSERT_EQ(status::busy,
                  reader_.streams.fetch(reader_.towards(reader_), &two.by(&pool).fetch));
    }
    EXPECT_EQ(5001, reader_.asked_for_slots);
    reader_.no_device_memory = false;
    EXPECT_EQ(status::ok, reader_.streams.fetch(reader_.towards(reader_), &two.by(&pool).fetch));
}

TEST_F(Stream, DeviceMemoryThatIsForgottenEndsItsMessageWhenItsCopiesHaveEnded)
{
    message one(100 * kibi);
    one.by(&small_pool).of_device();
    ask_and_deliver(&one);
    EXPECT_EQ(nullptr, sender_.streams.progress());
    ASSERT_FALSE(sender_.copies.empty());
    sender_.streams.forget(&one);
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(nullptr, sender_.streams.progress());
        EXPECT_EQ(nullptr, reader_.streams.progress());
    }
    EXPECT_EQ(1, sender_.opened) << "a device still reads it";
    expect_end(one, status::unsupported);
    EXPECT_EQ(0, sender_.opened);
}

// --- parts that the receiver gets by itself ---

// Through a ring or to a target; also when the sender, which has begun, leaves in the middle.
TEST_F(Stream, BothSidesCopyUntilTheyMeet)
{
    for (const bool target : {false, true}) {
        for (const bool leaves : {false, true}) {
            message one(1000 * kibi + 7);
            one.by(&small_pool).of_both(target);
            one.fetch.to_device = !target;
            ask_and_deliver(&one);
            EXPECT_EQ(nullptr, sender_.streams.progress());
            sender_.end_copies();
            EXPECT_EQ(nullptr, sender_.streams.progress());
            bool over = false;
            const deadline limit(leaves && target ? 1 : 20);
            while (!over && !limit.over()) {
                over = nullptr != reader_.streams.progress();
                reader_.end_copies();
                if (!leaves) {
                    EXPECT_EQ(nullptr, sender_.streams.progress());
                }
                sender_.end_copies(); // what has been begun ends
            }
            EXPECT_EQ(!leaves || !target, over) << "it is not known that the sender has ended";
            if (!over) {
                (void)run(1);
            }
            EXPECT_EQ(status::ok, one.fetch.outcome);
            EXPECT_TRUE(one.right());
            EXPECT_GT(one.fetch.received, 0U);
            EXPECT_EQ(target ? one.fetch.received : 0, one.fetch.written);
            EXPECT_EQ(nullptr, sender_.streams.progress());
            EXPECT_EQ(nullptr, reader_.streams.progress());
            EXPECT_TRUE(reader_.streams.idle() && sender_.streams.idle());
            EXPECT_EQ(0, sender_.opened);
        }
    }
}

// The message ends although the sender has not answered; the answer goes nowhere, and the next
// message comes as usual.
TEST_F(Stream, AMessageThatTheReceiverGetsAllOfDoesNotWaitForTheSender)
{
    for (const bool target : {false, true}) {
        message one(300 * kibi);
        one.by(&small_pool).of_both(target);
        ask(&one);
        expect_end(one, status::ok, false);
        EXPECT_EQ(0U, one.fetch.received);
        one.source.assign(one.source.size(), 0);
        message two(300 * kibi, 7);
        two.by(&small_pool).of_both(target);
        ask_and_deliver(&two);
        expect_end(two);
        EXPECT_NE(one.source, one.destination);
    }
}

TEST_F(Stream, WhereTheReceiverHasTheRestTheSenderGoesOnWithTheNextMessage)
{
    message one(600 * kibi);
    message two(600 * kibi);
    for (message *each : {&one, &two}) {
        ask(&each->by(&small_pool).of_both(true));
    }
    deliver();
    EXPECT_EQ(nullptr, reader_.streams.progress());
    EXPECT_EQ(nullptr, sender_.streams.progress());
    const auto ends_at = [](const message &of) {
        return of.fetch.destination + of.fetch.len_bytes;
    };
    EXPECT_TRUE(std::any_of(sender_.copies.begin(), sender_.copies.end(), [&](auto *copy) {
        return copy->destination >= two.fetch.destination && copy->destination < ends_at(two);
    })) << "while the copies of the first one still run";
    (void)run(2);
    EXPECT_TRUE(one.right() && two.right());
    EXPECT_EQ(0, sender_.opened);
}

TEST_F(Stream, PartsThatADeviceCopiesAreBegunTogether)
{
    for (const bool by_device : {false, true}) {
        std::deque<message> all;
        for (int i = 0; i < 8; ++i) {
            message &made = all.emplace_back(600 * kibi).by(&small_pool).of_both(false).to_device();
            made.fetch.back_by_device = by_device;
            ask(&made);
        }
        deliver();
        reader_.parts_read = 0;
        EXPECT_EQ(nullptr, reader_.streams.progress());
        EXPECT_EQ(by_device ? 16 : 1, reader_.parts_read);
        (void)run(8);
        EXPECT_TRUE(all.front().right() && all.back().right());
    }
}

TEST_F(Stream, ARingThatIsEmptyBeginsWithItsFirstSlot)
{
    for (int i = 0; i < 3; ++i) {
        message one(3 * kibi, static_cast<unsigned char>(i));
        ask(&one.by(&small_pool));
        EXPECT_EQ(0U, reader_.sent.back().first.sequence % small_pool.pieces);
        deliver();
        (void)run(1);
        EXPECT_TRUE(one.right());
    }
}

// What is written late could overwrite what the program has received meanwhile.
TEST_F(Stream, AMessageIsNotOverWhileTheSenderWritesToItsTarget)
{
    message one(300 * kibi);
    one.by(&small_pool).of_both(true);
    ask_and_deliver(&one);
    EXPECT_EQ(nullptr, sender_.streams.progress());
    ASSERT_FALSE(sender_.copies.empty());
    const deadline soon(1);
    while (!soon.over()) {
        ASSERT_EQ(nullptr, reader_.streams.progress());
    }
    expect_end(one);
}

TEST_F(Stream, WhatTheSenderCannotWriteTheReceiverGetsByItself)
{
    for (const bool at_once : {false, true}) {
        message one(500 * kibi);
        one.by(&small_pool).of_both(true);
        sender_.cannot_map = at_once;
        ask_and_deliver(&one);
        EXPECT_EQ(nullptr, sender_.streams.progress());
        sender_.end_copies(false);
        expect_end(one);
        EXPECT_EQ(at_once, one.fetch.sender_cannot);
    }
}

TEST_F(Stream, APartThatTheReceiverCannotGetFailsItsMessageOnceTheSenderHasEnded)
{
    message one(500 * kibi);
    one.by(&small_pool).of_both(true);
    reader_.cannot_read = true;
    ask_and_deliver(&one);
    EXPECT_EQ(nullptr, sender_.streams.progress());
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(nullptr, reader_.streams.progress());
    }
    (void)run(1);
    EXPECT_NE(status::ok, one.fetch.outcome);
    EXPECT_TRUE(sender_.streams.idle() && reader_.streams.idle());
}

TEST_F(Stream, MessagesOfAPeerThatIsClosedEndWhenTheirCopiesHave)
{
    message one(200 * kibi);
    one.by(&small_pool).to_device();
    peer &from = reader_.towards(sender_);
    ask_and_deliver(&one);
    EXPECT_EQ(nullptr, sender_.streams.progress());
    EXPECT_EQ(nullptr, reader_.streams.progress());
    ASSERT_FALSE(reader_.copies.empty());
    from.close();
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(nullptr, reader_.streams.progress());
    }
    (void)run(1, false);
    EXPECT_NE(status::ok, one.fetch.outcome);
}

} // namespace
} // namespace gpusm_test
