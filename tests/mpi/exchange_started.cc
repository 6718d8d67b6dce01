// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_started.cc: a blocking reduction of device memory behind one that has been started on
// the same communicator and for which another rank comes late, in a process with threads: who is
// inside the blocking one makes progress for both.
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

} // namespace gpusm::exchange
