// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_sessions.cc: sessions with MPI_THREAD_MULTIPLE, alone and beside others. Open MPI 5.0
// has told no component of threads before the first one of them starts.
#include "tests/mpi/exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr int threads = 2;
constexpr int messages = 20000; // of a thread, unless --rounds says how many
constexpr int messages_per_answer = 500;
constexpr int tag = 7;

// A session with that level of threads, and in it a communicator of all for each thread.
class level_session {
  public:
    level_session(context &c, const char *level, const char *name) : c_(c)
    {
        MPI_Info info = MPI_INFO_NULL;
        MPI_Info_create(&info);
        MPI_Info_set(info, "thread_level", level);
        at_step(std::string("a session with ") + level);
        c.mpi(MPI_Session_init(info, MPI_ERRORS_RETURN, &session_), "MPI_Session_init");
        MPI_Info_free(&info);
        MPI_Group all = MPI_GROUP_NULL;
        c.mpi(MPI_Group_from_session_pset(session_, "mpi://WORLD", &all), "a group");
        for (int i = 0; i < threads; ++i) {
            const std::string own_name = std::string(name) + std::to_string(i);
            c.mpi(MPI_Comm_create_from_group(all, own_name.c_str(), MPI_INFO_NULL,
                                             MPI_ERRORS_RETURN, &communicators[i]),
                  "a communicator");
        }
        MPI_Group_free(&all);
    }
    ~level_session()
    {
        at_step("the end of a session");
        for (MPI_Comm &each : communicators) {
            MPI_Comm_free(&each);
        }
        c_.mpi(MPI_Session_finalize(&session_), "MPI_Session_finalize");
    }
    level_session(const level_session &) = delete;
    level_session &operator=(const level_session &) = delete;

    std::array<MPI_Comm, threads> communicators;

  private:
    context &c_;
    MPI_Session session_ = MPI_SESSION_NULL;
};

// What a message looks like: its number, and bytes that follow from it.
std::vector<unsigned char> content_of(int thread, int number, std::size_t len_bytes)
{
    std::vector<unsigned char> made(len_bytes);
    std::iota(made.begin(), made.end(), static_cast<unsigned char>(number + 31 * thread));
    std::memcpy(made.data(), &number, sizeof(number));
    return made;
}

// From rank 0 to rank 1, and an answer now and then. Not the blocking calls: with sessions ob1 of
// Open MPI 5.0 keeps one request for all threads that make those.
void stream_messages(context &c, MPI_Comm in, int thread, int count)
{
    int me = 0;
    MPI_Comm_rank(in, &me);
    const auto send = [&](const void *at, std::size_t len_bytes) {
        MPI_Request request = MPI_REQUEST_NULL;
        return c.mpi(
                   MPI_Isend(at, static_cast<int>(len_bytes), MPI_BYTE, 1 - me, tag, in, &request),
                   "MPI_Isend") &&
               c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
    };
    const auto receive = [&](void *at, std::size_t len_bytes) {
        MPI_Request request = MPI_REQUEST_NULL;
        return c.mpi(
                   MPI_Irecv(at, static_cast<int>(len_bytes), MPI_BYTE, 1 - me, tag, in, &request),
                   "MPI_Irecv") &&
               c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
    };
    for (int i = 0; i < count; ++i) {
        const std::size_t len_bytes = 4 + static_cast<std::size_t>(i * 37 % 237); // to 240
        const std::vector<unsigned char> expected = content_of(thread, i, len_bytes);
        std::vector<unsigned char> got(len_bytes, 0xee);
        if (!(0 == me ? send(expected.data(), len_bytes) : receive(got.data(), len_bytes))) {
            return;
        }
        if (1 == me) {
            c.expect_true(got == expected, "message " + std::to_string(i) + " of thread " +
                                               std::to_string(thread) + " is right");
            ++c.messages;
        }
        if (0 == (i + 1) % messages_per_answer) {
            int answer = 1 == me ? i : -1;
            if (!(1 == me ? send(&answer, sizeof(answer)) : receive(&answer, sizeof(answer)))) {
                return;
            }
            c.expect_true(answer == i, "the answer is that to the last message");
        }
    }
}

void run_threads(context &c, const std::array<MPI_Comm, threads> &communicators)
{
    const int count = 0 < c.rounds ? c.rounds : messages;
    at_step("messages of several threads");
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i) {
        running.emplace_back([&c, &communicators, i, count] {
            stream_messages(c, communicators[static_cast<std::size_t>(i)], i, count);
        });
    }
    for (std::thread &each : running) {
        each.join();
    }
}

} // namespace

void test_session_threads(context &c)
{
    const level_session only(c, "MPI_THREAD_MULTIPLE", "only");
    run_threads(c, only.communicators);
}

void test_session_threads_later(context &c)
{
    const level_session first(c, "MPI_THREAD_SINGLE", "first");
    stream_messages(c, first.communicators[0], 0, messages_per_answer);
    const level_session second(c, "MPI_THREAD_MULTIPLE", "second");
    run_threads(c, second.communicators);
    stream_messages(c, first.communicators[0], 0, messages_per_answer);
}

// Each thread in a session of its own.
void test_two_session_threads(context &c)
{
    const level_session one(c, "MPI_THREAD_MULTIPLE", "one");
    const level_session other(c, "MPI_THREAD_MULTIPLE", "other");
    run_threads(c, {one.communicators[0], other.communicators[1]});
}

} // namespace gpusm::exchange
