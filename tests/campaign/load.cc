// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// load.cc: random messages between all ranks, from and into memory of every kind, of which every
// byte is checked; for hours, or until one rank is killed.
//
//   load soak KINDS MESSAGES THREADS   so many messages in all, by so many threads of each rank
//   load survive KINDS MICROSECONDS    until a rank, drawn from the time, dies after that time;
//   then
//                                      the others go on without it for a while. Needs ULFM.
//
// Messages have random lengths up to 512 KiB, more often short than long, and few tags on two
// communicators, so that many have the same communicator, tag and source: one that overtakes
// another is seen by its content. GPUSM_TEST_DEADLINE: seconds until the program gives up (120).
#include "bench/common/buffer.h"
#include "bench/common/numbers.h"

#include <mpi.h>

#include <mpi-ext.h> // needs mpi.h before it

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace gpusm::bench;

namespace {

constexpr std::size_t longest = std::size_t{512} << 10; // bytes of a message
constexpr int window_messages = 32;                     // each way
constexpr int tags = 3;                                 // of a thread
constexpr int rounds_without_it = 50;
constexpr std::uint64_t content = 4711; // seed of all messages, which differ by where they begin

[[noreturn]] void give_up(const std::string &why)
{
    std::fprintf(stderr, "load: FAILED: %s\n", why.c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
}

struct message {
    std::size_t begin, len_bytes; // in the content
    int tag;
    std::size_t communicator;
    std::size_t from, into; // which kind of memory
};

// One thread of a rank: its memory, and what it has sent.
class talker {
  public:
    talker(const std::vector<memory_kind> &kinds, const device *gpu, int thread)
        : thread_(thread), host_(2 * longest)
    {
        write_pattern(host_.data(), host_.size(), content, 0);
        for (memory_kind kind : kinds) {
            std::string why;
            out_.push_back(buffer::make(kind, host_.size(), gpu, &why));
            in_.push_back(buffer::make(kind, longest * window_messages, gpu, &why));
            if (nullptr == out_.back() || nullptr == in_.back() ||
                !(why = out_.back()->fill(0, host_.size(), content)).empty()) {
                give_up(why);
            }
        }
    }

    // A window to one rank and one from another, checked. An MPI error ends it; then false.
    bool exchange(std::array<MPI_Comm, 2> in, int to, int from, std::uint64_t round)
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
                is_gpu(memory.kind())
                    ? memory.compare(place, each.len_bytes, content, each.begin).empty()
                    : 0 == std::memcmp(memory.at(place), host_.data() + each.begin, each.len_bytes);
            if (!same) {
                give_up("a message of " + std::to_string(each.len_bytes) + " bytes from rank " +
                        std::to_string(from) + " in round " + std::to_string(round) +
                        ", from memory " + letter_of(out_[each.from]->kind()) + " into " +
                        letter_of(memory.kind()) + ", has the wrong bytes");
            }
            place += each.len_bytes;
        }
    }

    const int thread_;
    std::vector<char> host_; // the content
    std::vector<std::unique_ptr<buffer>> out_, in_;
    std::vector<MPI_Request> requests_;
};

