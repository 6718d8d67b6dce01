// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_pairs.cc: two ranks, every pair of memory kinds, every way to send.
#include "tests/mpi/exchange.h"

#include <algorithm>

namespace gpusm::exchange {

namespace {

constexpr int tag = 11;
constexpr int in_flight = 4;
constexpr std::size_t guard_bytes = 64;
constexpr std::size_t huge_bytes = std::size_t{8} << 20; // from here on sent once only

// This rank's two buffers, and how to talk about them.
struct side {
    context &c;
    buffer &out;
    buffer &in;
    int peer;
    memory_kind peer_kind;

    std::string text(std::size_t len, const char *how) const
    {
        return describe(peer_kind, in.kind(), len, how);
    }
};

// Both directions have a seed of their own; message i of a group comes i later.
std::uint64_t seed_from(std::uint64_t base, int sender, int message)
{
    return base + static_cast<std::uint64_t>(sender) * 64 + static_cast<std::uint64_t>(message);
}

void prepare(side &s, std::size_t stride, std::size_t len, int messages, std::uint64_t base)
{
    for (int i = 0; i < messages; ++i) {
        (void)s.c.expect(
            s.out.fill(stride * static_cast<std::size_t>(i), len, seed_from(base, s.c.rank, i)),
            "fill");
    }
    (void)s.c.expect(s.in.poison(0, stride * static_cast<std::size_t>(messages)), "poison");
}

// The message is there, byte for byte, and nothing behind it was written.
void check(side &s, std::size_t stride, std::size_t len, int messages, std::uint64_t base,
           const char *how)
{
    for (int i = 0; i < messages; ++i) {
        const std::size_t place = stride * static_cast<std::size_t>(i);
        (void)s.c.expect(s.in.compare(place, len, seed_from(base, s.peer, i)), s.text(len, how));
        (void)s.c.expect(s.in.compare_poison(place + len, guard_bytes),
                         s.text(len, how) + ", behind the end");
        ++s.c.messages;
    }
}

void one_blocking(side &s, std::size_t len, bool sender, bool synchronous)
{
    const char *how = synchronous ? "MPI_Ssend" : "MPI_Send";
    const std::uint64_t base = s.c.next_seed;
    const int n = static_cast<int>(len);
    prepare(s, len + guard_bytes, len, 1, base);
    at_step(s.text(len, how));
    if (sender) {
        (void)s.c.mpi((synchronous ? MPI_Ssend : MPI_Send)(s.out.data(), n, MPI_BYTE, s.peer, tag,
                                                           MPI_COMM_WORLD),
                      how);
        return;
    }
    MPI_Status status;
    if (s.c.mpi(MPI_Recv(s.in.data(), n, MPI_BYTE, s.peer, tag, MPI_COMM_WORLD, &status),
                "MPI_Recv")) {
        int count = -1;
        (void)MPI_Get_count(&status, MPI_BYTE, &count);
        (void)s.c.expect_true(count == n, s.text(len, how) + ", count");
        check(s, len + guard_bytes, len, 1, base, how);
    }
}

void one_sendrecv(side &s, std::size_t len)
{
    const char *how = "MPI_Sendrecv";
    const std::uint64_t base = s.c.next_seed;
    const int n = static_cast<int>(len);
    prepare(s, len + guard_bytes, len, 1, base);
    at_step(s.text(len, how));
    if (s.c.mpi(MPI_Sendrecv(s.out.data(), n, MPI_BYTE, s.peer, tag, s.in.data(), n, MPI_BYTE,
                             s.peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                how)) {
        check(s, len + guard_bytes, len, 1, base, how);
    }
}

void several_in_flight(side &s, std::size_t len)
{
    const char *how = "MPI_Isend";
    const std::uint64_t base = s.c.next_seed;
    const int n = static_cast<int>(len);
    const std::size_t stride = len + guard_bytes;
    prepare(s, stride, len, in_flight, base);
    at_step(s.text(len, how));
    MPI_Request requests[2 * in_flight];
    for (int i = 0; i < in_flight; ++i) {
        const std::size_t place = stride * static_cast<std::size_t>(i);
        (void)s.c.mpi(
            MPI_Irecv(s.in.at(place), n, MPI_BYTE, s.peer, tag + i, MPI_COMM_WORLD, &requests[i]),
            "MPI_Irecv");
        (void)s.c.mpi(MPI_Isend(s.out.at(place), n, MPI_BYTE, s.peer, tag + i, MPI_COMM_WORLD,
                                &requests[in_flight + i]),
                      how);
    }
    if (s.c.mpi(MPI_Waitall(2 * in_flight, requests, MPI_STATUSES_IGNORE), "MPI_Waitall")) {
        check(s, stride, len, in_flight, base, how);
    }
}

// Fresh allocations for each pair of kinds, freed as soon as MPI says that the messages are done:
// the driver hands out the addresses of earlier ones, which a transport must not mistake for what
// it has mapped.
void exchange_kinds(context &c, memory_kind mine, memory_kind peers, bool with_huge)
{
    std::size_t most = 0;
    std::size_t most_in_flight = 0;
    for (std::size_t size : c.sizes) {
        if (size < huge_bytes) {
            most_in_flight = std::max(most_in_flight, in_flight * (size + guard_bytes));
        } else if (with_huge) {
            most = std::max(most, size + guard_bytes);
        }
    }
    // Even addresses, all ways to send; then odd ones.
    for (bool odd : {false, true}) {
        const std::size_t bytes = odd ? most_in_flight : std::max(most, most_in_flight);
        auto out = c.make(mine, bytes, odd ? 1 : 0);
        auto in = c.make(mine, bytes, odd ? 3 : 0);
        side s{c, *out, *in, 1 - c.rank, peers};
        for (std::size_t len : c.sizes) {
            const bool huge = len >= huge_bytes;
            if (huge && (odd || !with_huge)) {
                continue;
            }
            one_sendrecv(s, len);
            c.next_seed += 256;
            if (odd || huge) {
                continue;
            }
            for (bool synchronous : {false, true}) {
                for (int sender = 0; sender < 2; ++sender) {
                    one_blocking(s, len, sender == c.rank, synchronous);
                    c.next_seed += 256;
                }
            }
            several_in_flight(s, len);
            c.next_seed += 256;
        }
    }
}

} // namespace

void test_pairs(context &c)
{
    if (c.on_gpu()) {
        c.use_gpu();
    }
    if (1 < c.rank) {
        return; // one pair is enough
    }
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        for (std::size_t k = 0; k < c.kinds.size(); ++k) {
            // Huge messages go both ways at once, so half of the pairs covers all of them.
            const memory_kind mine = c.kinds[0 == c.rank ? i : k];
            const memory_kind peers = c.kinds[0 == c.rank ? k : i];
            exchange_kinds(c, mine, peers, i <= k);
        }
    }
}

} // namespace gpusm::exchange
