// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_atomics.cc: all ranks update the same numbers at once, the owner too. Nothing is
// lost, and nobody sees a number twice that only one can have seen.
#include "tests/mpi/windows.h"

#include <ctime>
#include <numeric>

namespace gpusm::exchange {

namespace {

using namespace windows;

constexpr std::size_t long_count = 3000; // numbers that one call adds to
constexpr int most_added = 3;

// What rank 0 and the last rank expose, with guard bytes around each part.
struct place {
    static constexpr std::size_t counter = guard_bytes;     // 64 bits, only added to
    static constexpr std::size_t small = 2 * guard_bytes;   // 32 bits, only added to
    static constexpr std::size_t real = 3 * guard_bytes;    // a double, only added to
    static constexpr std::size_t swapped = 4 * guard_bytes; // 64 bits, only swapped
    static constexpr std::size_t locked = 5 * guard_bytes;  // 64 bits, read and put under a lock
    static constexpr std::size_t largest = 6 * guard_bytes; // of what all ranks bring
    static constexpr std::size_t numbers = 8 * guard_bytes; // long_count of 32 bits
    static constexpr std::size_t end = numbers + long_count * 4 + guard_bytes;
};

class contest {
  public:
    contest(context &c, memory_kind kind, memory_kind origin, int owner, int rounds)
        : c_(c), owner_(owner), rounds_(rounds), owned_(c, kind, place::end), window_(c),
          one_(c.make(origin, room_bytes)), two_(c.make(origin, room_bytes)),
          result_(c.make(origin, room_bytes)),
          what_(std::string("numbers of rank ") + std::to_string(owner) + " in " +
                bench::letter_of(kind) + ", from " + bench::letter_of(origin))
    {
    }

    void run()
    {
        set<std::int64_t>(place::counter, 0);
        set<std::int32_t>(place::small, 0);
        set<double>(place::real, 0);
        set<std::int64_t>(place::swapped, 0);
        set<std::int64_t>(place::locked, 0);
        set<std::int64_t>(place::largest, -1);
        for (std::size_t i = 0; i < long_count; ++i) {
            set<std::int32_t>(place::numbers + 4 * i, static_cast<std::int32_t>(i));
        }
        owned_.write(place::end);
        if (!window_.create(MPI_COMM_WORLD, owned_.at(), place::end, 1, what_)) {
            return;
        }
        at_step(what_ + ", by all at once");
        c_.mpi(MPI_Win_lock_all(0, *window_), what_);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < rounds_; ++i) {
            add_somehow(i);
            swap_until_done();
        }
        c_.mpi(MPI_Win_unlock_all(*window_), what_);
        at_step(what_ + ", long ones");
        for (int i = 0; i < few(); ++i) {
            add_many(i);
        }
        at_step(what_ + ", under an exclusive lock");
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < few(); ++i) {
            read_and_put();
        }
        MPI_Barrier(MPI_COMM_WORLD);
        in_own_epoch(c_, *window_, c_.rank, [&] { check(); });
        check_seen();
        window_.free();
    }

  private:
    static constexpr std::size_t room_bytes = long_count * 4;
    int few() const { return std::max(1, rounds_ / 10); }

    template <typename T> void set(std::size_t at, T value)
    {
        std::memcpy(owned_.wanted(at), &value, sizeof(value));
    }
    template <typename T> void write(buffer &to, T value)
    {
        c_.expect(to.write(0, &value, sizeof(value)), "fill");
    }
    template <typename T> T result() const
    {
        T value{};
        c_.expect(result_->read(0, &value, sizeof(value)), "read");
        return value;
    }
    static void pause_us(long us)
    {
        const timespec span = {0, us * 1000};
        (void)nanosleep(&span, nullptr);
    }
    void flush(bool only_here)
    {
        c_.mpi(only_here ? MPI_Win_flush_local(owner_, *window_) : MPI_Win_flush(owner_, *window_),
               what_);
    }

