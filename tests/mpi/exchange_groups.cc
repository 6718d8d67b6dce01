// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_groups.cc: any number of ranks, everyone with everyone, and communicators that are made
// beside collectives.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

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

// Open MPI agrees about the new communicator by collectives on the old one, which each rank begins
// when it makes progress: here before the program's own one, or within it.
void test_idup(context &c)
{
    constexpr int rounds = 60;
    constexpr int elements = 1000;
    MPI_Comm comm = MPI_COMM_NULL;
    c.mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    const auto out = c.make(c.kind_at(0), elements * sizeof(int));
    const auto in = c.make(c.kind_at(0), elements * sizeof(int));
    std::vector<int> numbers(elements);
    // Ranks may give the same bytes by other types, where Open MPI itself gives an MPI_INT.
    MPI_Datatype one_int = MPI_INT;
    if (0 != c.rank) {
        MPI_Type_contiguous(1, MPI_INT, &one_int);
        MPI_Type_commit(&one_int);
    }
    for (int round = 0; round < rounds; ++round) {
        at_step("round " + std::to_string(round));
        MPI_Request request = MPI_REQUEST_NULL;
        c.mpi(MPI_Ibcast(in->data(), 1, one_int, 0, comm, &request), "MPI_Ibcast");
        c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        MPI_Comm made = MPI_COMM_NULL;
        MPI_Request making = MPI_REQUEST_NULL;
        std::fill(numbers.begin(), numbers.end(), c.rank + round);
        c.expect(out->write(0, numbers.data(), elements * sizeof(int)), "write");
        c.mpi(MPI_Comm_idup(comm, &made, &making), "MPI_Comm_idup");
        for (int i = (c.rank + round) % 5; i > 0; --i) {
            int flag = 0;
            c.mpi(MPI_Test(&making, &flag, MPI_STATUS_IGNORE), "MPI_Test");
        }
        if (0 == round % 3) {
            c.mpi(MPI_Bcast(in->data(), elements, MPI_INT, 0, comm), "MPI_Bcast");
        }
        c.mpi(MPI_Allreduce(out->data(), in->data(), elements, MPI_INT, MPI_SUM, comm),
              "MPI_Allreduce");
        c.mpi(MPI_Wait(&making, MPI_STATUS_IGNORE), "MPI_Wait");
        c.expect(in->read(0, numbers.data(), elements * sizeof(int)), "read");
        const int sum = c.ranks * (c.ranks - 1) / 2 + c.ranks * round;
        c.expect_true(
            std::all_of(numbers.begin(), numbers.end(), [&](int number) { return sum == number; }),
            "sums of round " + std::to_string(round));
        c.mpi(MPI_Barrier(made), "MPI_Barrier");
        c.mpi(MPI_Comm_free(&made), "MPI_Comm_free");
        ++c.messages;
    }
    if (0 != c.rank) {
        MPI_Type_free(&one_int);
    }
    c.mpi(MPI_Comm_free(&comm), "MPI_Comm_free");
}

// Between rank 0 and the others, of which it is the root. What it would send, or receive, does not
// matter there, and so has no datatype at all.
void test_rooted_between_groups(context &c)
{
    constexpr int elements = 1000;
    constexpr std::size_t bytes = elements * sizeof(int);
    constexpr MPI_Datatype none = nullptr;
    const bool is_root = 0 == c.rank;
    const int others = c.ranks - 1;
    MPI_Comm mine = MPI_COMM_NULL;
    MPI_Comm inter = MPI_COMM_NULL;
    c.mpi(MPI_Comm_split(MPI_COMM_WORLD, is_root ? 0 : 1, 0, &mine), "MPI_Comm_split");
    c.mpi(MPI_Intercomm_create(mine, 0, MPI_COMM_WORLD, is_root ? 1 : 0, 5, &inter),
          "MPI_Intercomm_create");
    const auto all = c.make(c.kind_at(0), bytes * static_cast<std::size_t>(others));
    const auto one = c.make(c.kind_at(0), bytes);
    const auto at = [&](int other) { return static_cast<std::size_t>(other) * bytes; };
    const std::uint64_t seed = c.draw_seeds(static_cast<std::size_t>(others));
    const auto seed_of = [&](int other) { return seed + static_cast<std::uint64_t>(other); };
    at_step("MPI_Gather and MPI_Igather");
    for (const bool starts : {false, true}) {
        c.expect(all->poison(), "poison");
        MPI_Request request = MPI_REQUEST_NULL;
        if (!is_root) {
            c.expect(one->fill(0, bytes, seed_of(c.rank - 1)), "fill");
        }
        const auto gather = [&](const void *sent, int count, MPI_Datatype type, int root) {
            return starts
                       ? MPI_Igather(sent, count, type, all->data(), elements, MPI_INT, root, inter,
                                     &request)
                       : MPI_Gather(sent, count, type, all->data(), elements, MPI_INT, root, inter);
        };
        c.mpi(is_root ? gather(nullptr, 0, none, MPI_ROOT)
                      : gather(one->data(), elements, MPI_INT, 0),
              "gather");
        c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        for (int i = 0; is_root && i < others; ++i) {
            c.expect(all->compare(at(i), bytes, seed_of(i)), "what the root has gathered");
            ++c.messages;
        }
    }
    at_step("MPI_Scatter");
    c.expect(one->poison(), "poison");
    for (int i = 0; is_root && i < others; ++i) {
        c.expect(all->fill(at(i), bytes, seed_of(i)), "fill");
    }
    c.mpi(is_root ? MPI_Scatter(all->data(), elements, MPI_INT, nullptr, 0, none, MPI_ROOT, inter)
                  : MPI_Scatter(nullptr, 0, none, one->data(), elements, MPI_INT, 0, inter),
          "MPI_Scatter");
    if (!is_root) {
        c.expect(one->compare(0, bytes, seed_of(c.rank - 1)), "what has been scattered");
        ++c.messages;
    }
    c.mpi(MPI_Comm_free(&inter), "MPI_Comm_free");
    c.mpi(MPI_Comm_free(&mine), "MPI_Comm_free");
}

} // namespace gpusm::exchange
