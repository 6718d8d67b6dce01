// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_jobs.cc: ways in which processes start, meet and end: several threads per rank,
// processes that are started later, ports, sessions, forks, and a process that is killed.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 61;
constexpr std::size_t lengths[] = {8, 65535, 256, 4097, 1 << 20};

std::uint64_t seed_of(int sender, int thread, int message)
{
    return 100000u + static_cast<std::uint64_t>(sender) * 10000 +
           static_cast<std::uint64_t>(thread) * 1000 + static_cast<std::uint64_t>(message);
}

// Messages both ways with `peer` on a tag of this thread's own.
void talk(context &c, MPI_Comm communicator, int me, int peer, int thread, int messages)
{
    for (int i = 0; i < messages; ++i) {
        const std::size_t len = lengths[static_cast<std::size_t>(i + thread) % std::size(lengths)];
        const memory_kind kind = c.kind_at(static_cast<std::size_t>(i + thread));
        const int n = static_cast<int>(len);
        auto out = c.make(kind, len);
        auto in = c.make(kind, len);
        c.expect(out->fill(0, len, seed_of(me, thread, i)), "fill");
        c.expect(in->poison(), "poison");
        if (c.mpi(MPI_Sendrecv(out->data(), n, MPI_BYTE, peer, tag + thread, in->data(), n,
                               MPI_BYTE, peer, tag + thread, communicator, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv")) {
            c.expect(in->compare(0, len, seed_of(peer, thread, i)),
                     "thread " + std::to_string(thread) + ", message " + std::to_string(i) + ", " +
                         describe(kind, kind, len, "MPI_Sendrecv"));
            ++c.messages;
        }
    }
}

// All messages of the only two processes of that communicator, or of one with itself.
void talk_in(context &c, MPI_Comm communicator)
{
    int me = 0;
    int ranks = 0;
    MPI_Comm_rank(communicator, &me);
    MPI_Comm_size(communicator, &ranks);
    talk(c, communicator, me, 1 == ranks ? me : 1 - me, 0, 20);
}

} // namespace

void test_threads(context &c)
{
    constexpr int threads = 4;
    const int messages = 0 < c.rounds ? c.rounds : 50;
    at_step("threads");
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
        running.emplace_back([&c, t, messages] {
            if (c.on_gpu()) {
                c.use_gpu();
            }
            talk(c, MPI_COMM_WORLD, c.rank, 1 - c.rank, t, messages);
        });
    }
    for (std::thread &thread : running) {
        thread.join();
    }
}

// Parents and child are one communicator, in which `talk_in` talks.
template <typename Talk>
static void with_all(context &c, MPI_Comm between, bool child, Talk &&talk_in)
{
    const std::string who = child ? "child" : "parent";
    MPI_Comm all = MPI_COMM_NULL;
    at_step("MPI_Intercomm_merge, " + who);
    c.mpi(MPI_Intercomm_merge(between, child ? 1 : 0, &all), "MPI_Intercomm_merge");
    at_step("talk, " + who);
    talk_in(all);
    MPI_Barrier(all);
    at_step("MPI_Comm_disconnect, " + who);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&between);
}

// Every parent talks with the child.
void test_spawn(context &c)
{
    std::string kinds;
    for (memory_kind kind : c.kinds) {
        kinds += bench::letter_of(kind);
    }
    char subtest[] = "spawned-child";
    char option[] = "--kinds";
    char *arguments[] = {subtest, option, kinds.data(), nullptr};
    MPI_Comm between = MPI_COMM_NULL;
    at_step("MPI_Comm_spawn");
    if (!c.mpi(MPI_Comm_spawn(c.argv[0], arguments, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &between,
                              MPI_ERRCODES_IGNORE),
               "MPI_Comm_spawn")) {
        return;
    }
    with_all(c, between, false, [&](MPI_Comm all) { talk(c, all, c.rank, c.ranks, c.rank, 20); });
}

void spawned_child(context &c)
{
    MPI_Comm parents = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parents);
    if (!c.expect_true(MPI_COMM_NULL != parents, "the child has parents")) {
        return;
    }
    with_all(c, parents, true, [&](MPI_Comm all) {
        int me = 0;
        MPI_Comm_rank(all, &me);
        for (int parent = 0; parent < me; ++parent) {
            talk(c, all, me, parent, parent, 20);
        }
    });
}

// Over a port, between two communicators that know nothing of each other, twice.
void test_connect(context &c)
{
    for (int turn = 0; turn < 2; ++turn) {
        char port[MPI_MAX_PORT_NAME] = "";
        MPI_Comm between = MPI_COMM_NULL;
        if (0 == c.rank) {
            MPI_Open_port(MPI_INFO_NULL, port);
        }
        MPI_Bcast(port, sizeof(port), MPI_CHAR, 0, MPI_COMM_WORLD);
        at_step("a port");
        (0 == c.rank ? MPI_Comm_accept : MPI_Comm_connect)(port, MPI_INFO_NULL, 0, MPI_COMM_SELF,
                                                           &between);
        with_all(c, between, 0 != c.rank, [&](MPI_Comm all) { talk_in(c, all); });
        if (0 == c.rank) {
            MPI_Close_port(port);
        }
    }
}

// --rounds sessions one after the other, without MPI_Init. More than one is for one rank, with
// itself: with two of them Open MPI 5.0 has faults of its own, accelerator/cuda crashes, and
// without it now and then no peer is reached.
void test_sessions(context &c)
{
    for (int round = 0; round < std::max(1, c.rounds); ++round) {
        MPI_Session session = MPI_SESSION_NULL;
        MPI_Group everyone = MPI_GROUP_NULL;
        MPI_Comm both = MPI_COMM_NULL;
        at_step("session " + std::to_string(round));
        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
        MPI_Group_from_session_pset(session, "mpi://WORLD", &everyone);
        MPI_Comm_create_from_group(everyone, "gpusm.exchange", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL,
                                   &both);
        MPI_Group_free(&everyone);
        talk_in(c, both);
        MPI_Comm_disconnect(&both);
        MPI_Session_finalize(&session);
    }
}

// Messages before, beside and after children that end in both ways, and one that executes a
// program.
void test_forks(context &c)
{
    const std::function<void()> ends[] = {[] { _exit(0); }, [] { std::exit(0); },
                                          [] { execlp("true", "true", nullptr); }};
    for (const auto &end : ends) {
        talk_in(c, MPI_COMM_WORLD);
        const pid_t child = fork();
        if (0 == child) {
            end();
        }
        talk_in(c, MPI_COMM_WORLD); // while the child may still live
        int status = 0;
        c.expect_true(waitpid(child, &status, 0) == child && 0 == status, "the child ends well");
        talk_in(c, MPI_COMM_WORLD);
    }
}

// Rank 1 dies in the middle of it. mpirun ends the others; whether anything is left behind is for
// the shell driver to see.
void test_killed(context &c)
{
    if (1 >= c.rank) {
        talk(c, MPI_COMM_WORLD, c.rank, 1 - c.rank, 0, 20);
    }
    if (1 == c.rank) {
        (void)std::raise(SIGKILL);
    }
    at_step("waiting for mpirun to end this process");
    char never = 0;
    MPI_Recv(&never, 1, MPI_CHAR, 1, tag - 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

} // namespace gpusm::exchange
