// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_peers.cc: peers that cannot be reached for a while.
#include "tests/mpi/exchange.h"

#include <sys/resource.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 81;

// Progress until the request is complete or the time is over. An error counts.
bool completes(context &c, MPI_Request *request, double seconds, const std::string &what)
{
    const double end = MPI_Wtime() + seconds;
    int done = 0;
    do {
        MPI_Status status;
        status.MPI_ERROR = MPI_SUCCESS;
        if (!c.mpi(MPI_Test(request, &done, &status), what)) {
            return false;
        }
    } while (0 == done && MPI_Wtime() < end);
    return 0 != done;
}

} // namespace

// Rank 0 has no descriptor left when it meets rank 1 and rank 1 meets it, of which each sends the
// other one a short and a long message. Nothing is an error, rank 2, which it knows, gets through
// meanwhile, and all arrives when there are descriptors again. Others only wait.
void test_out_of_reach(context &c)
{
    constexpr int known_messages = 5;
    constexpr std::size_t lengths[] = {64, 1 << 20};
    constexpr std::size_t count = std::size(lengths);
    const std::uint64_t seed = c.draw_seeds(100);
    if (!c.expect_true(c.ranks > 2, "there are three ranks")) {
        return;
    }
    const auto seed_of = [&](int from, std::size_t i) {
        return seed + static_cast<std::uint64_t>(from) * 10 + i;
    };
    char go = 0;
    if (2 == c.rank) {
        c.send_receive(&go, 1, &go, 1, 0, tag); // they know each other
        c.receive(&go, 1, 0, tag);              // rank 0 has no descriptor left
        c.send_receive(&go, 1, &go, 1, 1, tag); // rank 1 has sent to it
        for (int i = 0; i < known_messages; ++i) {
            c.send(&go, 1, 0, tag);
        }
    } else if (c.rank < 2) {
        std::vector<std::unique_ptr<buffer>> out;
        std::vector<std::unique_ptr<buffer>> in;
        requests under_way(c);
        const auto begin = [&] {
            for (std::size_t i = 0; i < count; ++i) {
                out.push_back(c.make(memory_kind::host, lengths[i]));
                in.push_back(c.make(memory_kind::host, lengths[i]));
                c.expect(out[i]->fill(0, lengths[i], seed_of(c.rank, i)), "fill");
                const int with = static_cast<int>(i);
                under_way.send(out[i]->data(), lengths[i], 1 - c.rank, tag + 1 + with);
                under_way.receive(in[i]->data(), lengths[i], 1 - c.rank, tag + 1 + with);
            }
        };
        if (0 == c.rank) {
            c.send_receive(&go, 1, &go, 1, 2, tag);
            rlimit usual{};
            c.expect_true(0 == getrlimit(RLIMIT_NOFILE, &usual), "getrlimit");
            const rlimit none{0, usual.rlim_max};
            c.expect_true(0 == setrlimit(RLIMIT_NOFILE, &none), "setrlimit");
            begin();
            c.send(&go, 1, 2, tag);
            at_step("without descriptors");
            for (int i = 0; i < known_messages; ++i) {
                MPI_Request known = MPI_REQUEST_NULL;
                MPI_Irecv(&go, 1, MPI_CHAR, 2, tag, MPI_COMM_WORLD, &known);
                if (!c.expect_true(completes(c, &known, 10, "a message of a known rank"),
                                   "a known rank gets through")) {
                    break;
                }
            }
            // A short send is over when it has been taken.
            std::size_t completed = 0;
            for (MPI_Request &each : under_way.all()) {
                completed += completes(c, &each, 0.05, "with a rank out of reach") ? 1 : 0;
            }
            c.expect_true(completed < 2, "that rank is out of reach");
            c.expect_true(0 == setrlimit(RLIMIT_NOFILE, &usual), "setrlimit");
        } else {
            c.receive(&go, 1, 2, tag);
            begin();
            c.send(&go, 1, 2, tag);
        }
        at_step("with descriptors again");
        for (MPI_Request &each : under_way.all()) {
            c.expect_true(completes(c, &each, 20, "with a rank in reach"),
                          "all arrives when there are descriptors");
        }
        for (std::size_t i = 0; i < count; ++i) {
            c.expect(in[i]->compare(0, lengths[i], seed_of(1 - c.rank, i)), "compare");
            ++c.messages;
        }
    }
}

} // namespace gpusm::exchange
