// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_pairs.cc: two ranks, every pair of memory kinds, every way to send.
#include "tests/mpi/exchange.h"

#include <algorithm>

namespace gpusm::exchange {

namespace {

constexpr int tag = 11;
constexpr std::size_t in_flight = 4;
constexpr std::size_t guard_bytes = bench::placement::guard_bytes;
constexpr std::size_t huge_bytes = std::size_t{8} << 20; // from here on sent once only

// This rank's two buffers, and how to talk about them.
struct side {
    context &c;
    buffer &out;
    buffer &in;
    memory_kind peer_kind;

    // New content in `out`, and nothing in `in`. Returns the seed of what the peer sends.
    std::uint64_t prepare(std::size_t len, const char *how) const
    {
        const std::uint64_t seed = c.draw_seeds(2);
        at_step(text(len, how));
        c.expect(out.fill(0, len, seed + static_cast<std::uint64_t>(c.rank)), "fill");
        c.expect(in.poison(0, len + guard_bytes), "poison");
        return seed + static_cast<std::uint64_t>(1 - c.rank);
    }
    // The message is there, byte for byte, and nothing behind it was written.
    void check(std::size_t len, std::uint64_t seed, const char *how) const
    {
        c.expect(in.compare(0, len, seed), text(len, how));
        c.expect(in.compare_poison(len, guard_bytes), text(len, how) + ", behind the end");
        ++c.messages;
    }
    std::string text(std::size_t len, const char *how) const
    {
        return describe(peer_kind, in.kind(), len, how);
    }
};

void one_blocking(const side &s, std::size_t len, bool sender, bool synchronous)
{
    const char *how = synchronous ? "MPI_Ssend" : "MPI_Send";
    const int n = static_cast<int>(len);
    const int peer = 1 - s.c.rank;
    const std::uint64_t seed = s.prepare(len, how);
    if (sender) {
        s.c.mpi((synchronous ? MPI_Ssend : MPI_Send)(s.out.data(), n, MPI_BYTE, peer, tag,
                                                     MPI_COMM_WORLD),
                how);
        return;
    }
    MPI_Status status;
    if (s.c.mpi(MPI_Recv(s.in.data(), n, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status),
                "MPI_Recv")) {
        int count = -1;
        MPI_Get_count(&status, MPI_BYTE, &count);
        s.c.expect_true(count == n, s.text(len, how) + ", count");
        s.check(len, seed, how);
    }
}

void one_sendrecv(const side &s, std::size_t len)
{
    const char *how = "MPI_Sendrecv";
    const std::uint64_t seed = s.prepare(len, how);
    if (s.c.send_receive(s.out.data(), len, s.in.data(), len, 1 - s.c.rank, tag)) {
        s.check(len, seed, how);
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
        const side s{c, *out, *in, peers};
        for (std::size_t len : c.sizes) {
            const bool huge = len >= huge_bytes;
            if (huge && (odd || !with_huge)) {
                continue;
            }
            one_sendrecv(s, len);
            if (odd || huge) {
                continue;
            }
            for (bool synchronous : {false, true}) {
                for (int sender = 0; sender < 2; ++sender) {
                    one_blocking(s, len, sender == c.rank, synchronous);
                }
            }
            swap_side_by_side(c, *out, *in, len, in_flight, tag, s.text(len, "MPI_Isend"));
        }
    }
}

} // namespace

void test_pairs(context &c)
{
    if (c.on_gpu()) {
        c.use_gpu();
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
