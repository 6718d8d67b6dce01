// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_shared_device.cc: ranks that use one device, of which one copies for all: messages
// between all of them and of each to itself, and between the others while that one is not in MPI.
#include "tests/mpi/exchange_tools.h"

#include <iterator>
#include <string>

namespace gpusm::exchange {

namespace {

constexpr int tag = 71;
constexpr std::size_t lengths[] = {1, 8, 4097, 65536, 1000003};
constexpr int at_once = 8;

// A window of messages from one rank and to another one, out of and into that kind of memory.
void exchange_windows(context &c, int before, int next, memory_kind kind, std::size_t len_bytes)
{
    const std::uint64_t seed = c.draw_seeds(static_cast<std::size_t>(c.ranks * at_once));
    const auto seed_of = [&](int rank, int i) {
        return seed + static_cast<std::uint64_t>(rank * at_once + i);
    };
    std::vector<std::unique_ptr<buffer>> out;
    std::vector<std::unique_ptr<buffer>> in;
    requests all(c);
    for (int i = 0; i < at_once; ++i) {
        out.push_back(c.make(kind, len_bytes));
        in.push_back(c.make(kind, len_bytes));
        c.expect(out.back()->fill(0, len_bytes, seed_of(c.rank, i)), "fill");
        c.expect(in.back()->poison(), "poison");
    }
    for (int i = 0; i < at_once; ++i) {
        all.receive(in[static_cast<std::size_t>(i)]->data(), len_bytes, before, tag);
    }
    for (int i = 0; i < at_once; ++i) {
        all.send(out[static_cast<std::size_t>(i)]->data(), len_bytes, next, tag);
    }
    (void)all.wait();
    for (int i = 0; i < at_once; ++i) {
        c.expect(in[static_cast<std::size_t>(i)]->compare(0, len_bytes, seed_of(before, i)),
                 std::to_string(len_bytes) + " bytes from rank " + std::to_string(before));
        ++c.messages;
    }
}

// In a ring of the ranks from `first` on, and of each with itself.
void go_round(context &c, int first, memory_kind kind, std::size_t len_bytes)
{
    const int members = c.ranks - first;
    const int mine = c.rank - first;
    exchange_windows(c, first + (mine + members - 1) % members, first + (mine + 1) % members, kind,
                     len_bytes);
    exchange_windows(c, c.rank, c.rank, kind, len_bytes);
}

void all_lengths(context &c, int first)
{
    for (const memory_kind kind : c.kinds) {
        for (const std::size_t len_bytes : lengths) {
            at_step(std::to_string(len_bytes) + " bytes of " + letter_of(kind));
            go_round(c, first, kind, len_bytes);
        }
    }
}

} // namespace

void test_shared_device(context &c)
{
    for (int i = 0; i < 4; ++i) {
        all_lengths(c, 0);
    }
}

// Rank 0, which copies for all, has two contexts on the device, and its messages are not in the one
// that it has used first; which is then destroyed.
void test_shared_device_contexts(context &c)
{
    own_context first(c);
    if (0 == c.rank) {
        c.expect_true(first.make_current(), "the context can be made current");
    }
    go_round(c, 0, c.kinds.front(), lengths[2]);
    c.use_gpu();
    all_lengths(c, 0);
    c.mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    c.expect_true(first.destroy(), "the context can be destroyed");
    c.use_gpu();
    all_lengths(c, 0);
}

// Rank 0, which copies for all, then waits outside MPI until the others are done.
void test_shared_device_away(context &c)
{
    if (c.ranks < 3) {
        c.skip_because = "needs three ranks";
        return;
    }
    const shared_counters<1> done(c);
    all_lengths(c, 0);
    all_lengths(c, 0);
    c.mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    if (0 == c.rank) {
        at_step("waiting outside MPI");
        // What the others draw meanwhile.
        (void)c.draw_seeds(c.kinds.size() * std::size(lengths) *
                           static_cast<std::size_t>(2 * c.ranks * at_once));
        done.wait(0, c.ranks - 1);
    } else {
        all_lengths(c, 1);
        done.add(0);
    }
    c.mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    all_lengths(c, 0);
}

} // namespace gpusm::exchange
