// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// processes.cc: ways in which MPI processes start and meet. `processes WHAT KINDS` under mpirun
// with two ranks, which exchange messages of host memory (H) or device memory (D), and check them:
//
//   plain      in MPI_COMM_WORLD
//   connect    over a port, between two communicators that know nothing of each other, twice
//   session    in a session, without MPI_Init. A second one would meet Open MPI 5.0's own faults:
//              accelerator/cuda crashes, and without it now and then no peer is reached.
//   sessions   of one rank, with itself, in twenty sessions one after the other
//   fork       after forks whose children end in both ways, and one that executes a program
#include "bench/common/buffer.h"

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

using namespace gpusm::bench;

namespace {

constexpr std::size_t lengths[] = {8, 4000, 100000, 1 << 20};
std::unique_ptr<device> gpu;
std::string kinds;

[[noreturn]] void fail(const std::string &why)
{
    std::fprintf(stderr, "processes: FAILED: %s\n", why.c_str());
    std::_Exit(1);
}

void need(const std::string &error)
{
    if (!error.empty()) {
        fail(error);
    }
}

// Messages both ways with the only other process of the communicator.
void talk(MPI_Comm with, int peer, std::uint64_t mine, std::uint64_t other)
{
    for (char letter : kinds) {
        const memory_kind kind = parse_kind({&letter, 1}).value();
        for (std::size_t len : lengths) {
            std::string why;
            const int n = static_cast<int>(len);
            auto out = buffer::make(kind, len, gpu.get(), &why);
            auto in = buffer::make(kind, len, gpu.get(), &why);
            need(why);
            need(out->fill(0, len, mine));
            need(in->poison());
            MPI_Sendrecv(out->data(), n, MPI_BYTE, peer, 1, in->data(), n, MPI_BYTE, peer, 1, with,
                         MPI_STATUS_IGNORE);
            need(in->compare(0, len, other));
        }
    }
}

void talk_in(MPI_Comm both)
{
    int me = 0;
    int ranks = 0;
    MPI_Comm_rank(both, &me);
    MPI_Comm_size(both, &ranks);
    const int peer = 1 == ranks ? me : 1 - me;
    talk(both, peer, static_cast<std::uint64_t>(me), static_cast<std::uint64_t>(peer));
}

void over_a_port(int me)
{
    for (int turn = 0; turn < 2; ++turn) {
        char port[MPI_MAX_PORT_NAME] = "";
        MPI_Comm between = MPI_COMM_NULL;
        if (0 == me) {
            MPI_Open_port(MPI_INFO_NULL, port);
        }
        MPI_Bcast(port, sizeof(port), MPI_CHAR, 0, MPI_COMM_WORLD);
        (0 == me ? MPI_Comm_accept : MPI_Comm_connect)(port, MPI_INFO_NULL, 0, MPI_COMM_SELF,
                                                       &between);
        talk(between, 0, static_cast<std::uint64_t>(me), static_cast<std::uint64_t>(1 - me));
        MPI_Comm_disconnect(&between);
        if (0 == me) {
            MPI_Close_port(port);
        }
    }
}

void in_session()
{
    MPI_Session session = MPI_SESSION_NULL;
    MPI_Group everyone = MPI_GROUP_NULL;
    MPI_Comm both = MPI_COMM_NULL;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &everyone);
    MPI_Comm_create_from_group(everyone, "gpusm.processes", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL,
                               &both);
    MPI_Group_free(&everyone);
    talk_in(both);
    MPI_Comm_disconnect(&both);
    MPI_Session_finalize(&session);
}

void with_forks()
{
    const std::function<void()> ends[] = {[] { _exit(0); }, [] { std::exit(0); },
                                          [] { execlp("true", "true", nullptr); }};
    for (const auto &end : ends) {
        talk_in(MPI_COMM_WORLD);
        const pid_t child = fork();
        if (0 == child) {
            end();
        }
        talk_in(MPI_COMM_WORLD); // while the child may still live
        int status = 0;
        if (waitpid(child, &status, 0) != child || 0 != status) {
            fail("the child has ended with status " + std::to_string(status));
        }
        talk_in(MPI_COMM_WORLD);
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (3 != argc) {
        std::fprintf(stderr, "usage: processes plain|connect|session|sessions|fork KINDS\n");
        return 2;
    }
    const std::string what = argv[1];
    kinds = argv[2];
    const char *deadline = std::getenv("GPUSM_TEST_DEADLINE");
    (void)alarm(static_cast<unsigned>(nullptr == deadline ? 60 : std::atoi(deadline)));
    std::string why;
    if (kinds != "H" && nullptr == (gpu = device::open(local_rank_from_environment(), &why))) {
        fail(why);
    }
    if (what.starts_with("session")) {
        for (int sessions = "session" == what ? 1 : 20; sessions > 0; --sessions) {
            in_session();
        }
        return 0;
    }
    int me = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if ("connect" == what) {
        over_a_port(me);
    } else if ("fork" == what) {
        with_forks();
    } else {
        talk_in(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
