// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_paths.cc: which way messages go, and when a process starts to use its GPU.
#include "tests/mpi/exchange_tools.h"

namespace gpusm::exchange {

namespace {

constexpr int tag = 51;

// One message each way between ranks 0 and 1, from and into fresh memory, checked.
void ping_pong(context &c, memory_kind mine, memory_kind peers, std::size_t len)
{
    auto out = c.make(mine, len);
    auto in = c.make(mine, len);
    swap_checked(c, *out, *in, describe(peers, mine, len, "ping-pong"));
}

} // namespace

bool until_by_get(context &c, memory_kind kind, std::size_t len_bytes)
{
    constexpr int most_rounds = 200;
    const int peer = 1 - c.rank;
    const bench::path_counters counters;
    const unsigned long long before = counters.read()["get_messages"];
    auto out = c.make(kind, len_bytes);
    auto in = c.make(kind, len_bytes);
    const filler space(c);
    space.fill();
    at_step("until messages go by get");
    for (int i = 0; i < most_rounds; ++i) {
        c.send_receive(out->data(), len_bytes, in->data(), len_bytes, peer, tag);
        const char mine = counters.read()["get_messages"] > before ? 1 : 0;
        char peers = 0;
        c.send_receive(&mine, 1, &peers, 1, peer, tag);
        if (0 != mine && 0 != peers) {
            return true;
        }
        pause_ms(10);
    }
    return false;
}

// "Every kind of memory goes its way" after the first few messages, whatever it is received into.
void test_ways(context &c)
{
    constexpr std::size_t lengths[] = {1, 256, 4096, 65535, (1u << 20) + 1, 5u << 20};
    const bench::path_counters counters;
    if (!all_by_their_ways(c)) {
        return;
    }
    for (const memory_kind kind : c.kinds) {
        for (const memory_kind into : {memory_kind::device, kind, memory_kind::host}) {
            for (const std::size_t len : lengths) {
                way_watch watch;
                const bench::path_counts before = counters.read();
                auto out = c.make(kind, len);
                auto in = c.make(into, len);
                swap_checked(c, *out, *in, describe(kind, into, len, "by its way"));
                watch.swapped(kind, len, 1, into);
                watch.check(c, describe(kind, into, len, "by its way"));
                if (way::get == expected_way(kind, len) &&
                    (bench::is_gpu(kind) || bench::is_gpu(into))) {
                    c.expect_true(bench::since(before, counters.read())["get_bytes"] == len,
                                  describe(kind, into, len, "every byte by get"));
                }
            }
        }
    }
}

// MPI_Init, host messages; then one rank starts to use its GPU; then the other does.
void test_late(context &c)
{
    constexpr std::size_t lengths[] = {1, 4096, 65535, 300000};
    constexpr int rounds = 3;
    const auto talk = [&](bool zero_late, bool one_late) {
        for (memory_kind kind : c.kinds) {
            const memory_kind of[2] = {zero_late ? memory_kind::host : kind,
                                       one_late ? memory_kind::host : kind};
            for (int i = 0; i < rounds; ++i) {
                for (std::size_t len : lengths) {
                    ping_pong(c, of[c.rank], of[1 - c.rank], len);
                }
            }
        }
    };
    talk(true, true);
    if (0 == c.rank) {
        c.use_gpu();
    }
    talk(false, true);
    if (1 == c.rank) {
        c.use_gpu();
    }
    talk(false, false);
}

} // namespace gpusm::exchange