    // Adds to all three counters, by calls that take turns. What was there is kept.
    void add_somehow(int i)
    {
        const int added = 1 + i % most_added;
        const int way = (i + c_.rank) % 4;
        added_ += added;
        const auto at = [](std::size_t where) { return static_cast<MPI_Aint>(where); };
        write<std::int64_t>(*one_, added);
        if (0 == way) {
            c_.mpi(MPI_Accumulate(one_->data(), 1, MPI_INT64_T, owner_, at(place::counter), 1,
                                  MPI_INT64_T, MPI_SUM, *window_),
                   what_);
            flush(0 == i % 8);
        } else {
            if (1 == way) {
                c_.mpi(MPI_Get_accumulate(one_->data(), 1, MPI_INT64_T, result_->data(), 1,
                                          MPI_INT64_T, owner_, at(place::counter), 1, MPI_INT64_T,
                                          MPI_SUM, *window_),
                       what_);
            } else {
                c_.mpi(MPI_Fetch_and_op(one_->data(), result_->data(), MPI_INT64_T, owner_,
                                        at(place::counter), MPI_SUM, *window_),
                       what_);
            }
            flush(3 == way);
            seen_.push_back(result<std::int64_t>());
        }
        write<std::int32_t>(*one_, added);
        c_.mpi(MPI_Fetch_and_op(one_->data(), result_->data(), MPI_INT32_T, owner_,
                                at(place::small), MPI_SUM, *window_),
               what_);
        flush(0 == i % 2);
        seen_small_.push_back(result<std::int32_t>());
        write<double>(*one_, 0.5 * added);
        c_.mpi(MPI_Accumulate(one_->data(), 1, MPI_DOUBLE, owner_, at(place::real), 1, MPI_DOUBLE,
                              MPI_SUM, *window_),
               what_);
        flush(true);
        write<std::int64_t>(*one_, c_.rank * 1000 + i);
        c_.mpi(MPI_Accumulate(one_->data(), 1, MPI_INT64_T, owner_, at(place::largest), 1,
                              MPI_INT64_T, MPI_MAX, *window_),
               what_);
        flush(true);
    }
    // One more, by comparing and swapping until nobody was faster. Deadline: the program's.
    void swap_until_done()
    {
        for (;;) {
            write<std::int64_t>(*one_, guess_ + 1);
            write<std::int64_t>(*two_, guess_);
            const bool is_good = c_.mpi(
                MPI_Compare_and_swap(one_->data(), two_->data(), result_->data(), MPI_INT64_T,
                                     owner_, static_cast<MPI_Aint>(place::swapped), *window_),
                what_);
            flush(false);
            const auto found = result<std::int64_t>();
            if (found == guess_ || !is_good) {
                ++guess_;
                return;
            }
            if (!c_.expect_true(found > guess_, what_ + ": a swapped number grows")) {
                return;
            }
            guess_ = found;
        }
    }
    // A number of its own to each of many; every element is updated for itself.
    void add_many(int i)
    {
        std::vector<std::int32_t> numbers(long_count);
        std::iota(numbers.begin(), numbers.end(), c_.rank + i);
        c_.expect(one_->write(0, numbers.data(), numbers.size() * 4), "fill");
        c_.mpi(MPI_Win_lock(MPI_LOCK_SHARED, owner_, 0, *window_), what_);
        c_.mpi(MPI_Accumulate(one_->data(), long_count, MPI_INT32_T, owner_,
                              static_cast<MPI_Aint>(place::numbers), long_count, MPI_INT32_T,
                              MPI_SUM, *window_),
               what_);
        c_.mpi(MPI_Win_unlock(owner_, *window_), what_);
    }
    // Nobody comes between a get and a put of the same exclusive lock.
    void read_and_put()
    {
        const auto at = static_cast<MPI_Aint>(place::locked);
        c_.mpi(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, owner_, 0, *window_), what_);
        c_.mpi(MPI_Get(result_->data(), 1, MPI_INT64_T, owner_, at, 1, MPI_INT64_T, *window_),
               what_);
        flush(false);
        pause_us(200); // in which another one could come between
        write<std::int64_t>(*one_, result<std::int64_t>() + 1);
        c_.mpi(MPI_Put(one_->data(), 1, MPI_INT64_T, owner_, at, 1, MPI_INT64_T, *window_), what_);
        c_.mpi(MPI_Win_unlock(owner_, *window_), what_);
    }

    void check()
    {
        if (c_.rank == owner_) {
            const auto all = static_cast<std::int64_t>(c_.ranks);
            set<std::int64_t>(place::counter, all * added_);
            set<std::int32_t>(place::small, static_cast<std::int32_t>(all * added_));
            set<double>(place::real, 0.5 * static_cast<double>(all * added_));
            set<std::int64_t>(place::swapped, all * rounds_);
            set<std::int64_t>(place::locked, all * few());
            set<std::int64_t>(place::largest, (all - 1) * 1000 + rounds_ - 1);
            for (std::size_t i = 0; i < long_count; ++i) {
                std::int64_t sum = static_cast<std::int64_t>(i);
                for (int rank = 0; rank < c_.ranks; ++rank) {
                    for (int k = 0; k < few(); ++k) {
                        sum += rank + k + static_cast<std::int64_t>(i);
                    }
                }
                set<std::int32_t>(place::numbers + 4 * i, static_cast<std::int32_t>(sum));
            }
        }
        owned_.check(place::end, what_ + ": what is there in the end");
    }
    // Every update has found another number, since each adds something; and each rank's in order.
    void check_seen()
    {
        for (const auto *mine : {&seen_, &seen_small_}) {
            c_.expect_true(std::is_sorted(mine->begin(), mine->end()),
                           what_ + ": what a rank has fetched grows");
            std::vector<int> counts(static_cast<std::size_t>(c_.ranks));
            const auto count = static_cast<int>(mine->size());
            MPI_Allgather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
            std::vector<int> at(counts.size());
            std::exclusive_scan(counts.begin(), counts.end(), at.begin(), 0);
            std::vector<std::int64_t> all(static_cast<std::size_t>(at.back() + counts.back()));
            MPI_Allgatherv(mine->data(), count, MPI_INT64_T, all.data(), counts.data(), at.data(),
                           MPI_INT64_T, MPI_COMM_WORLD);
            std::sort(all.begin(), all.end());
            const auto twice = std::adjacent_find(all.begin(), all.end());
            c_.expect(all.end() == twice ? "" : std::to_string(*twice) + " was fetched twice",
                      what_ + ": what is fetched");
            c_.expect_true(all.empty() || (all.front() >= 0 && all.back() < c_.ranks * added_),
                           what_ + ": what is fetched was there");
            ++c_.messages;
        }
    }

    context &c_;
    int owner_;
    int rounds_;
    watched owned_;
    window_of window_;
    std::unique_ptr<buffer> one_;
    std::unique_ptr<buffer> two_;
    std::unique_ptr<buffer> result_;
    std::string what_;
    std::int64_t added_ = 0; // by this rank, as by each
    std::int64_t guess_ = 0;
    std::vector<std::int64_t> seen_;
    std::vector<std::int64_t> seen_small_;
};

