// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_paths.cc: which way messages go, when a process starts to use its GPU, and memory that
// is freed and allocated anew.
#include "tests/mpi/exchange_tools.h"

#include <cstdio>
#include <ctime>

namespace gpusm::exchange {

namespace {

constexpr int tag = 51;

// One message each way between ranks 0 and 1, checked.
void ping_pong(context &c, memory_kind mine, memory_kind peers, std::size_t len)
{
    const std::uint64_t seed = c.next_seed;
    c.next_seed += 2;
    const int peer = 1 - c.rank;
    const int n = static_cast<int>(len);
    auto out = c.make(mine, len);
    auto in = c.make(mine, len);
    const std::string what = describe(peers, mine, len, "ping-pong");
    at_step(what);
    (void)c.expect(out->fill(0, len, seed + static_cast<std::uint64_t>(c.rank)), "fill");
    (void)c.expect(in->poison(), "poison");
    if (c.mpi(MPI_Sendrecv(out->data(), n, MPI_BYTE, peer, tag, in->data(), n, MPI_BYTE, peer, tag,
                           MPI_COMM_WORLD, MPI_STATUS_IGNORE),
              "MPI_Sendrecv")) {
        (void)c.expect(in->compare(0, len, seed + static_cast<std::uint64_t>(peer)), what);
        ++c.messages;
    }
}

} // namespace

bool until_by_get(context &c, memory_kind kind, std::size_t len_bytes)
{
    constexpr int most_rounds = 200;
    const int len = static_cast<int>(len_bytes);
    const int peer = 1 - c.rank;
    const bench::path_counters counters;
    const unsigned long long before = counters.read()["get_messages"];
    auto out = c.make(kind, len_bytes);
    auto in = c.make(kind, len_bytes);
    at_step("until messages go by get");
    for (int i = 0; i < most_rounds; ++i) {
        (void)c.mpi(MPI_Sendrecv(out->data(), len, MPI_BYTE, peer, tag, in->data(), len, MPI_BYTE,
                                 peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                    "MPI_Sendrecv");
        const int mine = counters.read()["get_messages"] > before ? 1 : 0;
        int peers = 0;
        (void)c.mpi(MPI_Sendrecv(&mine, 1, MPI_INT, peer, tag, &peers, 1, MPI_INT, peer, tag,
                                 MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                    "MPI_Sendrecv");
        if (0 != mine && 0 != peers) {
            return true;
        }
        const std::timespec pause = {0, 10 * 1000 * 1000};
        (void)nanosleep(&pause, nullptr);
    }
    return false;
}

// "Every message after the first few goes by get."
void test_counters(context &c)
{
    constexpr int first_few = 10;
    constexpr int counted = 40;
    constexpr std::size_t lengths[] = {1, 16, 256, 4096, 65535, (1u << 20) + 1};
    const bench::path_counters counters;
    const int mine = counters.available() ? 1 : 0;
    int all = 0;
    (void)MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (0 == all) {
        if (0 == c.rank) {
            std::fprintf(stderr, "exchange: pvars btl_gpusm_* not found\n");
        }
        (void)c.expect_true(false, "the transport has the performance variables btl_gpusm_*");
        return;
    }
    if (1 < c.rank) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        return;
    }
    for (int i = 0; i < first_few; ++i) {
        ping_pong(c, memory_kind::device, memory_kind::device, 4096);
        // The handshake goes on in progress(), and opening a handle takes its time.
        const std::timespec pause = {0, 20 * 1000 * 1000};
        (void)nanosleep(&pause, nullptr);
    }
    const bench::path_counts before = counters.read();
    unsigned long long bytes = 0;
    for (int i = 0; i < counted; ++i) {
        const std::size_t len = lengths[static_cast<std::size_t>(i) % std::size(lengths)];
        ping_pong(c, memory_kind::device, memory_kind::device, len);
        bytes += len;
    }
    bench::path_counts used = bench::since(before, counters.read());
    std::printf("rank %d: %d messages of device memory received, %llu by get (%llu of %llu bytes), "
                "%llu sent staged\n",
                c.rank, counted, used["get_messages"], used["get_bytes"], bytes,
                used["staged_messages"]);
    (void)c.expect_true(used["get_messages"] >= counted, "every message came by get");
    (void)c.expect_true(used["get_bytes"] == bytes, "every byte came by get");
    (void)c.expect_true(0 == used["staged_messages"], "no message was staged");
    (void)MPI_Barrier(MPI_COMM_WORLD);
}

// "Every kind of memory goes its way", whatever it is received into.
void test_ways(context &c)
{
    constexpr std::size_t lengths[] = {1, 256, 4096, 65535, (1u << 20) + 1, 5u << 20};
    if (1 < c.rank) {
        return;
    }
    for (const memory_kind kind : c.kinds) {
        if (!c.expect_true(until_expected_way(c, kind), "messages go the expected way at last")) {
            return;
        }
        for (const memory_kind into : {memory_kind::device, kind, memory_kind::host}) {
            for (const std::size_t len : lengths) {
                way_watch watch;
                auto out = c.make(kind, len);
                auto in = c.make(into, len);
                swap_checked(c, *out, *in, describe(kind, into, len, "by its way"));
                watch.swapped(kind, len, 1, into);
                watch.check(c, describe(kind, into, len, "by its way"));
            }
        }
    }
}

// MPI_Init, host messages; then one rank starts to use its GPU; then the other does.
void test_late(context &c)
{
    constexpr std::size_t lengths[] = {1, 4096, 65535, 300000};
    constexpr int rounds = 3;
    for (int i = 0; i < rounds && 2 > c.rank; ++i) {
        for (std::size_t len : lengths) {
            ping_pong(c, memory_kind::host, memory_kind::host, len);
        }
    }
    if (0 == c.rank) {
        c.use_gpu();
    }
    for (memory_kind kind : c.kinds) {
        for (int i = 0; i < rounds && 2 > c.rank; ++i) {
            for (std::size_t len : lengths) {
                ping_pong(c, 0 == c.rank ? kind : memory_kind::host,
                          0 == c.rank ? memory_kind::host : kind, len);
            }
        }
    }
    if (1 == c.rank) {
        c.use_gpu();
    }
    for (memory_kind kind : c.kinds) {
        for (int i = 0; i < rounds && 2 > c.rank; ++i) {
            for (std::size_t len : lengths) {
                ping_pong(c, kind, kind, len);
            }
        }
    }
}

// Memory that is freed right after its message was sent, and allocated again, usually at the same
// address: what a peer has mapped of it is stale, and must not be read.
void test_reallocate(context &c)
{
    constexpr int rounds = 40;
    if (1 < c.rank) {
        return;
    }
    for (memory_kind kind : c.kinds) {
        for (int i = 0; i < rounds; ++i) {
            const std::size_t len = (std::size_t{1} << 20) * static_cast<std::size_t>(1 + i % 4);
            ping_pong(c, kind, kind, len);
        }
    }
}

} // namespace gpusm::exchange
