// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_started.cc: a blocking reduction of device memory behind one that has been started on
// the same communicator and for which another rank comes late, in a process with threads: who is
// inside the blocking one makes progress for both. And such that turn out not to be for the
// devices, among others of the next component, at a moment that differs from rank to rank.
#include "tests/mpi/exchange.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace gpusm::exchange {

namespace {

constexpr int elements = 1000;

// The sum over the ranks of what fill() has written.
void expect_sum(context &c, const buffer &in, const char *what)
{
    std::vector<int> got(elements);
    std::vector<int> expected(elements);
    for (int i = 0; i < elements; ++i) {
        expected[static_cast<std::size_t>(i)] = c.ranks * i + c.ranks * (c.ranks - 1) / 2;
    }
    c.expect(in.read(0, got.data(), elements * sizeof(int)), what);
    c.expect_true(got == expected, what);
}

} // namespace

void test_blocking_behind_started(context &c)
{
    const auto out = c.make(memory_kind::device, elements * sizeof(int));
    const auto first = c.make(memory_kind::device, elements * sizeof(int));
    const auto second = c.make(memory_kind::device, elements * sizeof(int));
    std::vector<int> values(elements);
    std::iota(values.begin(), values.end(), c.rank);
    c.expect(out->write(0, values.data(), elements * sizeof(int)), "fill");
    for (int turn = 0; turn < 3 * c.ranks; ++turn) {
        at_step("turn " + std::to_string(turn));
        c.expect(first->poison(), "poison");
        c.expect(second->poison(), "poison");
        if (turn % c.ranks == c.rank) {
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
        }
        MPI_Request started = MPI_REQUEST_NULL;
        c.mpi(MPI_Iallreduce(out->data(), first->data(), elements, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                             &started),
              "MPI_Iallreduce");
        c.mpi(
            MPI_Allreduce(out->data(), second->data(), elements, MPI_INT, MPI_SUM, MPI_COMM_WORLD),
            "MPI_Allreduce");
        c.mpi(MPI_Wait(&started, MPI_STATUS_IGNORE), "MPI_Wait");
        expect_sum(c, *first, "the one that was started");
        expect_sum(c, *second, "the blocking one");
        c.messages += 2;
    }
}

void test_started_otherwise(context &c)
{
    constexpr int calls_enough = 200; // of progress, to decide what has been started
    const std::size_t bytes = elements * sizeof(int);
    std::vector<int> values(elements);
    std::iota(values.begin(), values.end(), c.rank);
    for (int turn = 0; turn < 4 * c.ranks; ++turn) {
        at_step("turn " + std::to_string(turn));
        const bool is_odd_one = turn % c.ranks == c.rank;
        const memory_kind kind = is_odd_one ? memory_kind::vmm_private : memory_kind::device;
        const auto out = c.make(kind, bytes);
        const auto first = c.make(kind, bytes);
        const auto second = c.make(kind, bytes);
        const auto all = c.make(kind, bytes * static_cast<std::size_t>(c.ranks));
        c.expect(out->write(0, values.data(), bytes), "fill");
        c.expect(first->poison(), "poison");
        c.expect(second->poison(), "poison");
        c.expect(all->poison(), "poison");
        int word = 0 == c.rank ? turn : -1;
        int sum = 0;
        MPI_Request started[6];
        const auto late = [&] { // one rank hears of the decision first, another one last
            for (int i = 0; is_odd_one == (0 == turn % 2) && i < calls_enough; ++i) {
                int flag = 0;
                MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            }
        };
        MPI_Iallreduce(out->data(), first->data(), elements, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                       &started[0]);
        late();
        MPI_Ibcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD, &started[1]);
        MPI_Iallgather(out->data(), elements, MPI_INT, all->data(), elements, MPI_INT,
                       MPI_COMM_WORLD, &started[2]);
        MPI_Ibarrier(MPI_COMM_WORLD, &started[3]);
        late();
        MPI_Iallreduce(out->data(), second->data(), elements, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                       &started[4]);
        MPI_Iallreduce(&c.rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &started[5]);
        c.mpi(MPI_Waitall(6, started, MPI_STATUSES_IGNORE), "MPI_Waitall");
        expect_sum(c, *first, "the first one");
        expect_sum(c, *second, "the second one");
        c.expect_true(word == turn, "the bcast between them");
        c.expect_true(sum == c.ranks * (c.ranks - 1) / 2, "that of the processor's memory");
        std::vector<int> got(elements);
        for (int rank = 0; rank < c.ranks; ++rank) {
            std::vector<int> expected(elements);
            std::iota(expected.begin(), expected.end(), rank);
            c.expect(all->read(static_cast<std::size_t>(rank) * bytes, got.data(), bytes), "read");
            c.expect_true(got == expected, "the allgather between them");
        }
        c.messages += 6;
    }
}

} // namespace gpusm::exchange
