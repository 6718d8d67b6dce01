// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stage_model_test.cc: one owner and several readers, who play the whole protocol of staged gets
// with real bytes. A seed says who moves next, when copies end, what fails, is cancelled, lost, or
// garbage, and what the owner writes to the reader by itself. A piece is written at any moment
// while it is being filled and read at the last moment before it is given back, so one that two of
// them use shows in the bytes.
#include "opal/mca/btl/gpusm/shm/stage.h"

#include "tests/unit/shm_support.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::stage_piece;
using gpusm::stage_ring;
using gpusm::stage_ring_blocks;
using gpusm::stage_shape;
using gpusm::stage_word;
using gpusm::staged_get;
using gpusm::staged_gets;
using gpusm::status;

constexpr std::uint32_t owners_number = 17; // what the readers call the owner

enum class operation { fetch, cancel, release };
struct to_owner {
    operation what;
    std::uint32_t number = 0; // of the get or of the piece
    std::uint64_t source = 0;
    std::uint64_t len_bytes = 0;
    bool has_target = false;
};

struct to_reader {
    stage_word word;
    bool written = false; // and this is no piece
};

// The owner's copy into memory of a reader.
struct write {
    std::uint32_t reader, get;
    std::uint64_t source, len_bytes;
    bool cancelled = false;
};

// A get as the program sees it.
struct wanted {
    std::uint64_t source = 0;
    std::vector<unsigned char> bytes;
    staged_get *get = nullptr;
    bool may_fail = false; // something has happened to it
};

struct copy_out {
    wanted *of = nullptr;
    staged_get *get = nullptr;
    stage_word word;
};

struct reader {
    staged_gets gets;
    std::deque<std::unique_ptr<wanted>> open;
    std::deque<to_owner> sent;
    std::deque<to_reader> arriving;
    std::vector<copy_out> copying;
};

class StageModel : public testing::Test {
  protected:
    std::size_t any(std::size_t below) { return random_() % below; }
    bool once_in(std::size_t times) { return 0 == any(times); }

    void start(unsigned seed)
    {
        random_.seed(seed);
        stage_shape shape;
        shape.block_bytes = 1 + any(40);
        shape.first_bytes = 1 + any(60);
        shape.piece_bytes = shape.first_bytes + any(300);
        ring_ = std::make_unique<stage_ring>(shape);
        memory_.assign(stage_ring_blocks * shape.block_bytes, 0);
        source_.resize(20000);
        for (unsigned char &each : source_) {
            each = static_cast<unsigned char>(random_());
        }
        readers_ = std::vector<reader>(1 + any(5));
        filling_.clear();
        writing_.clear();
        trouble_ = !once_in(3);
    }

    void want(reader *by)
    {
        if (by->gets.open_count() >= gpusm::stage_fetches_at_once) {
            return;
        }
        auto made = std::make_unique<wanted>();
        const std::size_t len = 1 + any(once_in(4) ? 5000 : 100);
        made->source = any(source_.size() - len);
        made->bytes.resize(len);
        made->get = by->gets.open(owners_number, len, made.get());
        made->get->has_target = once_in(2);
        by->sent.push_back(
            {operation::fetch, made->get->number, made->source, len, made->get->has_target});
        by->open.push_back(std::move(made));
    }

    // What happens to a message of reader `number` at the owner.
    void owner_takes(std::uint32_t number)
    {
        reader &from = readers_[number];
        if (from.sent.empty()) {
            return;
        }
        const to_owner message = from.sent.front();
        from.sent.pop_front();
        switch (message.what) {
        case operation::fetch:
            if (message.has_target && !once_in(3)) {
                writing_.push_back({number, message.number, message.source, message.len_bytes});
                return;
            }
            ASSERT_EQ(ring_->fetch(number, message.number, message.source, message.len_bytes, &from,
                                   number),
                      status::ok);
            return;
        case operation::cancel:
            for (write &each : writing_) {
                each.cancelled |= number == each.reader && message.number == each.get;
            }
            ring_->cancel(number, message.number);
            return;
        case operation::release:
            ASSERT_EQ(ring_->release(number, message.number), status::ok);
            return;
        }
    }

    // Things that no honest reader sends. None of them may change anything.
    void garbage()
    {
        const auto from = static_cast<std::uint32_t>(any(readers_.size() + 1));
        const auto number = static_cast<std::uint32_t>(once_in(2) ? any(70) : random_());
        bool is_lent_to_it = false;
        if (from < readers_.size()) {
            const reader &it = readers_[from];
            const auto is_it = [&](std::uint32_t lent) { return lent == number; };
            is_lent_to_it =
                std::any_of(it.copying.begin(), it.copying.end(),
                            [&](const copy_out &each) { return is_it(each.word.number); }) ||
                std::any_of(it.arriving.begin(), it.arriving.end(),
                            [&](const to_reader &each) {
                                return !each.word.failed && !each.written &&
                                       is_it(each.word.number);
                            }) ||
                std::any_of(it.sent.begin(), it.sent.end(), [&](const to_owner &each) {
                    return operation::release == each.what && is_it(each.number);
                });
        }
        if (!is_lent_to_it) {
            ASSERT_EQ(ring_->release(from, number), status::bad_peer);
        }
        ASSERT_EQ(ring_->fetch(from, 1, 0, 0, nullptr, 0), status::bad_peer);
        ring_->cancel(from, 0x7fffffffU);
    }

