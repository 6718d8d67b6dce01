// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_groups.cc: any number of ranks, everyone with everyone.
#include "tests/mpi/exchange.h"

#include <random>

namespace gpusm::exchange {

namespace {

constexpr int tag = 21;

// One exchange by `go`: this rank's message to rank i lies at i * len, and so does what comes.
template <typename Go>
void everyone_with_everyone(context &c, memory_kind kind, std::size_t len, const char *how, Go &&go)
{
    const auto ranks = static_cast<std::size_t>(c.ranks);
    const std::uint64_t seed = c.draw_seeds(ranks * ranks);
    const auto seed_of = [&](std::size_t from, std::size_t to) { return seed + from * ranks + to; };
    const auto me = static_cast<std::size_t>(c.rank);
    auto out = c.make(kind, len * ranks);
    auto in = c.make(kind, len * ranks);
    const std::string what = std::string(how) + ", " + std::to_string(len) + " bytes into " +
                             bench::describe(kind) + " memory";
    at_step(what);
    for (std::size_t to = 0; to < ranks; ++to) {
        c.expect(out->fill(len * to, len, seed_of(me, to)), "fill");
    }
    c.expect(in->poison(), "poison");
    if (!go(*out, *in)) {
        return;
    }
    for (std::size_t from = 0; from < ranks; ++from) {
        c.expect(in->compare(len * from, len, seed_of(from, me)),
                 what + " from rank " + std::to_string(from));
        ++c.messages;
    }
}

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

void test_alltoall(context &c)
{
    const std::size_t sizes[] = {1, 255, 4096, 65535, 300000};
    // First every rank with the same kind, one kind after another; last, a different kind on
    // every rank.
    for (std::size_t round = 0; round <= c.kinds.size(); ++round) {
        const memory_kind kind =
            round < c.kinds.size() ? c.kinds[round] : c.kind_at(static_cast<std::size_t>(c.rank));
        for (std::size_t len : sizes) {
            everyone_with_everyone(c, kind, len, "messages", [&](buffer &out, buffer &in) {
                requests under_way(c);
                for (int i = 0; i < c.ranks; ++i) {
                    const int from = (c.rank + c.ranks - i) % c.ranks;
                    under_way.receive(in.at(len * static_cast<std::size_t>(from)), len, from, tag);
                }
                for (int i = 0; i < c.ranks; ++i) {
                    const int to = (c.rank + i) % c.ranks;
                    under_way.send(out.at(len * static_cast<std::size_t>(to)), len, to, tag);
                }
                return under_way.wait();
            });
            everyone_with_everyone(c, kind, len, "MPI_Alltoall", [&](buffer &out, buffer &in) {
                const int n = static_cast<int>(len);
                return c.mpi(
                    MPI_Alltoall(out.data(), n, MPI_BYTE, in.data(), n, MPI_BYTE, MPI_COMM_WORLD),
                    "MPI_Alltoall");
            });
        }
    }
}

} // namespace gpusm::exchange
