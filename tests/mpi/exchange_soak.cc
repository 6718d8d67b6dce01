// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_soak.cc: random messages between all ranks, from and into memory of every kind, of which
// every byte is checked; for hours, or until one rank is killed (tests/campaign).
//
// Messages have random lengths up to 512 KiB, more often short than long, and few tags on two
// communicators, so that many have the same communicator, tag and source: one that overtakes
// another is seen by its content.
#include "tests/mpi/exchange.h"

#include <mpi-ext.h> // needs mpi.h before it

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <thread>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr std::size_t longest = std::size_t{512} << 10; // bytes of a message
constexpr int window_messages = 32;                     // each way
constexpr int tags = 3;                                 // of a thread
constexpr std::uint64_t content = 4711; // seed of all messages, which differ by where they begin

[[noreturn]] void give_up(context &c, const std::string &why)
{
    c.expect(why, "random messages");
    MPI_Abort(MPI_COMM_WORLD, exit_wrong);
    std::_Exit(exit_wrong);
}

struct message {
    std::size_t begin, len_bytes; // in the content
    int tag;
    std::size_t communicator;
    std::size_t from, into; // which kind of memory
};

using communicators = std::array<MPI_Comm, 2>;

// One thread of a rank: its memory, and what it has sent.
class talker {
  public:
    talker(context &c, int thread) : c_(c), thread_(thread), host_(2 * longest)
    {
        bench::write_pattern(host_.data(), host_.size(), content, 0);
        for (memory_kind kind : c.kinds) {
            out_.push_back(c.make(kind, host_.size()));
            in_.push_back(c.make(kind, longest * window_messages));
            c.expect(out_.back()->fill(0, host_.size(), content), "fill");
        }
    }

    // A window to one rank and one from another, checked. An MPI error ends it; then false.
    bool exchange(const communicators &in, int to, int from, std::uint64_t round)
    {
        int me = 0;
        MPI_Comm_rank(in[0], &me);
        const auto outgoing = draw(me, round);
        const auto incoming = draw(from, round);
        requests_.clear();
        bool good = true;
        // Unexpected messages now and then.
        const bool send_first = 0 == (round + static_cast<std::uint64_t>(me)) % 3;
        for (const bool send : {send_first, !send_first}) {
            std::size_t place = 0;
            for (const message &each : send ? outgoing : incoming) {
                MPI_Request &request = requests_.emplace_back(MPI_REQUEST_NULL);
                const int n = static_cast<int>(each.len_bytes);
                const MPI_Comm on = in[each.communicator];
                good &= MPI_SUCCESS == (send ? MPI_Isend(out_[each.from]->at(each.begin), n,
                                                         MPI_BYTE, to, each.tag, on, &request)
                                             : MPI_Irecv(in_[each.into]->at(place), n, MPI_BYTE,
                                                         from, each.tag, on, &request));
                place += each.len_bytes;
            }
        }
        // One by one: when one fails, MPI_Waitall of Open MPI 5.0 frees those of a revoked
        // communicator that are still under way, and ends the job when they have ended.
        for (MPI_Request &each : requests_) {
            good &= MPI_SUCCESS == MPI_Wait(&each, MPI_STATUS_IGNORE);
        }
        if (good) {
            check(incoming, from, round);
        }
        return good;
    }

  private:
    // What that rank sends in that round, the same wherever it is drawn.
    std::vector<message> draw(int sender, std::uint64_t round)
    {
        std::seed_seq seeds{static_cast<std::uint64_t>(sender), static_cast<std::uint64_t>(thread_),
                            round};
        std::minstd_rand draw(seeds);
        const auto below = [&](std::size_t end) { return draw() % end; };
        std::vector<message> all(window_messages);
        for (message &each : all) {
            const std::size_t most = std::size_t{1} << below(0 == below(64) ? 20 : 15);
            each.len_bytes = below(std::min(most, longest) + 1);
            each.begin = below(host_.size() - each.len_bytes);
            each.tag = thread_ * tags + static_cast<int>(below(tags));
            each.communicator = below(2);
            each.from = below(out_.size());
            each.into = below(in_.size());
        }
        return all;
    }

    void check(const std::vector<message> &incoming, int from, std::uint64_t round)
    {
        std::size_t place = 0;
        for (const message &each : incoming) {
            const buffer &memory = *in_[each.into];
            const bool same =
                bench::is_gpu(memory.kind())
                    ? memory.compare(place, each.len_bytes, content, each.begin).empty()
                    : 0 == std::memcmp(memory.at(place), host_.data() + each.begin, each.len_bytes);
            if (!same) {
                give_up(c_, "a message of " + std::to_string(each.len_bytes) + " bytes from rank " +
                                std::to_string(from) + " in round " + std::to_string(round) +
                                ", from memory " + bench::letter_of(out_[each.from]->kind()) +
                                " into " + bench::letter_of(memory.kind()) +
                                ", has the wrong bytes");
            }
            place += each.len_bytes;
        }
    }