// What MPI knows as MPI_DOUBLE_INT, with something of the program's where that has a gap.
struct tagged {
    double value;
    int index;
    int tag;

    bool operator==(const tagged &) const = default;
};

// Elements of which a part is raised to the next rank's, one is replaced, and the results: what
// lies in the gaps stays.
void keep_gaps(context &c, memory_kind of_window, memory_kind of_origin)
{
    constexpr std::size_t count = 256;
    constexpr std::size_t raised = 200;
    constexpr std::size_t replaced = 250;
    const std::string what = describe(of_origin, of_window, sizeof(tagged), "gaps in pairs");
    at_step(what);
    const auto make = [&](memory_kind kind, double value, int tag) {
        std::vector<tagged> all(count);
        for (std::size_t i = 0; i < count; ++i) {
            all[i] = {value, static_cast<int>(i), tag};
        }
        auto made = c.make(kind, count * sizeof(tagged));
        c.expect(made->write(0, all.data(), count * sizeof(tagged)), "write");
        return made;
    };
    auto shown = make(of_window, 1, 1);
    auto mine = make(of_origin, 2, 2);
    auto result = make(of_origin, 3, 3);
    const int next = (c.rank + 1) % c.ranks;
    // Host memory of MPI, which all processes have mapped; or the program's.
    const bool is_shared = memory_kind::host == of_window;
    constexpr std::size_t len = count * sizeof(tagged);
    MPI_Win window = MPI_WIN_NULL;
    void *base = nullptr;
    if (is_shared) {
        MPI_Win_allocate(len, sizeof(tagged), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
        std::memcpy(base, shown->data(), len);
    } else {
        MPI_Win_create(shown->data(), len, sizeof(tagged), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    }
    MPI_Win_fence(0, window);
    MPI_Accumulate(mine->data(), raised, MPI_DOUBLE_INT, next, 0, raised, MPI_DOUBLE_INT,
                   MPI_MAXLOC, window);
    MPI_Fetch_and_op(mine->data(), result->data(), MPI_DOUBLE_INT, next, replaced, MPI_REPLACE,
                     window);
    MPI_Win_fence(0, window);
    if (is_shared) {
        std::memcpy(shown->data(), base, len);
    }
    const auto expect_element = [&](const buffer &in, std::size_t i, const tagged &wanted) {
        tagged is{};
        c.expect(in.read(i * sizeof(tagged), &is, sizeof(is)), "read");
        c.expect(is == wanted ? ""
                              : "element " + std::to_string(i) + " is " + std::to_string(is.value) +
                                    ", " + std::to_string(is.index) + ", " + std::to_string(is.tag),
                 what);
    };
    expect_element(*shown, 0, {2, 0, 1});
    expect_element(*shown, raised - 1, {2, raised - 1, 1});
    expect_element(*shown, raised, {1, raised, 1});
    expect_element(*shown, replaced, {2, 0, 1});
    expect_element(*result, 0, {1, replaced, 3});
    ++c.messages;
    MPI_Win_free(&window);
}

} // namespace

// --rounds: updates of each counter by each rank.
void test_windows_atomics(context &c)
{
    const bench::path_counters counters("osc_gpusm_");
    const int rounds = 0 < c.rounds ? c.rounds : 300;
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        contest(c, c.kinds[i], c.kinds[i], 0, rounds).run();
        contest(c, c.kinds[i], c.kind_at(i + 1), c.ranks - 1, rounds).run();
        keep_gaps(c, c.kinds[i], c.kinds[i]);
        keep_gaps(c, c.kinds[i], c.kind_at(i + 1));
    }
    // For the shell driver.
    const bench::path_counts counts = counters.read();
    const auto count_of = [&](const char *name) {
        const auto found = counts.find(name);
        return counts.end() == found ? 0ULL : found->second;
    };
    std::printf("windows: rank %d: device_copies %llu, device_reductions %llu, owner_bytes %llu\n",
                c.rank, count_of("device_copies"), count_of("device_reductions"),
                count_of("owner_bytes"));
}

} // namespace gpusm::exchange
