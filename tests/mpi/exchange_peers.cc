// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_peers.cc: peers that cannot be reached for a while, and peers that have ended.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mpi-ext.h>
#include <sys/resource.h>
#include <unistd.h>

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

// Messages both ways with one process of that communicator: enough of them for a fast box, and long
// ones.
void meet(context &c, MPI_Comm communicator, int with)
{
    constexpr int rounds = 40;
    for (int i = 0; i < rounds; ++i) {
        const std::size_t len = 0 == i % 10 ? 300000 : 100;
        const memory_kind kind = c.kind_at(static_cast<std::size_t>(i));
        auto out = c.make(kind, len);
        auto in = c.make(kind, len);
        c.expect(out->fill(0, len, static_cast<std::uint64_t>(i)), "fill");
        c.expect(in->poison(), "poison");
        if (c.mpi(MPI_Sendrecv(out->data(), static_cast<int>(len), MPI_BYTE, with, tag, in->data(),
                               static_cast<int>(len), MPI_BYTE, with, tag, communicator,
                               MPI_STATUS_IGNORE),
                  "MPI_Sendrecv")) {
            c.expect(in->compare(0, len, static_cast<std::uint64_t>(i)), "compare");
            ++c.messages;
        }
    }
}

// Children of this process alone that run that subtest.
bool spawn(context &c, const char *subtest, int count, MPI_Comm *between)
{
    std::string name = subtest;
    std::string kinds;
    for (memory_kind kind : c.kinds) {
        kinds += bench::letter_of(kind);
    }
    char option[] = "--kinds";
    char *arguments[] = {name.data(), option, kinds.data(), nullptr};
    return c.mpi(MPI_Comm_spawn(c.argv[0], arguments, count, MPI_INFO_NULL, 0, MPI_COMM_SELF,
                                between, MPI_ERRCODES_IGNORE),
                 "MPI_Comm_spawn");
}

// What this process keeps open: descriptors and mappings.
struct kept {
    long descriptors = 0;
    long mappings = 0;

    static kept now()
    {
        kept counted;
        for ([[maybe_unused]] const auto &each :
             std::filesystem::directory_iterator("/proc/self/fd")) {
            ++counted.descriptors;
        }
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            ++counted.mappings;
        }
        return counted;
    }
};

} // namespace

// --rounds children, of which some live at the same time, exchange messages with this process,
// disconnect and end; nothing is kept for those that have ended.
void test_children(context &c)
{
    constexpr int at_once = 6;
    constexpr long most_kept = 10;
    const int children = std::max(4 * at_once, c.rounds);
    kept first;
    kept last;
    for (int begun = 0; begun < children; begun += at_once) {
        at_step("children from number " + std::to_string(begun));
        const int count = std::min(at_once, children - begun);
        MPI_Comm between = MPI_COMM_NULL;
        if (!spawn(c, "ending-child", count, &between)) {
            return;
        }
        for (int child = 0; child < count; ++child) {
            meet(c, between, child);
        }
        MPI_Comm_disconnect(&between);
        first = 0 == begun ? kept::now() : first;
    }
    at_step("giving back what was kept for children");
    const double end = MPI_Wtime() + 20;
    do {
        for (int i = 0; i < 4096; ++i) {
            int flag = 0;
            MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        }
        last = kept::now();
    } while (MPI_Wtime() < end && (last.descriptors > first.descriptors - at_once + most_kept ||
                                   last.mappings > first.mappings - at_once + most_kept));
    std::printf(
        "children: %d, descriptors %ld after the first, %ld at the end; mappings %ld, %ld\n",
        children, first.descriptors, last.descriptors, first.mappings, last.mappings);
    c.expect_true(last.descriptors <= first.descriptors - at_once + most_kept,
                  "the descriptors of ended children are given back");
    c.expect_true(last.mappings <= first.mappings - at_once + most_kept,
                  "the mappings of ended children are given back");
}

void ending_child(context &c)
{
    MPI_Comm parent = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    if (c.expect_true(MPI_COMM_NULL != parent, "the child has a parent")) {
        meet(c, parent, 0);
        MPI_Comm_disconnect(&parent);
    }
}

// A child that dies of SIGKILL while this process waits for it.
void test_lost_child(context &c)
{
    MPI_Comm between = MPI_COMM_NULL;
    if (!spawn(c, "dying-child", 1, &between)) {
        return;
    }
    MPI_Comm_set_errhandler(between, MPI_ERRORS_RETURN);
    meet(c, between, 0);
    // Of the long ones it has read nothing, of the device's it may be no more than a handle.
    std::vector<MPI_Request> waiting(1 + c.kinds.size(), MPI_REQUEST_NULL);
    std::vector<std::unique_ptr<buffer>> out;
    constexpr std::size_t long_bytes = 1 << 20;
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        out.push_back(c.make(c.kinds[i], long_bytes));
        MPI_Isend(out[i]->data(), long_bytes, MPI_BYTE, 0, tag + 2, between, &waiting[1 + i]);
    }
    at_step("waiting for a process that has died");
    char never = 0;
    MPI_Irecv(&never, 1, MPI_CHAR, 0, tag + 1, between, &waiting[0]);
    for (MPI_Request &each : waiting) { // MPI_Waitall has faults of its own with ULFM
        int its_class = MPI_SUCCESS;
        MPI_Error_class(MPI_Wait(&each, MPI_STATUS_IGNORE), &its_class);
        c.expect_true(MPIX_ERR_PROC_FAILED == its_class, "it ends with MPI_ERR_PROC_FAILED");
    }
    std::printf("lost child: all requests have ended\n");
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, c.failures > 0 ? exit_wrong : 42);
}

void dying_child(context &c)
{
    MPI_Comm parent = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    meet(c, parent, 0);
    (void)usleep(100 * 1000); // so that its parent waits by then
    (void)std::raise(SIGKILL);
}

// A child that dies of SIGKILL after it has disconnected is no failure of anybody's.
void test_left_child(context &c)
{
    MPI_Comm between = MPI_COMM_NULL;
    if (!spawn(c, "leaving-child", 1, &between)) {
        return;
    }
    meet(c, between, 0);
    MPI_Comm_disconnect(&between);
    at_step("going on without a child that has left");
    const double end = MPI_Wtime() + 6;
    while (MPI_Wtime() < end) {
        int flag = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    }
    std::printf("left child: the parent lives\n");
}

void leaving_child(context &c)
{
    MPI_Comm parent = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    meet(c, parent, 0);
    MPI_Comm_disconnect(&parent);
    (void)std::raise(SIGKILL);
}

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
