// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_gather.cc: windows of many messages of device memory at once, which the receiver gathers
// into few submissions, and which way those went.
#include "tests/mpi/exchange.h"

#include <cstdio>

namespace gpusm::exchange {

namespace {

constexpr int tag = 71;

// Where the messages of a window lie: lengths on both sides of every limit, places at addresses of
// every remainder, and guard bytes between them.
window make_window(std::uint64_t first_seed, std::size_t messages, std::size_t shift)
{
    constexpr std::size_t lengths[] = {8,    1,    7,     33,    255,   256,
                                       1001, 4096, 16384, 65537, 64000, 200003};
    constexpr std::size_t long_one = (3U << 20) + 5; // longer than a copy for the kernel
    window made;
    std::size_t end = 0;
    for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t len = 63 == i % 64 ? long_one : lengths[i % std::size(lengths)];
        const std::size_t offset = end + 64 + (i * shift) % 131;
        made.push_back({offset, len, first_seed + i});
        end = offset + len;
    }
    return made;
}

// A window each way between ranks 0 and 1, checked.
void check_window(context &c, memory_kind from, memory_kind to, std::size_t messages)
{
    const std::uint64_t seed = c.draw_seeds(2 * messages);
    const auto seed_of = [&](int rank) {
        return seed + messages * static_cast<std::uint64_t>(rank);
    };
    const window to_send = make_window(seed_of(c.rank), messages, 37);
    const window to_receive = make_window(seed_of(1 - c.rank), messages, 101);
    auto out = c.make(from, end_of(to_send));
    auto in = c.make(to, end_of(to_receive));
    swap_windows(c, *out, to_send, *in, to_receive, tag,
                 std::string("a window from ") + bench::describe(from) + " into " +
                     bench::describe(to));
}

// Windows from that memory into memory of each kind in --kinds. How many messages of a window at
// least must have come by get is for the caller to say.
void check_windows(context &c, memory_kind from, std::size_t messages, std::size_t by_get_at_least)
{
    constexpr int rounds = 3;
    const bench::path_counters counters;
    if (!c.expect_true(counters.available(), "the transport has performance variables")) {
        return;
    }
    const bench::path_counts before = counters.read();
    for (int i = 0; i < rounds; ++i) {
        for (memory_kind kind : c.kinds) {
            check_window(c, from, kind, messages);
        }
    }
    bench::path_counts used = bench::since(before, counters.read());
    c.expect_true(used["get_messages"] >= rounds * by_get_at_least * c.kinds.size(),
                  "the messages came by get");
    // One line with the sums over both ranks, for the shell driver.
    const unsigned long long mine[] = {used["single_submissions"], used["batch_submissions"],
                                       used["kernel_submissions"]};
    unsigned long long sum[3] = {};
    MPI_Reduce(mine, sum, 3, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == c.rank) {
        std::printf("submissions: single %llu, batch %llu, kernel %llu\n", sum[0], sum[1], sum[2]);
    }
}

} // namespace

void test_gather(context &c)
{
    constexpr std::size_t messages = 256;
    check_windows(c, memory_kind::device, messages, messages);
}

// Of twelve messages three are long enough to be staged.
void test_gather_from_host(context &c)
{
    constexpr std::size_t messages = 256;
    check_windows(c, memory_kind::host, messages, messages / 4);
}

// One of many receives ends behind its allocation. That is an error of the program, which ends it;
// how, the shell driver looks at.
void test_behind_end(context &c)
{
    constexpr std::size_t messages = 64;
    constexpr std::size_t len = 1000;
    // Rank 0 has room for all of them, rank 1 for all but half of the last.
    auto memory = c.make(memory_kind::device, messages * len - (0 == c.rank ? 0 : len / 2));
    requests under_way(c);
    at_step("a message that is longer than what is left of its buffer");
    for (std::size_t i = 0; i < messages; ++i) {
        if (0 == c.rank) {
            under_way.send(memory->at(i * len), len, 1, tag);
        } else {
            under_way.receive(memory->at(i * len), len, 0, tag);
        }
    }
    under_way.wait();
}

} // namespace gpusm::exchange
