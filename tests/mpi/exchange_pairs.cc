// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_pairs.cc: two ranks, every pair of memory kinds, every way to send; derived datatypes on
// either side.
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

// ---------------------------------------------------------------- derived datatypes

namespace {

// A vector of `blocks` blocks of `block` bytes, one every `stride` bytes.
struct layout {
    int blocks;
    std::size_t block;
    std::size_t stride;

    std::size_t payload() const { return block * static_cast<std::size_t>(blocks); }
    std::size_t extent() const { return stride * static_cast<std::size_t>(blocks); }
};

// The message is made from `seed`; the buffer holds it spread over the blocks.
std::string scatter_fill(buffer &memory, const layout &l, std::uint64_t seed)
{
    std::vector<unsigned char> content(l.payload());
    bench::write_pattern(content.data(), content.size(), seed, 0);
    std::string error = memory.poison();
    for (int i = 0; i < l.blocks && error.empty(); ++i) {
        const auto n = static_cast<std::size_t>(i);
        error = memory.write(n * l.stride, content.data() + n * l.block, l.block);
    }
    return error;
}

std::string compare_blocks(const buffer &memory, const layout &l, std::uint64_t seed)
{
    std::string error;
    for (int i = 0; i < l.blocks && error.empty(); ++i) {
        const auto n = static_cast<std::size_t>(i);
        error = memory.compare(n * l.stride, l.block, seed, n * l.block);
        if (error.empty()) {
            error = memory.compare_poison(n * l.stride + l.block, l.stride - l.block);
        }
    }
    return error;
}

void exchange_typed(context &c, const layout &l, memory_kind from, memory_kind to, bool typed_out,
                    bool typed_in)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(l.blocks, static_cast<int>(l.block), static_cast<int>(l.stride), MPI_BYTE,
                    &type);
    MPI_Type_commit(&type);
    const std::uint64_t seed = c.next_seed++;
    const int payload = static_cast<int>(l.payload());
    const std::string what = describe(from, to, l.payload(), typed_out ? "vector" : "bytes") +
                             " into " + (typed_in ? "vector" : "bytes");
    at_step(what);
    const bool typed = 0 == c.rank ? typed_out : typed_in;
    const int n = typed ? 1 : payload;
    const MPI_Datatype unit = typed ? type : MPI_BYTE;
    auto memory = c.make(0 == c.rank ? from : to, l.extent());
    if (0 == c.rank) {
        c.expect(typed ? scatter_fill(*memory, l, seed) : memory->fill(0, l.payload(), seed),
                 "fill");
        c.mpi(MPI_Send(memory->data(), n, unit, 1, tag, MPI_COMM_WORLD), "MPI_Send");
    } else {
        c.expect(memory->poison(), "poison");
        if (c.mpi(MPI_Recv(memory->data(), n, unit, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                  "MPI_Recv")) {
            c.expect(typed ? compare_blocks(*memory, l, seed)
                           : memory->compare(0, l.payload(), seed),
                     what);
            ++c.messages;
        }
    }
    MPI_Type_free(&type);
}

} // namespace

void test_datatypes(context &c)
{
    constexpr layout layouts[] = {{16, 64, 128}, {3, 1, 7}, {200, 1000, 1024}};
    for (const layout &l : layouts) {
        for (memory_kind from : c.kinds) {
            for (memory_kind to : c.kinds) {
                exchange_typed(c, l, from, to, true, true);
                exchange_typed(c, l, from, to, true, false);
                exchange_typed(c, l, from, to, false, true);
            }
        }
    }
}

} // namespace gpusm::exchange
