// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fifo_interleaving_test.cc: the FIFO under a scheduler that switches between senders and reader
// at every access to a shared word, as a seed tells it; so a failure can be replayed by its seed.
// Senders may be killed at any access. The order of memory is sequential here: what weaker orders
// do is for the test with threads.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <ucontext.h>

#include <gtest/gtest.h>

namespace schedule {

constexpr std::size_t stack_bytes = 64 * 1024;

struct task {
    ucontext_t context{};
    std::unique_ptr<char[]> stack{new char[stack_bytes]}; // not zeroed: there are many
    std::function<void()> body;
    bool over = false;   // returned, or killed
    long killed_at = -1; // at this access of its own; -1: never
    long accesses = 0;
    bool posting = false;
    bool full_while_posting = false;
};

ucontext_t main_context;
task *running = nullptr;

void step()
{
    if (running != nullptr) {
        task &self = *running;
        self.over = ++self.accesses == self.killed_at; // if so, it is never resumed
        swapcontext(&self.context, &main_context);
    }
}

// What std::atomic is to fifo.h below. Every access is a point where others may run first.
template <typename Value> struct word {
    static constexpr bool is_always_lock_free = std::atomic<Value>::is_always_lock_free;

    Value load(std::memory_order) const
    {
        step();
        return value;
    }
    void store(Value next, std::memory_order)
    {
        step();
        value = next;
    }
    bool compare_exchange_strong(Value &expected, Value next, std::memory_order, std::memory_order)
    {
        step();
        if (value != expected) {
            expected = value;
            return false;
        }
        value = next;
        return true;
    }

    Value value{};
};

void enter()
{
    running->body();
    running->over = true;
    swapcontext(&running->context, &main_context);
}

} // namespace schedule

// The product's code is compiled unchanged over the words above.
namespace std {
template <typename Value> using scheduled_atomic = ::schedule::word<Value>;
}
#define atomic scheduled_atomic
#include "opal/mca/common/gpusm/shm/fifo.h"
#undef atomic

namespace {

using namespace gpusm;
using schedule::task;

constexpr std::uint32_t messages = 6; // of each sender
constexpr long longest_run = 20000;   // accesses; a run that needs more is stuck

class run {
  public:
    run(unsigned seed, std::uint32_t slots, std::uint32_t senders, std::uint32_t mortal)
        : random_(seed), slots_(slots), next_(senders, 1), mortal_(mortal)
    {
        view_ = {&tail_, slots_.data(), slots};
        for (std::uint32_t sender = 0; sender < senders; ++sender) {
            task &made = add([this, sender] { send(sender); });
            if (sender < mortal) {
                made.killed_at = 1 + static_cast<long>(random_() % (messages * 5));
            }
        }
        add([this] { read(); });
    }

    // False, with a reported failure: something was lost, doubled, overtaken or stuck.
    bool go()
    {
        long accesses = 0;
        while (!tasks_.back()->over && accesses++ < longest_run) {
            task &chosen = *tasks_[random_() % tasks_.size()];
            if (chosen.over) {
                continue;
            }
            schedule::running = &chosen;
            swapcontext(&schedule::main_context, &chosen.context);
            schedule::running = nullptr;
            note_whether_full();
        }
        EXPECT_TRUE(tasks_.back()->over) << "the reader waits for messages that never come";
        EXPECT_EQ(wrong_, 0) << "lost, doubled or overtaken";
        EXPECT_EQ(busy_without_reason_, 0) << "busy, though the ring was never full meanwhile";
        return !testing::Test::HasFailure();
    }

  private:
    task &add(std::function<void()> body)
    {
        tasks_.push_back(std::make_unique<task>());
        task &made = *tasks_.back();
        made.body = std::move(body);
        getcontext(&made.context);
        made.context.uc_stack.ss_sp = made.stack.get();
        made.context.uc_stack.ss_size = schedule::stack_bytes;
        made.context.uc_link = nullptr;
        makecontext(&made.context, schedule::enter, 0);
        return made;
    }

    bool full() const
    {
        return std::none_of(slots_.begin(), slots_.end(), [](const fifo_slot &slot) {
            return fifo_word::is_empty(slot.word.value);
        });
    }
    void note_whether_full()
    {
        if (full()) {
            for (const auto &each : tasks_) {
                each->full_while_posting = each->full_while_posting || each->posting;
            }
        }
    }

    void send(std::uint32_t sender)
    {
        task &self = *schedule::running;
        for (std::uint32_t i = 1; i <= messages;) {
            self.posting = true;
            self.full_while_posting = full();
            const status answer = fifo_post(view_, {sender, i});
            self.posting = false;
            if (status::ok == answer) {
                ++i;
            } else {
                busy_without_reason_ += self.full_while_posting ? 0 : 1;
                schedule::step();
            }
        }
    }

    // Until every living sender's last message has come.
    void read()
    {
        fifo_reader reader(view_);
        fifo_message message{};
        while (std::any_of(next_.begin() + mortal_, next_.end(),
                           [](std::uint32_t due) { return due <= messages; })) {
            if (reader.peek(&message)) {
                reader.pop();
                // Nobody has overwritten anything. Not each time, as it moves a tail that was left.
                wrong_ += 0 == random_() % 2 && reader.mend() ? 1 : 0;
                wrong_ += message.sender >= next_.size() || message.granule != next_[message.sender]
                              ? 1
                              : 0;
                ++next_[message.sender % next_.size()];
            }
        }
    }

    std::mt19937 random_;
    schedule::word<std::uint64_t> tail_;
    std::vector<fifo_slot> slots_;
    fifo_view view_;
    std::vector<std::unique_ptr<task>> tasks_;
    std::vector<std::uint32_t> next_; // per sender: the message that is due
    std::uint32_t mortal_;
    int wrong_ = 0;
    int busy_without_reason_ = 0;
};

struct crowd {
    unsigned seeds;
    std::uint32_t senders;
    std::uint32_t mortal; // of them
};

class FifoInterleaving : public testing::TestWithParam<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Slots, FifoInterleaving, testing::Values(1U, 2U, 4U),
                         testing::PrintToStringParamName());

TEST_P(FifoInterleaving, SendersKeepTheirOrderBusyMeansFullAndTheKilledBlockNobody)
{
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "one thread with several stacks; nothing here for ThreadSanitizer";
#endif
    for (const auto &[seeds, senders, mortal] :
         {crowd{1500, 2, 0}, crowd{1000, 3, 0}, crowd{1500, 3, 1}, crowd{1500, 4, 2}}) {
        for (unsigned seed = 0; seed < seeds; ++seed) {
            ASSERT_TRUE(run(seed, GetParam(), senders, mortal).go())
                << "seed " << seed << ", " << senders << " senders, " << mortal << " mortal";
        }
    }
}

} // namespace
