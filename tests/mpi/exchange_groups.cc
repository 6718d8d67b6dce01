// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_groups.cc: any number of ranks, everyone with everyone.
#include "tests/mpi/exchange.h"

#include <random>

namespace gpusm::exchange {

namespace {

struct drawn_message {
    int from, to;
    memory_kind source, into;
    std::size_t len_bytes;
};

// Of any length up to 1 MiB, as often below 1 KiB as above it.
drawn_message draw_message(const context &c, std::mt19937_64 &draw)
{
    const auto below = [&](std::uint64_t end) { return draw() % end; };
    const auto ranks = static_cast<std::uint64_t>(c.ranks);
    const std::uint64_t from = below(ranks);
    const std::uint64_t to = (from + 1 + below(ranks - 1)) % ranks;
    const memory_kind source = c.kind_at(below(c.kinds.size()));
    const memory_kind into = c.kind_at(below(c.kinds.size()));
    return {static_cast<int>(from), static_cast<int>(to), source, into,
            below((std::uint64_t{1} << below(21)) + 1)};
}

} // namespace

// Messages between random ranks, from and into random memory. With --fill every rank finds a full
// file system when it sends its first one, and later becomes short of memory now and then while
// messages are under way.
void test_random(context &c)
{
    constexpr int at_once = 48;
    const int rounds = c.rounds > 0 ? c.rounds : 20;
    std::mt19937_64 draw(static_cast<std::uint64_t>(rounds)); // the same numbers in all ranks
    const filler space(c);
    space.fill();
    for (int round = 0; round < rounds; ++round) {
        const std::string what = "random messages, round " + std::to_string(round);
        at_step(what);
        std::vector<drawn_message> messages;
        for (int i = 0; i < at_once; ++i) {
            messages.push_back(draw_message(c, draw));
        }
        const bool receive_first = 0 != draw() % 2;
        const std::uint64_t seed = c.draw_seeds(at_once);
        std::vector<std::unique_ptr<buffer>> memory(at_once);
        requests under_way(c);
        for (const bool receive : {receive_first, !receive_first}) {
            for (std::size_t i = 0; i < at_once; ++i) {
                const drawn_message &each = messages[i];
                if (c.rank != (receive ? each.to : each.from)) {
                    continue;
                }
                memory[i] = c.make(receive ? each.into : each.source, each.len_bytes);
                const int tag_of = static_cast<int>(i);
                if (receive) {
                    c.expect(memory[i]->poison(), "poison");
                    under_way.receive(memory[i]->data(), each.len_bytes, each.from, tag_of);
                } else {
                    c.expect(memory[i]->fill(0, each.len_bytes, seed + i), "fill");
                    under_way.send(memory[i]->data(), each.len_bytes, each.to, tag_of);
                }
            }
        }
        if (0 == round % 8) {
            space.fill();
        }
        if (!under_way.wait()) {
            return;
        }
        if (5 == round % 8) {
            space.make_room();
        }
        for (std::size_t i = 0; i < at_once; ++i) {
            const drawn_message &each = messages[i];
            if (c.rank == each.to) {
                c.expect(memory[i]->compare(0, each.len_bytes, seed + i),
                         what + ", " + describe(each.source, each.into, each.len_bytes, "any"));
                ++c.messages;
            }
        }
    }
}

// First every rank with the same kind, one kind after another; last, a different kind on every
// rank.
void test_alltoall(context &c)
{
    const auto ranks = static_cast<std::size_t>(c.ranks);
    const auto me = static_cast<std::size_t>(c.rank);
    for (std::size_t round = 0; round <= c.kinds.size(); ++round) {
        const memory_kind kind = round < c.kinds.size() ? c.kinds[round] : c.kind_at(me);
        for (const std::size_t len : {1, 255, 4096, 65535, 300000}) {
            const std::uint64_t seed = c.draw_seeds(ranks * ranks);
            auto out = c.make(kind, len * ranks); // for rank i, and from it, at i * len
            auto in = c.make(kind, len * ranks);
            const std::string what = "MPI_Alltoall, " + std::to_string(len) + " bytes into " +
                                     bench::describe(kind) + " memory";
            at_step(what);
            for (std::size_t to = 0; to < ranks; ++to) {
                c.expect(out->fill(len * to, len, seed + me * ranks + to), "fill");
            }
            c.expect(in->poison(), "poison");
            const int n = static_cast<int>(len);
            if (!c.mpi(
                    MPI_Alltoall(out->data(), n, MPI_BYTE, in->data(), n, MPI_BYTE, MPI_COMM_WORLD),
                    what)) {
                continue;
            }
            for (std::size_t from = 0; from < ranks; ++from) {
                c.expect(in->compare(len * from, len, seed + from * ranks + me),
                         what + " from rank " + std::to_string(from));
                ++c.messages;
            }
        }
    }
}

} // namespace gpusm::exchange
