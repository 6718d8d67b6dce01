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
    for (const bool of : {false, true}) {
        for (const bool to : {false, true}) {
            for (stream_pool *pool : {&small_pool, &device_pool}) {
                if (!of && pool == &device_pool) {
                    continue;
                }
                std::deque<message> all;
                for (const std::size_t len :
                     {std::size_t{1}, 1 * kibi, 5 * kibi + 1, 2000 * kibi}) {
                    message &made = all.emplace_back(len, static_cast<unsigned char>(len)).by(pool);
                    made.fetch.may_read = false;
                    (void)(of ? &made.of_device() : nullptr);
                    (void)(to || pool == &device_pool ? &made.to_device() : nullptr);
                    ASSERT_EQ(status::ok,
                              reader_.streams.fetch(reader_.towards(sender_), &made.fetch));
                }
                ASSERT_TRUE(reader_.deliver_to(sender_));
                (void)run(all.size());
                for (const message &each : all) {
                    EXPECT_EQ(status::ok, each.fetch.outcome);
                    EXPECT_TRUE(each.right()) << of << to << each.source.size();
                }
            }
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
        ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &made.fetch));
    }
    ASSERT_TRUE(reader_.deliver_to(sender_));
    EXPECT_EQ(nullptr, sender_.streams.progress());
    EXPECT_EQ(5U, sender_.copies.size());
    (void)run(5);
    for (const message &each : all) {
        EXPECT_TRUE(each.right() && each.fetch.written);
    }
    sender_.writes = false;
    message streamed(100 * kibi, 9);
    streamed.by(&small_pool).with_target();
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &streamed.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_TRUE(streamed.right() && !streamed.fetch.written);
}

// A copy that fails, at either end and anywhere in the message: that message fails, and the ones
// before and behind it do not.
TEST_F(Stream, ACopyThatFailsEndsItsMessageOnly)
{
    for (const bool at_sender : {false, true}) {
        for (std::size_t good = 0; good < 12; ++good) {
            message before(3 * kibi, 1);
            message one(100 * kibi, 2);
            message behind(3 * kibi, 3);
            for (message *each : {&before, &one, &behind}) {
                each->by(&small_pool).of_device().to_device();
                ASSERT_EQ(status::ok,
                          reader_.streams.fetch(reader_.towards(sender_), &each->fetch));
            }
            ASSERT_TRUE(reader_.deliver_to(sender_));
            stream_process &fails = at_sender ? sender_ : reader_;
            stream_process &other = at_sender ? reader_ : sender_;
            std::size_t left = good;
            std::vector<stream_fetch *> ended;
            const deadline limit(20);
            const int made_before = fails.copies_made;
            while (ended.size() < 3 && !limit.over()) {
                EXPECT_EQ(nullptr, sender_.streams.progress());
                for (stream_fetch *each = reader_.streams.progress(); each; each = each->next) {
                    ended.push_back(each);
                }
                other.end_copies();
                if (!fails.copies.empty() && SIZE_MAX != left) {
                    fails.end_copies(1, 0 != left);
                    left = 0 == left ? SIZE_MAX : left - 1;
                } else {
                    fails.end_copies();
                }
            }
            ASSERT_EQ(3U, ended.size());
            int failed = 0;
            for (const message *each : {&before, &one, &behind}) {
                failed += status::ok != each->fetch.outcome;
                EXPECT_TRUE(status::ok != each->fetch.outcome || each->right());
            }
            EXPECT_EQ(fails.copies_made - made_before > static_cast<int>(good) ? 1 : 0, failed);
        }
    }
    EXPECT_TRUE(reader_.streams.idle() && sender_.streams.idle());
    EXPECT_EQ(0, sender_.opened);
}

TEST_F(Stream, ARingThatTheSenderCannotMapIsSaidToBeOne)
{
    sender_.cannot_map = true;
    message one(50 * kibi);
    one.by(&device_pool).of_device().to_device();
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_EQ(status::not_found, one.fetch.outcome);
    reader_.no_device_memory = true;
    stream_pool other = device_pool;
    message two(50 * kibi);
    two.by(&other).of_device().to_device();
    EXPECT_EQ(status::no_memory, reader_.streams.fetch(reader_.towards(sender_), &two.fetch));
}

TEST_F(Stream, DeviceMemoryThatIsForgottenEndsItsMessageWhenItsCopiesHaveEnded)
{
    message one(100 * kibi);
    one.by(&small_pool).of_device();
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    EXPECT_EQ(nullptr, sender_.streams.progress());
    ASSERT_FALSE(sender_.copies.empty());
    sender_.streams.forget(one.source.data(), one.source.size());
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(nullptr, sender_.streams.progress());
        EXPECT_EQ(nullptr, reader_.streams.progress());
    }
    EXPECT_EQ(1, sender_.opened) << "a device still reads it";
    (void)run(1);
    EXPECT_EQ(status::unsupported, one.fetch.outcome);
    EXPECT_EQ(0, sender_.opened);
}

