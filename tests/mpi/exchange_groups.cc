// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_groups.cc: any number of ranks, everyone with everyone.
#include "tests/mpi/exchange.h"

namespace gpusm::exchange {

namespace {

constexpr int tag = 21;

std::uint64_t seed_of(const context &c, int from, int to)
{
    return c.next_seed + static_cast<std::uint64_t>(from) * 1024 + static_cast<std::uint64_t>(to);
}

std::string text(const buffer &in, std::size_t len, int from, const char *how)
{
    return std::string(how) + ", " + std::to_string(len) + " bytes from rank " +
           std::to_string(from) + " into " + bench::describe(in.kind()) + " memory";
}

void prepare(context &c, buffer &out, buffer &in, std::size_t len)
{
    for (int to = 0; to < c.ranks; ++to) {
        (void)c.expect(out.fill(len * static_cast<std::size_t>(to), len, seed_of(c, c.rank, to)),
                       "fill");
    }
    (void)c.expect(in.poison(), "poison");
}

void check(context &c, const buffer &in, std::size_t len, const char *how)
{
    for (int from = 0; from < c.ranks; ++from) {
        (void)c.expect(
            in.compare(len * static_cast<std::size_t>(from), len, seed_of(c, from, c.rank)),
            text(in, len, from, how));
        ++c.messages;
    }
    c.next_seed += 1u << 20;
}

void by_messages(context &c, buffer &out, buffer &in, std::size_t len)
{
    const int n = static_cast<int>(len);
    std::vector<MPI_Request> requests;
    prepare(c, out, in, len);
    at_step("all-to-all by messages, " + std::to_string(len) + " bytes");
    for (int i = 0; i < c.ranks; ++i) {
        const int from = (c.rank + c.ranks - i) % c.ranks;
        (void)c.mpi(MPI_Irecv(in.at(len * static_cast<std::size_t>(from)), n, MPI_BYTE, from, tag,
                              MPI_COMM_WORLD, &requests.emplace_back()),
                    "MPI_Irecv");
    }
    for (int i = 0; i < c.ranks; ++i) {
        const int to = (c.rank + i) % c.ranks;
        (void)c.mpi(MPI_Isend(out.at(len * static_cast<std::size_t>(to)), n, MPI_BYTE, to, tag,
                              MPI_COMM_WORLD, &requests.emplace_back()),
                    "MPI_Isend");
    }
    if (c.mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
              "MPI_Waitall")) {
        check(c, in, len, "messages");
    }
}

void by_collective(context &c, buffer &out, buffer &in, std::size_t len)
{
    const int n = static_cast<int>(len);
    prepare(c, out, in, len);
    at_step("MPI_Alltoall, " + std::to_string(len) + " bytes");
    if (c.mpi(MPI_Alltoall(out.data(), n, MPI_BYTE, in.data(), n, MPI_BYTE, MPI_COMM_WORLD),
              "MPI_Alltoall")) {
        check(c, in, len, "MPI_Alltoall");
    }
}

} // namespace

void test_alltoall(context &c)
{
    const std::size_t sizes[] = {1, 255, 4096, 65535, 300000};
    // First every rank with the same kind, one kind after another; last, a different kind on
    // every rank.
    for (std::size_t round = 0; round <= c.kinds.size(); ++round) {
        const memory_kind kind =
            round < c.kinds.size() ? c.kinds[round] : c.kind_at(static_cast<std::size_t>(c.rank));
        for (std::size_t len : sizes) {
            auto out = c.make(kind, len * static_cast<std::size_t>(c.ranks));
            auto in = c.make(kind, len * static_cast<std::size_t>(c.ranks));
            by_messages(c, *out, *in, len);
            by_collective(c, *out, *in, len);
        }
    }
}

} // namespace gpusm::exchange
