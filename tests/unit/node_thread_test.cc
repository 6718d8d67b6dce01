// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// node_thread_test.cc: several threads of one process post, flush and reap on the same peer while
// the peer's thread polls: for ThreadSanitizer, and for the promise that nothing is lost, doubled
// or handed back twice.
#include "opal/mca/common/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <array>
#include <thread>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr int threads_of_sender = 3;
#if defined(__SANITIZE_THREAD__)
constexpr int messages = 1000;
#else
constexpr int messages = 5000;
#endif
constexpr int per_thread_in_flight = 8;

struct payload {
    int thread;
    int number;
};

// Says which thread sent a fragment that reap() gives to any thread.
struct numbered {
    outgoing out; // first, so that reap's pointer is ours
    std::atomic<bool> free{true};
};

TEST(NodeThreads, ThreadsOfOneProcessShareAPeer)
{
    const scratch_folder folder;
    const several_threads threads_are_used;
    node sender(make_segment(folder.path(), 1));
    node receiver(make_segment(folder.path(), 2), 1);
    const segment_identity target = receiver.own().identity();
    const deadline end(60);
    std::atomic<bool> give_up{false};
    std::atomic<int> reaped{0};
    std::atomic<int> inlined{0};
    std::atomic<int> running{threads_of_sender};

    std::vector<std::vector<numbered>> fragments(threads_of_sender);
    for (std::vector<numbered> &own : fragments) {
        own = std::vector<numbered>(per_thread_in_flight);
        for (numbered &each : own) {
            each.out = make_fragment(sender.own(), std::string(sizeof(payload), 0));
        }
    }
    const auto collect = [&reaped](peer &to) {
        while (outgoing *back = to.reap()) {
            auto *owner = reinterpret_cast<numbered *>(back);
            EXPECT_FALSE(owner->free.exchange(true, std::memory_order_acq_rel)) << "twice";
            reaped.fetch_add(1);
        }
    };
    const auto work = [&](int self) {
        peer &to = *sender.add_peer(target, folder.path());
        for (int number = 0; number < messages && !give_up.load(); ++number) {
            const payload content{self, number};
            const std::string bytes(reinterpret_cast<const char *>(&content), sizeof(content));
            if (0 != number % 3 && send_inline(to, bytes)) {
                inlined.fetch_add(1);
                continue;
            }
            numbered &mine = fragments[self][number % per_thread_in_flight];
            while (!give_up.load() && !mine.free.exchange(false, std::memory_order_acq_rel)) {
                (void)to.flush();
                collect(to);
                std::this_thread::yield();
            }
            new (static_cast<void *>(mine.out.header + 1)) payload(content);
            const status s = to.post(&mine.out);
            EXPECT_TRUE(status::ok == s || status::busy == s);
        }
        running.fetch_sub(1);
    };
    std::vector<std::thread> threads;
    for (int self = 0; self < threads_of_sender; ++self) {
        threads.emplace_back(work, self);
    }

    std::array<int, threads_of_sender> next{};
    int received = 0;
    constexpr int all = threads_of_sender * messages;
    peer &from_here = *sender.add_peer(target, folder.path());
    while ((received < all || reaped.load() + inlined.load() < all) && !end.over()) {
        (void)receiver.poll(16, [&](peer &, const frag_header &, const unsigned char *at) {
            payload got;
            std::memcpy(&got, at, sizeof(got));
            EXPECT_EQ(got.number, next[got.thread]) << "of thread " << got.thread;
            ++next[got.thread];
            ++received;
        });
        if (0 == running.load()) {
            (void)from_here.flush();
            collect(from_here);
        }
        std::this_thread::yield();
    }
    give_up.store(true);
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT_EQ(received, all);
    EXPECT_EQ(reaped.load() + inlined.load(), all);
    EXPECT_GT(inlined.load(), 0);
    EXPECT_TRUE(from_here.idle());
    EXPECT_EQ(sender.peer_at(1), nullptr);
}

TEST(NodeThreads, APeerMayBeClosedWhileOtherThreadsUseIt)
{
    const scratch_folder folder;
    const several_threads threads_are_used;
    node sender(make_segment(folder.path(), 1));
    node receiver(make_segment(folder.path(), 2));
    peer &to = *sender.add_peer(receiver.own().identity(), folder.path());
    std::vector<outgoing> fragments(40);
    for (outgoing &each : fragments) {
        each = make_fragment(sender.own(), "x");
    }
    const deadline end(30);
    std::size_t taken = 0; // by post()
    std::thread poster([&] {
        for (outgoing &each : fragments) {
            const status s = to.post(&each);
            taken += status::ok == s || status::busy == s ? 1 : 0;
            std::this_thread::yield();
        }
    });
    std::thread watcher([&] {
        while (!to.closed() && !end.over()) {
            (void)to.idle();
            (void)to.flush();
            std::this_thread::yield();
        }
    });
    (void)receiver.poll(4, [](peer &, const frag_header &, const unsigned char *) {});
    to.close();
    poster.join();
    watcher.join();
    EXPECT_FALSE(end.over());
    std::size_t back = 0;
    while (to.reap() != nullptr) {
        ++back;
    }
    EXPECT_EQ(back, taken);
    EXPECT_TRUE(to.idle());
}

} // namespace