    void owner_cuts()
    {
        stage_piece piece;
        for (std::size_t i = 1 + any(8); i > 0 && ring_->cut(&piece); --i) {
            ASSERT_GT(piece.len_bytes, 0U);
            ASSERT_LE(piece.position + piece.len_bytes, memory_.size());
            ASSERT_LE(piece.source + piece.len_bytes, source_.size());
            ASSERT_EQ(piece.user, &readers_[piece.tag]);
            filling_.push_back(piece);
            if (once_in(2)) {
                fill(piece);
            }
        }
    }

    void fill(const stage_piece &piece)
    {
        std::memcpy(&memory_[piece.position], &source_[piece.source], piece.len_bytes);
    }

    void owner_ends_a_fill()
    {
        if (filling_.empty()) {
            return;
        }
        const std::size_t i = any(filling_.size());
        const stage_piece piece = filling_[i];
        filling_.erase(filling_.begin() + static_cast<std::ptrdiff_t>(i));
        fill(piece);
        const bool good = !trouble_ || !once_in(40);
        if (!good) { // whose it is, is not worth finding out
            for (auto &each : readers_[piece.tag].open) {
                each->may_fail = true;
            }
        }
        ring_->filled(piece.number, good);
    }

    // The memory of the reader is written to the last moment, so the get must still be open.
    void owner_ends_a_write()
    {
        if (writing_.empty()) {
            return;
        }
        const std::size_t i = any(writing_.size());
        const write one = writing_[i];
        writing_.erase(writing_.begin() + static_cast<std::ptrdiff_t>(i));
        staged_get *get = readers_[one.reader].gets.find(owners_number, one.get);
        ASSERT_NE(get, nullptr) << "a get is over while its memory is being written";
        auto *of = static_cast<wanted *>(get->user);
        std::memcpy(of->bytes.data(), &source_[one.source], one.len_bytes);
        const bool good = !one.cancelled && (!trouble_ || !once_in(40));
        of->may_fail |= !good;
        readers_[one.reader].arriving.push_back({{one.reader, one.get, !good}, good});
        written_ += good;
    }

    void owner_speaks()
    {
        stage_word word;
        while (ring_->next_word(&word)) {
            ASSERT_LT(word.peer, readers_.size());
            readers_[word.peer].arriving.push_back({word});
        }
    }

    void give_back(reader *to, const stage_word &piece)
    {
        to->sent.push_back({operation::release, piece.number});
    }

    void reader_takes(reader *by)
    {
        if (by->arriving.empty()) {
            return;
        }
        const auto [word, written] = by->arriving.front();
        by->arriving.pop_front();
        staged_get *get = by->gets.find(owners_number, word.get);
        ASSERT_NE(get, nullptr) << "a get is not over before its owner is done with it";
        auto *of = static_cast<wanted *>(get->user);
        if (word.failed) {
            ASSERT_TRUE(of->may_fail) << "for no reason";
            ASSERT_FALSE(get->owner_is_done());
            get->bad = get->owner_failed = true;
            end_if_over(by, get);
            return;
        }
        if (written) {
            ASSERT_TRUE(get->accept_written());
            return end_if_over(by, get);
        }
        ASSERT_FALSE(get->accept(word.offset + 1, word.len_bytes));
        ASSERT_FALSE(get->accept(word.offset, get->len_bytes - word.offset + 1));
        ASSERT_TRUE(get->accept(word.offset, word.len_bytes));
        ASSERT_FALSE(get->accept_written());
        by->copying.push_back({of, get, word});
    }

    void reader_ends_a_copy(reader *by)
    {
        if (by->copying.empty()) {
            return;
        }
        const std::size_t i = any(by->copying.size());
        const copy_out copy = by->copying[i];
        by->copying.erase(by->copying.begin() + static_cast<std::ptrdiff_t>(i));
        if (trouble_ && once_in(40)) {
            copy.of->may_fail = copy.get->bad = true;
            by->sent.push_back({operation::cancel, copy.get->number});
        } else if (!copy.get->bad) {
            std::memcpy(&copy.of->bytes[copy.word.offset], &memory_[copy.word.position],
                        copy.word.len_bytes);
        }
        give_back(by, copy.word);
        --copy.get->copying;
        end_if_over(by, copy.get);
    }

    void reader_cancels(reader *by)
    {
        if (trouble_ && !by->open.empty() && once_in(20)) {
            wanted &one = *by->open[any(by->open.size())];
            one.may_fail = one.get->bad = true;
            by->sent.push_back({operation::cancel, one.get->number});
        }
    }