std::size_t resident_kib()
{
    unsigned long all = 0;
    unsigned long resident = 0;
    std::FILE *file = std::fopen("/proc/self/statm", "r");
    if (nullptr == file || 2 != std::fscanf(file, "%lu %lu", &all, &resident)) {
        give_up("/proc/self/statm cannot be read");
    }
    (void)std::fclose(file);
    return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

struct job {
    int rank, ranks;
    std::vector<memory_kind> kinds;
    std::unique_ptr<device> gpu;
    std::array<MPI_Comm, 2> on; // all ranks
};

// The n-th neighbours: to whom to send and from whom to receive.
bool exchange_round(talker &who, std::array<MPI_Comm, 2> on, std::uint64_t round)
{
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(on[0], &rank);
    MPI_Comm_size(on[0], &ranks);
    const int step = 1 + static_cast<int>(round % static_cast<std::uint64_t>(ranks - 1));
    return who.exchange(on, (rank + step) % ranks, (rank + ranks - step) % ranks, round);
}

int soak(job &all, std::uint64_t messages, int threads)
{
    const std::uint64_t rounds =
        messages / static_cast<std::uint64_t>(window_messages * threads * all.ranks) + 1;
    std::atomic<std::size_t> early_kib{0};
    const auto work = [&](int thread) {
        std::string why;
        if (nullptr != all.gpu && !(why = all.gpu->make_current()).empty()) {
            give_up(why);
        }
        talker who(all.kinds, all.gpu.get(), thread);
        for (std::uint64_t round = 0; round < rounds; ++round) {
            if (0 == thread && rounds / 4 == round) {
                early_kib = resident_kib();
            }
            if (!exchange_round(who, all.on, round)) {
                give_up("MPI reports an error");
            }
            if (0 == thread && 0 == all.rank && 0 == round % (rounds / 10 + 1)) {
                std::printf("load: round %lu of %lu\n", round, rounds);
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
    if (0 == all.rank) {
        std::printf("load: %lu messages in %.1f s, every byte right; since the first quarter no "
                    "rank's memory grew by more than %ld KiB\n",
                    rounds * static_cast<std::uint64_t>(window_messages * threads * all.ranks),
                    seconds, std::max(grown, 0L));
    }
    return 0;
}

void die_after(long microseconds)
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
        give_up("a timer cannot be set");
    }
}

int survive(job &all, long microseconds)
{
    talker who(all.kinds, all.gpu.get(), 0);
    std::uint64_t round = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (microseconds % all.ranks == all.rank) {
        die_after(microseconds);
    }
    while (exchange_round(who, all.on, round)) {
        ++round;
    }
    for (MPI_Comm &each : all.on) {
        MPIX_Comm_revoke(each);
    }
    std::array<MPI_Comm, 2> rest{};
    for (std::size_t i = 0; i < rest.size(); ++i) {
        if (MPI_SUCCESS != MPIX_Comm_shrink(all.on[i], &rest[i])) {
            give_up("MPIX_Comm_shrink fails");
        }
    }
    for (round = 0; round < rounds_without_it; ++round) {
        if (!exchange_round(who, rest, round)) {
            give_up("an MPI error between survivors");
        }
    }
    std::printf("load: rank %d survived\n", all.rank);
    (void)std::fflush(stdout);
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    const std::string what = argc > 3 ? argv[1] : "";
    if (!("soak" == what && 5 == argc) && !("survive" == what && 4 == argc)) {
        std::fprintf(stderr,
                     "usage: load soak KINDS MESSAGES THREADS | load survive KINDS MICROSECONDS\n");
        return 2;
    }
    const int threads = "soak" == what ? std::atoi(argv[4]) : 1;
    const char *deadline = std::getenv("GPUSM_TEST_DEADLINE");
    (void)alarm(static_cast<unsigned>(nullptr == deadline ? 120 : std::atoi(deadline)));
    job all{};
    for (const char *letter = argv[2]; 0 != *letter; ++letter) {
        all.kinds.push_back(parse_kind({letter, 1}).value_or(memory_kind::host));
    }
    std::string why;
    if (std::any_of(all.kinds.begin(), all.kinds.end(), needs_gpu) &&
        nullptr == (all.gpu = device::open(local_rank_from_environment(), &why))) {
        std::fprintf(stderr, "load: %s\n", why.c_str());
        return 77;
    }
    int level = 0;
    MPI_Init_thread(&argc, &argv, threads > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &all.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all.ranks);
    for (MPI_Comm &each : all.on) {
        MPI_Comm_dup(MPI_COMM_WORLD, &each);
        MPI_Comm_set_errhandler(each, MPI_ERRORS_RETURN);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    const int status = "soak" == what ? soak(all, std::strtoull(argv[3], nullptr, 10), threads)
                                      : survive(all, std::atol(argv[3]));
    MPI_Finalize();
    return status;
}