// --- parts that the receiver gets in another way ---

// Also when the sender, which has begun, leaves in the middle.
TEST_F(Stream, TheReceiverTakesFromTheBackUntilBothMeet)
{
    for (const bool leaves : {false, true}) {
        message one(1000 * kibi + 7);
        one.by(&small_pool).to_device();
        ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
        ASSERT_TRUE(reader_.deliver_to(sender_));
        EXPECT_EQ(nullptr, sender_.streams.progress());
        std::uint64_t place = 0;
        std::uint64_t bytes = 0;
        std::uint64_t pulled_from = one.fetch.len_bytes;
        bool over = false;
        const deadline limit(20);
        while (!over && !limit.over()) {
            over = nullptr != reader_.streams.progress();
            reader_.end_copies();
            if (reader_.streams.take_back(&one.fetch, 64 * kibi, 256 * kibi, &place, &bytes)) {
                ASSERT_EQ(pulled_from, place + bytes);
                ASSERT_LE(bytes, 256 * kibi);
                std::copy_n(one.source.begin() + static_cast<std::ptrdiff_t>(place), bytes,
                            one.destination.begin() + static_cast<std::ptrdiff_t>(place));
                pulled_from = place;
            }
            if (!leaves) {
                EXPECT_EQ(nullptr, sender_.streams.progress());
            }
        }
        EXPECT_EQ(status::ok, one.fetch.outcome);
        EXPECT_TRUE(one.right());
        EXPECT_GT(one.fetch.received, 0U);
        EXPECT_LT(pulled_from, one.fetch.len_bytes);
        EXPECT_FALSE(reader_.streams.take_back(&one.fetch, 64 * kibi, 256 * kibi, &place, &bytes));
        EXPECT_EQ(nullptr, sender_.streams.progress());
        EXPECT_EQ(nullptr, reader_.streams.progress());
        EXPECT_TRUE(reader_.streams.idle() && sender_.streams.idle());
    }
}

// The message ends although the sender has not answered; the answer goes nowhere, and the next
// message comes as usual.
TEST_F(Stream, AMessageThatTheReceiverTakesAllOfDoesNotWaitForTheSender)
{
    message one(300 * kibi);
    one.by(&small_pool).to_device();
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
    std::uint64_t place = 0;
    std::uint64_t bytes = 0;
    while (reader_.streams.take_back(&one.fetch, 64 * kibi, 256 * kibi, &place, &bytes)) {
    }
    EXPECT_EQ(0U, place);
    (void)run(1, false);
    EXPECT_EQ(status::ok, one.fetch.outcome);
    message two(300 * kibi, 7);
    two.by(&small_pool).to_device();
    ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &two.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
    (void)run(1);
    EXPECT_TRUE(two.right());
    EXPECT_NE(one.source, one.destination);
}

// One whose source a device may be reading waits for the answer.
TEST_F(Stream, AMessageThatIsGivenUpEndsWhenNothingReadsItsSource)
{
    for (const bool of : {false, true}) {
        message one(300 * kibi);
        one.by(&small_pool).to_device();
        (void)(of ? &one.of_device() : nullptr);
        ASSERT_EQ(status::ok, reader_.streams.fetch(reader_.towards(sender_), &one.fetch));
        ASSERT_TRUE(reader_.deliver_to(sender_));
        EXPECT_EQ(nullptr, sender_.streams.progress());
        reader_.streams.give_up(&one.fetch);
        EXPECT_EQ(of, nullptr == reader_.streams.progress());
        if (of) {
            (void)run(1);
        }
        EXPECT_NE(status::ok, one.fetch.outcome);
        const deadline limit(20);
        while (!reader_.streams.idle() && !limit.over()) {
            EXPECT_EQ(nullptr, sender_.streams.progress());
            sender_.end_copies();
            EXPECT_EQ(nullptr, reader_.streams.progress());
        }
        EXPECT_TRUE(sender_.streams.idle());
    }
}

TEST_F(Stream, MessagesOfAPeerThatIsClosedEndWhenTheirCopiesHave)
{
    message one(200 * kibi);
    one.by(&small_pool).to_device();
    peer &from = reader_.towards(sender_);
    ASSERT_EQ(status::ok, reader_.streams.fetch(from, &one.fetch));
    ASSERT_TRUE(reader_.deliver_to(sender_));
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
