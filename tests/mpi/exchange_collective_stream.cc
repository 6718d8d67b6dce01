// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_collective_stream.cc: random collectives in the middle of which something goes wrong: a
// call of the driver fails, a rank is killed, the communicator is revoked. What ends with
// MPI_SUCCESS has to be right, and with ULFM those that live go on. (tests/campaign/collectives)
#include "tests/mpi/collective_stream.h"
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>

namespace gpusm::exchange {

namespace {

using namespace reductions;

int class_of(int rc)
{
    int its_class = MPI_SUCCESS;
    MPI_Error_class(rc, &its_class);
    return its_class;
}

std::string name_of(int rc)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(rc, text, &length);
    return text;
}

MPI_Comm communicator_of_all()
{
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &made);
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return made;
}

constexpr std::uint64_t until_it_fails = std::numeric_limits<std::uint64_t>::max();

// A message that fails ends a request before the runtime has told this process why.
bool becomes_hurt(const stream &all)
{
    constexpr double patience_s = 5;
    for (const double end = MPI_Wtime() + patience_s; MPI_Wtime() < end;) {
        int flag = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE); // makes progress
        if (all.is_hurt()) {
            return true;
        }
    }
    return false;
}

// `first` rounds, and after each error `rest` in the communicator of those that live, until all of
// them have done these without one. `expected`: the classes of errors that are right.
void go_on_without(context &c, stream &all, MPI_Comm comm, std::uint64_t first, std::uint64_t rest,
                   const std::vector<int> &expected)
{
    constexpr std::uint64_t most_epochs = 6;
    all.when_failed = [&](int rc, const std::string &) {
        const int its = class_of(rc);
        const bool lost = MPI_ERR_OTHER == its && !all.blocks() && becomes_hurt(all);
        std::printf("collectives: rank %d: an error after %.0f ms: %s\n", c.rank,
                    1000 * all.failed_after_s(), name_of(rc).c_str());
        c.expect_true(lost || expected.empty() ||
                          std::count(expected.begin(), expected.end(), its) != 0,
                      "the error is one of those that are right here");
        MPIX_Comm_revoke(comm);
    };
    for (std::uint64_t epoch = 0;; ++epoch) {
        const group g = group_of(comm);
        const std::uint64_t rounds = 0 == epoch ? first : rest;
        all.forget_error();
        for (std::uint64_t round = 0; round < rounds && MPI_SUCCESS == all.error(); ++round) {
            all.run(g, epoch, round);
        }
        at_step("MPIX_Comm_agree");
        int good = MPI_SUCCESS == all.error() ? 1 : 0;
        if (MPI_SUCCESS == MPIX_Comm_agree(comm, &good) && 1 == good) {
            break;
        }
        if (!c.expect_true(epoch < most_epochs, "the errors end")) {
            break;
        }
        at_step("MPIX_Comm_shrink");
        MPI_Comm smaller = MPI_COMM_NULL;
        MPIX_Comm_revoke(comm);
        if (!c.mpi(MPIX_Comm_shrink(comm, &smaller), "MPIX_Comm_shrink")) {
            break;
        }
        MPI_Comm_free(&comm);
        comm = smaller;
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
}

int rounds_of(const context &c, int usual)
{
    return c.rounds > 0 ? c.rounds : usual;
}

// For the shell drivers: nobody has to be asked.
void say_which_way(const context &c, const bench::path_counters &counters)
{
    const bench::path_counts counts = counters.read();
    const auto count_of = [&](const char *name) {
        const auto found = counts.find(name);
        return counts.end() == found ? 0ULL : found->second;
    };
    std::printf("collectives: rank %d: %llu on the devices, %llu reductions in host memory\n",
                c.rank, count_of("device_reductions") + count_of("device_exchanges"),
                count_of("host_reductions"));
    (void)std::fflush(stdout);
}

[[noreturn]] void end_as_survivor(const context &c)
{
    std::printf("collectives: rank %d survived\n", c.rank);
    (void)std::fflush(stdout);
    at_step("MPI_Finalize of a survivor");
    MPI_Finalize();
    std::exit(0 == c.failures ? 0 : exit_wrong); // the results of all cannot be put together
}

// What Open MPI gives out for a call that has nothing to do, one request for all of them, stays as
// it is when a reduction of device memory has had it, too.
void test_one_process(context &c)
{
    const auto memory = c.make(memory_kind::device, sizeof(int));
    int number = 1;
    for (int i = 0; i < 2; ++i) {
        MPI_Request requests[] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        MPI_Iallreduce(MPI_IN_PLACE, memory->data(), 1, MPI_INT, MPI_SUM, MPI_COMM_SELF,
                       &requests[0]);
        MPI_Waitall(1, requests, MPI_STATUSES_IGNORE);
        MPI_Iallgather(MPI_IN_PLACE, 1, MPI_INT, &number, 1, MPI_INT, MPI_COMM_SELF, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        c.expect_true(MPI_REQUEST_NULL == requests[0] && MPI_REQUEST_NULL == requests[1],
                      "MPI_Waitall leaves no request");
    }
}

// A rank and a moment, in the first collectives as often as later.
void die_some_time(context &c)
{
    constexpr std::size_t early_us = 20000;
    constexpr std::size_t late_us = 400000;
    draws draw = draws_of(c, 0, until_it_fails);
    const std::size_t who = below(draw, static_cast<unsigned>(c.ranks));
    const std::size_t when = below(draw, 0 == below(draw, 2) ? early_us : late_us);
    MPI_Barrier(MPI_COMM_WORLD);
    if (static_cast<int>(who) == c.rank) {
        die_after(c, static_cast<long>(when));
    }
}

} // namespace

// --rounds batches. Where a call ends with an error the job is over.
void test_collective_stream(context &c)
{
    const bench::path_counters counters("coll_gpusm_");
    stream all(c);
    all.when_failed = [&](int rc, const std::string &what) {
        c.mpi(rc, what);
        MPI_Abort(MPI_COMM_WORLD, exit_error);
    };
    const group world = group_of(communicator_of_all());
    for (int round = 0; round < rounds_of(c, 40); ++round) {
        all.run(world, 0, static_cast<std::uint64_t>(round));
    }
    say_which_way(c, counters);
}

// One rank is killed, and nobody has said that the others want to go on: mpirun ends them.
void test_collectives_killed(context &c)
{
    stream all(c);
    all.when_failed = [&](int rc, const std::string &what) {
        c.mpi(rc, what);
        at_step("waiting for mpirun to end this process");
        for (;;) {
            pause_ms(100);
        }
    };
    const group world = group_of(communicator_of_all());
    die_some_time(c);
    for (std::uint64_t round = 0;; ++round) {
        all.run(world, 0, round);
    }
}

// With ULFM the others go on without it.
void test_collectives_survive(context &c)
{
    const bench::path_counters counters("coll_gpusm_");
    stream all(c);
    MPI_Comm comm = communicator_of_all();
    die_some_time(c);
    go_on_without(c, all, comm, until_it_fails, static_cast<std::uint64_t>(rounds_of(c, 15)),
                  {MPIX_ERR_PROC_FAILED, MPIX_ERR_REVOKED});
    say_which_way(c, counters);
    end_as_survivor(c);
}

// One rank revokes the communicator while others are in a reduction, and it itself may be in some.
void test_collectives_revoked(context &c)
{
    constexpr std::size_t most_calls = 100;
    constexpr std::size_t most_us = 3000;
    stream all(c);
    draws draw = draws_of(c, 0, until_it_fails);
    const std::size_t who = below(draw, static_cast<unsigned>(c.ranks));
    const std::size_t when = below(draw, most_calls);
    const auto pause = std::chrono::microseconds(below(draw, most_us));
    if (static_cast<int>(who) == c.rank) {
        all.begun_before = when;
    }
    all.in_the_middle = [&] {
        std::this_thread::sleep_for(pause);
        MPIX_Comm_revoke(all.on);
    };
    go_on_without(c, all, communicator_of_all(), until_it_fails,
                  static_cast<std::uint64_t>(rounds_of(c, 15)), {MPIX_ERR_REVOKED});
}

// A call of the driver fails, and after an error all go on, with ULFM.
void test_collectives_recover(context &c)
{
    const bench::path_counters counters("coll_gpusm_");
    stream all(c);
    const auto rounds = static_cast<std::uint64_t>(rounds_of(c, 40));
    go_on_without(c, all, communicator_of_all(), rounds, rounds / 2, {});
    say_which_way(c, counters);
}

// One rank alone has memory that the others cannot map: all go through host memory in that call,
// and on the devices in the next one.
void test_collectives_alone(context &c)
{
    job = &c;
    test_one_process(c);
    const bench::path_counters counters("coll_gpusm_");
    const auto on_devices = [&] { return counters.read()["device_reductions"]; };
    const group world = group_of(communicator_of_all());
    const element e("double", MPI_DOUBLE);
    const auto run = [&](const setup &one, form how, bool stays) {
        operation call(world, one);
        MPI_Request request = MPI_REQUEST_NULL;
        const unsigned long long before = on_devices();
        at_step(call.describe());
        call.fill(static_cast<int>(before % 1000));
        call.begin(how, &request);
        c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), call.describe());
        call.check();
        c.expect_true(on_devices() - before == (stays ? 1U : 0U),
                      call.describe() + (stays ? " stays" : " is not") + " on the devices");
    };
    for (const memory_kind its : c.kinds) {
        for (int what = 0; what < 6; ++what) {
            for (int rank = 0; rank < c.ranks; ++rank) {
                for (const form how : {form::blocking, form::started}) {
                    // Some have no buffer that counts in these.
                    const auto scatters = kind::reduce_scatter == static_cast<kind>(what);
                    const bool in_place = 0 == rank % 2 && what < 2;
                    setup one = {static_cast<kind>(what),
                                 &e,
                                 MPI_SUM,
                                 scatters ? 10U : 1000U,
                                 6,
                                 in_place,
                                 rank,
                                 its};
                    run(one, how, false);
                    one.placement = 0;
                    run(one, how, true);
                }
            }
        }
    }
}

} // namespace gpusm::exchange
