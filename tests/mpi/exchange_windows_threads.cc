// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_threads.cc: threads of all ranks work on the same window at once, in one epoch:
// they count with one counter, and each moves numbers to and from a place of its own. And they
// attach memory to a dynamic one.
#include "tests/mpi/windows.h"

#include <mutex>
#include <thread>

namespace gpusm::exchange {

namespace {

using namespace windows;

constexpr int threads_of_a_rank = 3;
constexpr std::size_t numbers = 1000; // of one thread's place
constexpr std::size_t number_bytes = 8;
constexpr std::size_t place_bytes = numbers * number_bytes + guard_bytes;
constexpr std::size_t counter_at = guard_bytes;

// What the next rank has for that thread of this one.
constexpr std::size_t place_of(int thread)
{
    return 2 * guard_bytes + static_cast<std::size_t>(thread) * place_bytes;
}

class crowd {
  public:
    crowd(context &c, memory_kind kind, memory_kind origin, int rounds)
        : c_(c), origin_(origin), rounds_(rounds), owned_(c, kind, place_of(threads_of_a_rank)),
          window_(c), what_(std::string("threads, windows of ") + bench::letter_of(kind) +
                            " from " + bench::letter_of(origin))
    {
    }
    void run()
    {
        const std::int64_t zero = 0;
        std::memcpy(owned_.wanted(counter_at), &zero, sizeof(zero));
        owned_.write(owned_.len_bytes());
        if (!window_.create(MPI_COMM_WORLD, owned_.at(), owned_.len_bytes(), 1, what_)) {
            return;
        }
        seed_ = c_.draw_seeds(1);
        at_step(what_);
        c_.mpi(MPI_Win_lock_all(0, *window_), what_);
        MPI_Barrier(MPI_COMM_WORLD);
        std::vector<std::thread> all;
        for (int thread = 0; thread < threads_of_a_rank; ++thread) {
            all.emplace_back([this, thread] { work(thread); });
        }
        for (std::thread &each : all) {
            each.join();
        }
        c_.mpi(MPI_Win_unlock_all(*window_), what_);
        MPI_Barrier(MPI_COMM_WORLD);
        const int source = (c_.rank + c_.ranks - 1) % c_.ranks;
        for (int thread = 0; thread < threads_of_a_rank; ++thread) {
            owned_.want(place_of(thread), long_element(), numbers,
                        seed_of(source, thread, rounds_ - 1));
        }
        const std::int64_t counted = 0 == c_.rank ? c_.ranks * threads_of_a_rank * rounds_ : 0;
        std::memcpy(owned_.wanted(counter_at), &counted, sizeof(counted));
        in_own_epoch(c_, *window_, c_.rank,
                     [&] { owned_.check(owned_.len_bytes(), what_ + ": the window"); });
        check_seen();
    }

  private:
    std::uint64_t seed_of(int rank, int thread, int round) const
    {
        return seed_ + mixed(static_cast<std::uint64_t>((rank * 100 + thread) * 100000 + round));
    }
    void work(int thread)
    {
        if (c_.on_gpu()) {
            c_.expect(c_.gpu->make_current(), what_ + ": a context for the thread");
        }
        const int target = (c_.rank + 1) % c_.ranks;
        const auto at = static_cast<MPI_Aint>(place_of(thread));
        const auto n = static_cast<int>(numbers);
        const MPI_Datatype type = MPI_INT64_T;
        watched out(c_, origin_, place_bytes);
        watched in(c_, origin_, place_bytes);
        watched one(c_, origin_, guard_bytes);
        watched counted(c_, origin_, guard_bytes);
        std::vector<std::int64_t> seen;
        for (int round = 0; round < rounds_; ++round) {
            out.want(0, long_element(), numbers, seed_of(c_.rank, thread, round));
            out.write(place_bytes);
            in.clear(place_bytes);
            in.write(place_bytes);
            MPI_Request request = MPI_REQUEST_NULL;
            c_.mpi(MPI_Rput(out.at(), n, type, target, at, n, type, *window_, &request), what_);
            c_.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), what_ + ": MPI_Wait");
            c_.mpi(MPI_Win_flush(target, *window_), what_);
            c_.mpi(MPI_Get(in.at(), n, type, target, at, n, type, *window_), what_);
            const std::int64_t added = 1;
            std::memcpy(one.wanted(), &added, sizeof(added));
            one.write(sizeof(added));
            c_.mpi(MPI_Fetch_and_op(one.at(), counted.at(), type, 0,
                                    static_cast<MPI_Aint>(counter_at), MPI_SUM, *window_),
                   what_);
            c_.mpi(MPI_Win_flush_all(*window_), what_);
            in.want(0, long_element(), numbers, seed_of(c_.rank, thread, round));
            in.check(place_bytes, what_ + ": what was put and got again");
            std::int64_t found = -1;
            c_.expect(counted.read(&found, sizeof(found)), "read");
            seen.push_back(found);
        }
        c_.expect_true(std::is_sorted(seen.begin(), seen.end()),
                       what_ + ": what a thread has counted grows");
        const std::scoped_lock held(lock_);
        seen_.insert(seen_.end(), seen.begin(), seen.end());
    }
    // Every number was counted once.
    void check_seen()
    {
        const int count = threads_of_a_rank * rounds_;
        seen_.resize(static_cast<std::size_t>(count), -1);
        std::vector<std::int64_t> all(seen_.size() * static_cast<std::size_t>(c_.ranks));
        MPI_Allgather(seen_.data(), count, MPI_INT64_T, all.data(), count, MPI_INT64_T,
                      MPI_COMM_WORLD);
        std::sort(all.begin(), all.end());
        bool is_right = true;
        for (std::size_t i = 0; i < all.size(); ++i) {
            is_right = is_right && all[i] == static_cast<std::int64_t>(i);
        }
        c_.expect_true(is_right, what_ + ": every number was counted once");
    }