    context &c_;
    const int thread_;
    std::vector<char> host_; // the content
    std::vector<std::unique_ptr<buffer>> out_, in_;
    std::vector<MPI_Request> requests_;
};

std::size_t resident_kib()
{
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

// Of all ranks.
communicators make_communicators()
{
    communicators made{};
    for (MPI_Comm &each : made) {
        MPI_Comm_dup(MPI_COMM_WORLD, &each);
        MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN);
    }
    return made;
}

// The n-th neighbours: to whom to send and from whom to receive.
bool exchange_round(talker &who, const communicators &on, std::uint64_t round)
{
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(on[0], &rank);
    MPI_Comm_size(on[0], &ranks);
    const int step = 1 + static_cast<int>(round % static_cast<std::uint64_t>(ranks - 1));
    return who.exchange(on, (rank + step) % ranks, (rank + ranks - step) % ranks, round);
}

// --rounds messages in all, by so many threads of each rank.
void soak(context &c, int threads)
{
    const int in_a_round = window_messages * threads * c.ranks;
    const auto rounds = static_cast<std::uint64_t>(std::max(c.rounds, 1) / in_a_round + 1);
    const communicators on = make_communicators();
    std::atomic<std::size_t> early_kib{0};
    const auto work = [&](int thread) {
        if (c.on_gpu()) {
            c.use_gpu();
        }
        talker who(c, thread);
        for (std::uint64_t round = 0; round < rounds; ++round) {
            if (0 == thread && rounds / 4 == round) {
                early_kib = resident_kib();
            }
            if (!exchange_round(who, on, round)) {
                give_up(c, "MPI reports an error");
            }
            if (0 == thread && 0 == c.rank && 0 == round % (rounds / 10 + 1)) {
                std::printf("soak: round %lu of %lu\n", round, rounds);
                (void)std::fflush(stdout);
            }
        }
    };
    const double start = MPI_Wtime();
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) {
        others.emplace_back(work, thread);
    }
    work(0);
    for (std::thread &other : others) {
        other.join();
    }
    const double seconds = MPI_Wtime() - start;
    long grown = static_cast<long>(resident_kib()) - static_cast<long>(early_kib);
    MPI_Allreduce(MPI_IN_PLACE, &grown, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (0 == c.rank) {
        std::printf("soak: %lu messages in %.1f s, every byte right; since the first quarter no "
                    "rank's memory grew by more than %ld KiB\n",
                    rounds * static_cast<std::uint64_t>(in_a_round), seconds, std::max(grown, 0L));
    }
}

} // namespace

void die_after(context &c, long microseconds)
{
    sigevent how{};
    how.sigev_notify = SIGEV_SIGNAL;
    how.sigev_signo = SIGKILL;
    timer_t timer{};
    itimerspec when{};
    when.it_value.tv_sec = microseconds / 1000000;
    when.it_value.tv_nsec = microseconds % 1000000 * 1000 + 1;
    if (0 != timer_create(CLOCK_MONOTONIC, &how, &timer) ||
        0 != timer_settime(timer, 0, &when, nullptr)) {
        give_up(c, "a timer cannot be set");
    }
}

void test_soak(context &c)
{
    soak(c, 1);
}

void test_soak_threads(context &c)
{
    soak(c, 4);
}

// Until a rank, drawn from the time, dies after --rounds microseconds; then the others go on
// without it for a while. Needs ULFM.
void test_survive(context &c)
{
    constexpr int rounds_without_it = 50;
    talker who(c, 0);
    const communicators on = make_communicators();
    std::uint64_t round = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (c.rounds % c.ranks == c.rank) {
        die_after(c, c.rounds);
    }
    while (exchange_round(who, on, round)) {
        ++round;
    }
    communicators rest{};
    for (MPI_Comm each : on) {
        MPIX_Comm_revoke(each);
    }
    for (std::size_t i = 0; i < rest.size(); ++i) {
        if (MPI_SUCCESS != MPIX_Comm_shrink(on[i], &rest[i])) {
            give_up(c, "MPIX_Comm_shrink fails");
        }
    }
    for (round = 0; round < rounds_without_it; ++round) {
        if (!exchange_round(who, rest, round)) {
            give_up(c, "an MPI error between survivors");
        }
    }
    std::printf("survive: rank %d survived\n", c.rank);
    MPI_Finalize();
    std::exit(0); // the results of all ranks cannot be put together any more
}

} // namespace gpusm::exchange