    void end_if_over(reader *by, staged_get *get)
    {
        if (!get->over()) {
            return;
        }
        auto *of = static_cast<wanted *>(get->user);
        if (!get->bad) {
            ASSERT_EQ(get->arrived_bytes, of->bytes.size());
            ASSERT_EQ(0, std::memcmp(of->bytes.data(), &source_[of->source], of->bytes.size()));
            ++good_;
        } else {
            ASSERT_TRUE(of->may_fail);
            ++bad_;
        }
        by->gets.close(get);
        const auto found = std::find_if(by->open.begin(), by->open.end(),
                                        [&](const auto &each) { return each.get() == of; });
        by->open.erase(found);
    }

    // The reader's process ends, and another one takes its number when nothing of it is left.
    void lose_somebody()
    {
        const auto number = static_cast<std::uint32_t>(any(readers_.size()));
        ring_->drop(number);
        std::erase_if(writing_, [&](const write &each) { return number == each.reader; });
        reader &lost = readers_[number];
        lost.gets.~staged_gets();
        new (&lost.gets) staged_gets;
        lost.open.clear();
        lost.sent.clear();
        lost.arriving.clear();
        lost.copying.clear();
        ++lost_;
    }

    void step()
    {
        const auto number = static_cast<std::uint32_t>(any(readers_.size()));
        reader &one = readers_[number];
        switch (any(10)) {
        case 0:
            for (std::size_t i = any(10); i > 0; --i) {
                want(&one);
            }
            return;
        case 1:
        case 2:
            return owner_takes(number);
        case 3:
            return owner_cuts();
        case 4:
            return once_in(2) ? owner_ends_a_fill() : owner_ends_a_write();
        case 5:
            return owner_speaks();
        case 6:
        case 7:
            return reader_takes(&one);
        case 8:
            return reader_ends_a_copy(&one);
        default:
            if (trouble_ && once_in(60)) {
                lose_somebody();
            } else if (trouble_ && once_in(4)) {
                return garbage();
            }
            return reader_cancels(&one);
        }
    }

    void check_bounds()
    {
        std::uint32_t held = 0;
        std::uint32_t fetches = 0;
        for (std::uint32_t number = 0; number < readers_.size(); ++number) {
            held += ring_->held(number);
            fetches += static_cast<std::uint32_t>(readers_[number].gets.open_count());
            ASSERT_LE(readers_[number].gets.places(), gpusm::stage_fetches_at_once);
        }
        ASSERT_LE(held, stage_ring_blocks);
        ASSERT_LE(ring_->fetches(), fetches + filling_.size());
    }

    // Nobody asks for more, and everything that is under way ends.
    void drain()
    {
        for (int round = 0; round < 20000; ++round) {
            bool quiet = ring_->idle() && filling_.empty() && writing_.empty();
            ASSERT_NO_FATAL_FAILURE(owner_cuts());
            ASSERT_NO_FATAL_FAILURE(owner_ends_a_fill());
            ASSERT_NO_FATAL_FAILURE(owner_ends_a_write());
            ASSERT_NO_FATAL_FAILURE(owner_speaks());
            for (std::uint32_t number = 0; number < readers_.size(); ++number) {
                reader &each = readers_[number];
                ASSERT_NO_FATAL_FAILURE(owner_takes(number));
                ASSERT_NO_FATAL_FAILURE(reader_takes(&each));
                ASSERT_NO_FATAL_FAILURE(reader_ends_a_copy(&each));
                quiet = quiet && each.open.empty() && each.sent.empty() && each.arriving.empty();
            }
            if (quiet) {
                return;
            }
        }
        FAIL() << "something never ends";
    }

    std::mt19937 random_;
    std::unique_ptr<stage_ring> ring_;
    std::vector<unsigned char> memory_; // the ring's
    std::vector<unsigned char> source_;
    std::vector<reader> readers_;
    std::vector<stage_piece> filling_;
    std::vector<write> writing_;
    bool trouble_ = false;
    std::uint64_t good_ = 0;
    std::uint64_t written_ = 0; // good ones, some of which are not wanted any more
    std::uint64_t bad_ = 0;
    std::uint64_t lost_ = 0;
};

TEST_F(StageModel, EveryGetEndsOnceWithItsBytesOrForAReason)
{
    for (unsigned seed = 0; seed < 250; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        start(seed);
        for (int i = 0; i < 3000; ++i) {
            ASSERT_NO_FATAL_FAILURE(step());
            ASSERT_NO_FATAL_FAILURE(check_bounds());
        }
        ASSERT_NO_FATAL_FAILURE(drain());
        for (std::uint32_t number = 0; number < readers_.size(); ++number) {
            ASSERT_EQ(readers_[number].gets.open_count(), 0U);
            ASSERT_EQ(ring_->held(number), 0U);
        }
    }
    // That the dice did not miss what is to be tested.
    EXPECT_GT(good_, 10000U);
    EXPECT_GT(written_, 1000U);
    EXPECT_GT(bad_, 1000U);
    EXPECT_GT(lost_, 100U);
}

} // namespace
