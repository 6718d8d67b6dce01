// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_ends.cc: processes that end their use of MPI while what they have sent has not been
// read, and others that go on.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <unistd.h>
#include <vector>

namespace gpusm::exchange {

namespace {

constexpr int tag = 71;
constexpr int message_bytes = 100;
constexpr unsigned outside_mpi_us = 1500 * 1000;  // in which the others come to their end
constexpr unsigned until_outside_us = 300 * 1000; // the others are not in MPI any more

int messages_of(const context &c)
{
    return std::max(1, c.rounds);
}

std::uint64_t seed_of(int sender, int message)
{
    return static_cast<std::uint64_t>(sender) * 100000 + static_cast<std::uint64_t>(message);
}

void send_all(context &c, int me, int to, MPI_Comm in)
{
    auto out = c.make(memory_kind::host, message_bytes);
    for (int i = 0; i < messages_of(c); ++i) {
        c.expect(out->fill(0, message_bytes, seed_of(me, i)), "fill");
        c.mpi(MPI_Send(out->data(), message_bytes, MPI_BYTE, to, tag, in), "MPI_Send");
    }
}

void receive_all(context &c, int from, MPI_Comm in)
{
    at_step("messages of rank " + std::to_string(from) + ", which ends");
    auto buffer = c.make(memory_kind::host, message_bytes);
    for (int i = 0; i < messages_of(c); ++i) {
        c.expect(buffer->poison(), "poison");
        if (c.mpi(
                MPI_Recv(buffer->data(), message_bytes, MPI_BYTE, from, tag, in, MPI_STATUS_IGNORE),
                "MPI_Recv")) {
            c.expect(buffer->compare(0, message_bytes, seed_of(from, i)),
                     "message " + std::to_string(i) + " of rank " + std::to_string(from));
            ++c.messages;
        }
    }
}

// A session, and in it a communicator of all ranks from `first` on; both end with it.
class session {
  public:
    explicit session(context &c) : c_(c)
    {
        at_step("the begin of a session");
        c_.mpi(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session_), "MPI_Session_init");
        all = make(0, "all");
        MPI_Comm_rank(all, &c_.rank);
        MPI_Comm_size(all, &c_.ranks);
    }
    ~session()
    {
        at_step("the end of a session, rank " + std::to_string(c_.rank));
        MPI_Comm_free(&all);
        c_.mpi(MPI_Session_finalize(&session_), "MPI_Session_finalize");
        std::printf("rank %d has ended its session\n", c_.rank);
        std::fflush(stdout);
    }
    session(const session &) = delete;
    session &operator=(const session &) = delete;

    MPI_Comm make(int first, const char *name)
    {
        MPI_Group everyone = MPI_GROUP_NULL;
        MPI_Group some = MPI_GROUP_NULL;
        MPI_Comm made = MPI_COMM_NULL;
        int size = 0;
        MPI_Group_from_session_pset(session_, "mpi://WORLD", &everyone);
        MPI_Group_size(everyone, &size);
        int ranges[][3] = {{first, size - 1, 1}};
        MPI_Group_range_incl(everyone, 1, ranges, &some);
        c_.mpi(MPI_Comm_create_from_group(some, name, MPI_INFO_NULL, MPI_ERRORS_RETURN, &made),
               "MPI_Comm_create_from_group");
        MPI_Group_free(&some);
        MPI_Group_free(&everyone);
        return made;
    }

    MPI_Comm all = MPI_COMM_NULL;

  private:
    context &c_;
    MPI_Session session_ = MPI_SESSION_NULL;
};

bool spawn(context &c, const char *subtest, int count, MPI_Comm *between)
{
    std::string name = subtest;
    std::string rounds = std::to_string(messages_of(c));
    char option[] = "--rounds";
    char *arguments[] = {name.data(), option, rounds.data(), nullptr};
    return c.mpi(MPI_Comm_spawn(c.argv[0], arguments, count, MPI_INFO_NULL, 0, MPI_COMM_SELF,
                                between, MPI_ERRCODES_IGNORE),
                 "MPI_Comm_spawn");
}

} // namespace

// Children send --rounds messages each and end; only then their parent, which has met one of them
// at most, comes into MPI again.
void test_early_children(context &c)
{
    constexpr int children = 4;
    MPI_Comm between = MPI_COMM_NULL;
    if (!spawn(c, "early-child", children, &between)) {
        return;
    }
    (void)usleep(outside_mpi_us);
    for (int child = 0; child < children; ++child) {
        receive_all(c, child, between);
    }
    MPI_Comm_free(&between);
}

void early_child(context &c)
{
    MPI_Comm parent = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    if (c.expect_true(MPI_COMM_NULL != parent, "the child has a parent")) {
        (void)usleep(until_outside_us);
        send_all(c, c.rank, 0, parent);
        MPI_Comm_free(&parent);
    }
}

// The same of rank 0, which sends to all others, and its session.
void test_early_session(context &c)
{
    const session own(c);
    if (0 == c.rank) {
        (void)usleep(until_outside_us);
        for (int to = 1; to < c.ranks; ++to) {
            send_all(c, 0, to, own.all);
        }
    } else {
        (void)usleep(outside_mpi_us);
        receive_all(c, 0, own.all);
    }
}