    context &c_;
    memory_kind origin_;
    int rounds_;
    watched owned_;
    window_of window_;
    std::string what_;
    std::uint64_t seed_ = 0;
    std::mutex lock_;
    std::vector<std::int64_t> seen_;
};

// All threads attach memory of their own to a dynamic window, put into it, across two pieces that
// lie side by side, and detach it, so that what is attached changes beneath the puts of others.
void attach_at_once(context &c, memory_kind kind)
{
    const std::string what =
        std::string("threads, dynamic windows of ") + bench::letter_of(kind) + " attached at once";
    window_of window(c);
    if (!window.open(MPI_COMM_WORLD, what, [](MPI_Win *made) {
            return MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, made);
        })) {
        return;
    }
    const std::uint64_t seed = c.draw_seeds(numbers);
    const int rounds = 0 < c.rounds ? c.rounds : 100;
    const auto work = [&](int thread) {
        if (c.on_gpu()) {
            c.expect(c.gpu->make_current(), what + ": a context for the thread");
        }
        constexpr std::size_t half = numbers * number_bytes / 2;
        watched memory(c, kind, place_bytes);
        memory.write(place_bytes);
        bytes sent(2 * half);
        MPI_Aint at = 0;
        MPI_Get_address(memory.at(), &at);
        for (int round = 0; round < rounds; ++round) {
            memory.want(0, long_element(), numbers,
                        seed + mixed(static_cast<std::uint64_t>(thread * 100000 + round)));
            std::copy_n(memory.wanted(), sent.size(), sent.begin());
            c.mpi(MPI_Win_attach(*window, memory.at(), half), what + ": MPI_Win_attach");
            c.mpi(MPI_Win_attach(*window, memory.at(half), half), what + ": MPI_Win_attach");
            const auto n = static_cast<int>(half);
            c.mpi(MPI_Put(sent.data(), n, MPI_BYTE, c.rank, at, n, MPI_BYTE, *window), what);
            c.mpi(MPI_Put(sent.data() + half, n, MPI_BYTE, c.rank, at + n, n, MPI_BYTE, *window),
                  what);
            c.mpi(MPI_Win_flush(c.rank, *window), what);
            c.mpi(MPI_Put(sent.data(), 2 * n, MPI_BYTE, c.rank, at, 2 * n, MPI_BYTE, *window),
                  what + ": across two pieces");
            c.mpi(MPI_Win_flush(c.rank, *window), what);
            memory.check(place_bytes, what);
            c.mpi(MPI_Win_detach(*window, memory.at(half)), what + ": MPI_Win_detach");
            c.mpi(MPI_Win_detach(*window, memory.at()), what + ": MPI_Win_detach");
        }
    };
    c.mpi(MPI_Win_lock_all(0, *window), what);
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads_of_a_rank; ++thread) {
        all.emplace_back(work, thread);
    }
    for (std::thread &each : all) {
        each.join();
    }
    c.mpi(MPI_Win_unlock_all(*window), what);
}

} // namespace

// --rounds: of each thread.
void test_windows_threads(context &c)
{
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        crowd(c, c.kinds[i], c.kind_at(i + 1), 0 < c.rounds ? c.rounds : 50).run();
        attach_at_once(c, c.kinds[i]);
    }
}

} // namespace gpusm::exchange
