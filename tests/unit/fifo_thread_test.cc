// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fifo_thread_test.cc: four senders and one reader in threads on a tiny ring, for ThreadSanitizer
// as much as for the eye: nothing lost, nothing twice, each sender's order kept, and what was
// written before a post is there when the reader has taken it.
#include "opal/mca/btl/gpusm/shm/fifo.h"

#include "tests/unit/shm_support.h"

#include <array>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::fifo_message;
using gpusm::fifo_post;
using gpusm::fifo_reader;
using gpusm::fifo_slot;
using gpusm::fifo_view;
using gpusm::status;

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
    const gpusm_test::deadline end(60);

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
        if (!reader.take(&message)) {
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
    EXPECT_FALSE(reader.take(&message)) << "more came out than went in";
}

} // namespace