// Rank 0 fetches --rounds long messages of rank 1 and ends its session. Its word for each that it
// has been fetched waits for room or for a fragment then, as rank 1 is outside MPI.
void test_early_receiver(context &c)
{
    constexpr int bytes = 100000;
    const session own(c);
    const auto make_progress_for = [&](double seconds) {
        const double end = MPI_Wtime() + seconds;
        while (MPI_Wtime() < end) {
            int flag = 0;
            MPI_Iprobe(MPI_ANY_SOURCE, tag + 1, own.all, &flag, MPI_STATUS_IGNORE);
        }
    };
    std::vector<std::unique_ptr<buffer>> all;
    for (int i = 0; i < messages_of(c); ++i) {
        all.push_back(c.make(memory_kind::host, bytes));
    }
    if (1 == c.rank) {
        std::vector<MPI_Request> sends(all.size(), MPI_REQUEST_NULL);
        for (std::size_t i = 0; i < all.size(); ++i) {
            c.expect(all[i]->fill(0, bytes, i), "fill");
            c.mpi(MPI_Isend(all[i]->data(), bytes, MPI_BYTE, 0, tag, own.all, &sends[i]),
                  "MPI_Isend");
        }
        make_progress_for(0.7); // rank 0 knows of all
        (void)usleep(2 * outside_mpi_us);
        at_step("sends to a receiver that has ended");
        c.mpi(MPI_Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE),
              "MPI_Waitall");
    } else if (0 == c.rank) {
        make_progress_for(1.5);
        for (std::size_t i = 0; i < all.size(); ++i) {
            c.mpi(MPI_Recv(all[i]->data(), bytes, MPI_BYTE, 1, tag, own.all, MPI_STATUS_IGNORE),
                  "MPI_Recv");
            c.expect(all[i]->compare(0, bytes, i), "message " + std::to_string(i));
            ++c.messages;
        }
    }
}

// Nobody receives what two processes have sent each other, and neither waits for the other one.
void test_unread(context &c)
{
    const session own(c);
    if (c.rank < 2) {
        send_all(c, c.rank, 1 - c.rank, own.all);
    }
}

// Rank 0 ends its session; the others, most of which have never had to do with it, go on.
void test_left_session(context &c)
{
    constexpr std::size_t bytes = 100000;
    constexpr int rounds = 300;
    session own(c);
    MPI_Comm others = 0 == c.rank ? MPI_COMM_NULL : own.make(1, "others");
    if (0 == c.rank) {
        return;
    }
    (void)usleep(outside_mpi_us);
    int me = 0;
    int members = 0;
    MPI_Comm_rank(others, &me);
    MPI_Comm_size(others, &members);
    const int next = (me + 1) % members;
    const int before = (me + members - 1) % members;
    at_step("messages among those that go on");
    for (const memory_kind kind : c.kinds) {
        auto out = c.make(kind, bytes);
        auto in = c.make(kind, bytes);
        c.expect(out->fill(0, bytes, seed_of(me, 0)), "fill");
        for (int i = 0; i < rounds; ++i) {
            c.mpi(MPI_Sendrecv(out->data(), bytes, MPI_BYTE, next, tag, in->data(), bytes, MPI_BYTE,
                               before, tag, others, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv");
            ++c.messages;
        }
        c.expect(in->compare(0, bytes, seed_of(before, 0)), "the last message");
    }
    at_step("progress after that");
    const double end = MPI_Wtime() + 0.5;
    while (MPI_Wtime() < end) {
        int flag = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, tag, others, &flag, MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&others);
}

// This process ends while its child, which it has sent more than there is room for, is outside MPI
// and then dies.
void test_unread_by_the_dead(context &c)
{
    at_step("MPI_Init");
    MPI_Init(nullptr, nullptr);
    MPI_Comm between = MPI_COMM_NULL;
    if (spawn(c, "deaf-child", 1, &between)) {
        send_all(c, 0, 0, between);
        MPI_Comm_free(&between);
    }
    at_step("MPI_Finalize, with messages that a child does not read");
    MPI_Finalize();
    std::printf("MPI has ended for the parent\n");
    std::fflush(stdout);
}

// A child's message cannot be read, as the file of its segment has been removed before this process
// has mapped it. Open MPI has not named the child to the BTL, and is told nevertheless: it ends
// this process.
void test_lost_segment(context &c)
{
    constexpr double told_within_s = 3;
    MPI_Comm between = MPI_COMM_NULL;
    if (!spawn(c, "child-without-segment", 2, &between)) {
        return;
    }
    (void)usleep(2 * outside_mpi_us);
    char never = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Irecv(&never, 1, MPI_CHAR, 1, tag, between, &request);
    int done = 0;
    const double end = MPI_Wtime() + told_within_s;
    while (0 == done && MPI_Wtime() < end) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    std::printf("lost segment: %s\n", 0 == done ? "nobody is told" : "it was mapped in time");
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, exit_wrong);
}

void child_without_segment(context &c)
{
    MPI_Comm parent = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    if (1 != c.rank) {
        return;
    }
    (void)usleep(outside_mpi_us / 2); // so that its parent is not in MPI
    send_all(c, c.rank, 0, parent);
    std::ifstream maps("/proc/self/maps"); // in which are the segments of rank 1 and its parent, 0
    for (std::string line; std::getline(maps, line);) {
        const std::size_t path = line.find('/');
        const std::size_t name = line.find("/gpusm.");
        if (std::string::npos != name && std::string::npos != line.find(".1.", name)) {
            (void)unlink(line.c_str() + path);
        }
    }
    at_step("a child without a segment");
    (void)usleep(6 * outside_mpi_us); // it lives while its parent finds that out
    (void)std::raise(SIGKILL);
}

void deaf_child(context &)
{
    (void)usleep(2 * outside_mpi_us);
    (void)std::raise(SIGKILL);
}

} // namespace gpusm::exchange
