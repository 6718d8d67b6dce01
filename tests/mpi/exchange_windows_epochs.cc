// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_windows_epochs.cc: epochs with many operations and many ranks: groups of all, locks of
// all one by one, requests that end in any order, accumulates in the order of their calls, and
// origins that lie in a window themselves.
#include "tests/mpi/random_layout.h"
#include "tests/mpi/windows.h"

namespace gpusm::exchange {

namespace {

using namespace windows;

constexpr std::size_t slot_numbers = 500; // that one rank has in the window of another
constexpr std::size_t number_bytes = 8;
constexpr std::size_t slot_bytes = slot_numbers * number_bytes + guard_bytes;

enum class epoch { fence, post_start, locks, flushes };
constexpr const char *epoch_names[] = {"fence", "post-start of all", "a lock of each", "flush"};

// A window with a slot for each rank, buffers of as many slots, and what all of them are to hold.
class everyone {
  public:
    everyone(context &c, memory_kind kind, memory_kind origin)
        : c_(c), origin_(c, origin, bytes_of_all()), result_(c, origin, bytes_of_all()),
          owned_(c, kind, bytes_of_all()), window_(c),
          what_(std::string("windows of ") + bench::letter_of(kind) + " from " +
                bench::letter_of(origin))
    {
        is_open_ = window_.create(MPI_COMM_WORLD, owned_.at(), bytes_of_all(), 1, what_);
    }
    bool is_open() const { return is_open_; }

    // Every rank puts a slot to every rank and gets another slot of every rank's.
    void all_to_all(epoch around, bool by_accumulate)
    {
        const std::string what = what_ + ", " + epoch_names[static_cast<int>(around)] +
                                 (by_accumulate ? ", accumulates" : ", puts");
        begin(what);
        const auto each_rank = [&](int rank) {
            const auto n = static_cast<int>(half);
            const MPI_Datatype type = MPI_INT64_T;
            const void *from = origin_.at(slot(rank));
            if (by_accumulate) {
                c_.mpi(
                    MPI_Accumulate(from, n, type, rank, at(c_.rank, 0), n, type, MPI_SUM, *window_),
                    what);
            } else {
                c_.mpi(MPI_Put(from, n, type, rank, at(c_.rank, 0), n, type, *window_), what);
            }
            c_.mpi(MPI_Get(result_.at(slot(rank) + half * number_bytes), n, type, rank,
                           at(c_.rank, half), n, type, *window_),
                   what);
        };
        run(around, what, each_rank);
        for (int rank = 0; rank < c_.ranks; ++rank) {
            for (std::size_t i = 0; i < half; ++i) {
                const std::size_t of_slot = slot(rank) + i * number_bytes;
                bytes sent(number_bytes);
                long_element().put(sent.data(), seed_of(rank, 1) + number(c_.rank, i));
                long_element().combine(by_accumulate ? rule::sum : rule::replace, sent.data(),
                                       owned_.wanted(of_slot));
                long_element().put(result_.wanted(of_slot + half * number_bytes),
                                   seed_of(rank, 0) + number(c_.rank, half + i));
            }
        }
        end(around, what);
    }

    // Requests of all ranks' slots are under way at once and are completed in another order.
    void requests(generator &from)
    {
        constexpr std::size_t pieces = 25; // of a half
        constexpr std::size_t piece = half / pieces;
        const std::string what = what_ + ", requests";
        begin(what);
        MPI_Barrier(MPI_COMM_WORLD);
        c_.mpi(MPI_Win_lock_all(0, *window_), what);
        std::vector<MPI_Request> all;
        for (std::size_t i = 0; i < pieces; ++i) {
            for (int rank = 0; rank < c_.ranks; ++rank) {
                const std::size_t first = i * piece;
                const std::size_t where = slot(rank) + first * number_bytes;
                const auto n = static_cast<int>(piece);
                const MPI_Datatype type = MPI_INT64_T;
                MPI_Request put = MPI_REQUEST_NULL;
                MPI_Request get = MPI_REQUEST_NULL;
                c_.mpi(0 == i % 2
                           ? MPI_Rput(origin_.at(where), n, type, rank, at(c_.rank, first), n, type,
                                      *window_, &put)
                           : MPI_Raccumulate(origin_.at(where), n, type, rank, at(c_.rank, first),
                                             n, type, MPI_SUM, *window_, &put),
                       what);
                void *into = result_.at(where + half * number_bytes);
                c_.mpi(0 == i % 3 ? MPI_Rget_accumulate(nullptr, 0, type, into, n, type, rank,
                                                        at(c_.rank, half + first), n, type,
                                                        MPI_NO_OP, *window_, &get)
                                  : MPI_Rget(into, n, type, rank, at(c_.rank, half + first), n,
                                             type, *window_, &get),
                       what);
                all.push_back(put);
                all.push_back(get);
            }
        }
        for (std::size_t left = all.size(); left > 1; --left) {
            std::swap(all[left - 1], all[draw(from, 0, left - 1)]);
        }
        for (std::size_t i = 0; i < all.size() / 2; ++i) {
            c_.mpi(MPI_Wait(&all[i], MPI_STATUS_IGNORE), what + ": MPI_Wait");
        }
        c_.mpi(MPI_Waitall(static_cast<int>(all.size()), all.data(), MPI_STATUSES_IGNORE),
               what + ": MPI_Waitall");
        for (int rank = 0; rank < c_.ranks; ++rank) {
            for (std::size_t i = 0; i < half; ++i) {
                long_element().put(result_.wanted(slot(rank) + (half + i) * number_bytes),
                                   seed_of(rank, 0) + number(c_.rank, half + i));
            }
        }
        result_.check(bytes_of_all(), what + ": the result, before the epoch ends");
        c_.mpi(MPI_Win_unlock_all(*window_), what);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int rank = 0; rank < c_.ranks; ++rank) {
            for (std::size_t i = 0; i < half; ++i) {
                bytes sent(number_bytes);
                long_element().put(sent.data(), seed_of(rank, 1) + number(c_.rank, i));
                long_element().combine(0 == i / piece % 2 ? rule::replace : rule::sum, sent.data(),
                                       owned_.wanted(slot(rank) + i * number_bytes));
            }
        }
        end(epoch::locks, what);
    }

    // What one rank adds and fetches at one place, without waiting in between, is done in that
    // order.
    void in_order()
    {
        constexpr int times = 20;
        const int target = (c_.rank + 1) % c_.ranks;
        const int source = (c_.rank + c_.ranks - 1) % c_.ranks;
        const std::string what = what_ + ", accumulates in order";
        const MPI_Datatype type = MPI_INT64_T;
        for (const std::size_t count : {std::size_t{1}, slot_numbers / times}) {
            const auto n = static_cast<int>(count);
            begin(what);
            MPI_Barrier(MPI_COMM_WORLD);
            c_.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, *window_), what);
            for (int time = 0; time < times; ++time) {
                const std::size_t from = static_cast<std::size_t>(time) * count;
                c_.mpi(MPI_Accumulate(origin_.at(slot(0) + from * number_bytes), n, type, target,
                                      at(c_.rank, 0), n, type, MPI_SUM, *window_),
                       what);
                c_.mpi(MPI_Get_accumulate(nullptr, 0, type,
                                          result_.at(slot(0) + from * number_bytes), n, type,
                                          target, at(c_.rank, 0), n, type, MPI_NO_OP, *window_),
                       what);
            }
            c_.mpi(MPI_Win_unlock(target, *window_), what);
            MPI_Barrier(MPI_COMM_WORLD);
            for (std::size_t i = 0; i < count; ++i) {
                bytes sum(number_bytes);
                long_element().put(sum.data(), seed_of(target, 0) + number(c_.rank, i));
                for (std::size_t k = i; k < times * count; k += count) {
                    const std::size_t where = slot(0) + k * number_bytes;
                    long_element().combine(rule::sum, origin_.wanted(where), sum.data());
                    long_element().combine(rule::replace, sum.data(), result_.wanted(where));
                    bytes sent(number_bytes);
                    long_element().put(sent.data(), seed_of(source, 1) + number(0, k));
                    long_element().combine(rule::sum, sent.data(),
                                           owned_.wanted(slot(source) + i * number_bytes));
                }
            }
            end(epoch::locks, what);
        }
    }

    // Of two puts to one place, without waiting in between, the second one stays. MPI does not
    // promise that, but programs rely on it. With `second_from_host` its origin is in host memory.
    void puts_in_order(bool second_from_host)
    {
        constexpr std::size_t times = 50;
        const int target = (c_.rank + 1) % c_.ranks;
        const int source = (c_.rank + c_.ranks - 1) % c_.ranks;
        const std::string what =
            what_ + (second_from_host ? ", puts in order, from host memory" : ", puts in order");
        const auto nth = [&](std::size_t k) { return slot(0) + k * number_bytes; };
        begin(what);
        MPI_Barrier(MPI_COMM_WORLD);
        c_.mpi(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, *window_), what);
        for (std::size_t time = 0; time < times; ++time) {
            const std::size_t last = nth(2 * time + 1);
            for (const void *from :
                 {static_cast<const void *>(origin_.at(nth(2 * time))),
                  second_from_host ? static_cast<const void *>(origin_.wanted(last))
                                   : static_cast<const void *>(origin_.at(last))}) {
                c_.mpi(
                    MPI_Put(from, 1, MPI_INT64_T, target, at(c_.rank, 0), 1, MPI_INT64_T, *window_),
                    what);
            }
            c_.mpi(MPI_Win_flush(target, *window_), what);
            c_.mpi(MPI_Get(result_.at(nth(time)), 1, MPI_INT64_T, target, at(c_.rank, 0), 1,
                           MPI_INT64_T, *window_),
                   what);
            c_.mpi(MPI_Win_flush(target, *window_), what);
            long_element().combine(rule::replace, origin_.wanted(last), result_.wanted(nth(time)));
        }
        c_.mpi(MPI_Win_unlock(target, *window_), what);
        MPI_Barrier(MPI_COMM_WORLD);
        long_element().put(owned_.wanted(slot(source)),
                           seed_of(source, 1) + number(0, 2 * times - 1));
        end(epoch::locks, what);
    }

    // The owner of the window is in a receive, which ends only when the accesses are complete.
    void while_owner_receives()
    {
        constexpr int tag = 131;
        const std::string what = what_ + ", the owner receives";
        const MPI_Datatype type = MPI_INT64_T;
        constexpr auto n = static_cast<int>(slot_numbers);
        const int peer = c_.rank ^ 1;
        begin(what);
        MPI_Barrier(MPI_COMM_WORLD);
        if (0 == c_.rank % 2 && peer < c_.ranks) {
            c_.mpi(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, peer, 0, *window_), what);
            c_.mpi(MPI_Get_accumulate(origin_.at(slot(peer)), n, type, result_.at(slot(peer)), n,
                                      type, peer, at(c_.rank, 0), n, type, MPI_SUM, *window_),
                   what);
            c_.mpi(MPI_Win_flush(peer, *window_), what);
            c_.mpi(MPI_Accumulate(origin_.at(slot(peer)), n, type, peer, at(c_.rank, 0), n, type,
                                  MPI_SUM, *window_),
                   what);
            c_.mpi(MPI_Win_unlock(peer, *window_), what);
            c_.send(&tag, sizeof(tag), peer, tag);
            result_.want(slot(peer), long_element(), slot_numbers,
                         seed_of(peer, 0) + number(c_.rank, 0));
        } else if (1 == c_.rank % 2) {
            int word = 0;
            c_.receive(&word, sizeof(word), peer, tag);
            for (std::size_t i = 0; i < slot_numbers; ++i) {
                bytes sent(number_bytes);
                long_element().put(sent.data(), seed_of(peer, 1) + number(c_.rank, i));
                for (int time = 0; time < 2; ++time) {
                    long_element().combine(rule::sum, sent.data(),
                                           owned_.wanted(slot(peer) + i * number_bytes));
                }
            }
        }
        end(epoch::locks, what);
    }

    // Out of one's own window into another's and from there back, as programs do with borders.
    void from_window()
    {
        const int target = (c_.rank + 1) % c_.ranks;
        const int source = (c_.rank + c_.ranks - 1) % c_.ranks;
        const std::string what = what_ + ", origins in the window";
        const MPI_Datatype type = MPI_INT64_T;
        // The first third is put into the second, and the last third is got from the first.
        constexpr std::size_t third = slot_numbers / 3;
        constexpr auto n = static_cast<int>(third);
        const auto own = [&](std::size_t part) {
            return owned_.at(slot(0) + part * third * number_bytes);
        };
        begin(what);
        c_.mpi(MPI_Win_fence(0, *window_), what);
        c_.mpi(MPI_Put(own(0), n, type, target, at(0, third), n, type, *window_), what);
        c_.mpi(MPI_Get(own(2), n, type, target, at(0, 0), n, type, *window_), what);
        c_.mpi(MPI_Win_fence(MPI_MODE_NOSUCCEED, *window_), what);
        for (std::size_t i = 0; i < third; ++i) {
            long_element().put(owned_.wanted(slot(0) + (third + i) * number_bytes),
                               seed_of(source, 0) + number(0, i));
            long_element().put(owned_.wanted(slot(0) + (2 * third + i) * number_bytes),
                               seed_of(target, 0) + number(0, i));
        }
        end(epoch::fence, what);
    }

  private:
    static constexpr std::size_t half = slot_numbers / 2;

    std::size_t bytes_of_all() const { return slot(c_.ranks); }
    static std::size_t slot(int rank)
    {
        return guard_bytes + static_cast<std::size_t>(rank) * slot_bytes;
    }
    static MPI_Aint at(int rank, std::size_t number)
    {
        return static_cast<MPI_Aint>(slot(rank) + number * number_bytes);
    }
    static std::uint64_t number(int rank, std::size_t i)
    {
        return static_cast<std::uint64_t>(rank) * slot_numbers + i;
    }
    std::uint64_t seed_of(int rank, int role) const
    {
        return seed_ + mixed(static_cast<std::uint64_t>(rank * 4 + role));
    }
    void begin(const std::string &what)
    {
        at_step(what);
        seed_ = c_.draw_seeds(1);
        const auto prepare = [&](watched &memory, int role) {
            memory.clear(bytes_of_all());
            for (int rank = 0; rank < c_.ranks && 0 <= role; ++rank) {
                memory.want(slot(rank), long_element(), slot_numbers,
                            seed_of(c_.rank, role) + number(rank, 0));
            }
            memory.write(bytes_of_all());
        };
        prepare(origin_, 1);
        prepare(result_, -1);
        in_own_epoch(c_, *window_, c_.rank, [&] { prepare(owned_, 0); });
    }
    template <typename Work> void run(epoch around, const std::string &what, Work each_rank)
    {
        const auto each = [&](auto work) {
            for (int i = 0; i < c_.ranks; ++i) {
                work((c_.rank + i) % c_.ranks);
            }
        };
        switch (around) {
        case epoch::fence:
            c_.mpi(MPI_Win_fence(MPI_MODE_NOPRECEDE, *window_), what);
            each(each_rank);
            c_.mpi(MPI_Win_fence(MPI_MODE_NOSUCCEED, *window_), what);
            return;
        case epoch::post_start: {
            MPI_Group all = MPI_GROUP_NULL;
            MPI_Win_get_group(*window_, &all);
            c_.mpi(MPI_Win_post(all, 0, *window_), what);
            c_.mpi(MPI_Win_start(all, 0, *window_), what);
            MPI_Group_free(&all);
            each(each_rank);
            c_.mpi(MPI_Win_complete(*window_), what);
            c_.mpi(MPI_Win_wait(*window_), what);
            return;
        }
        case epoch::locks: // of all at once
            MPI_Barrier(MPI_COMM_WORLD);
            each([&](int rank) { c_.mpi(MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, *window_), what); });
            each(each_rank);
            each([&](int rank) { c_.mpi(MPI_Win_unlock(rank, *window_), what); });
            break;
        case epoch::flushes:
            MPI_Barrier(MPI_COMM_WORLD);
            c_.mpi(MPI_Win_lock_all(0, *window_), what);
            each([&](int rank) {
                each_rank(rank);
                c_.mpi(MPI_Win_flush(rank, *window_), what);
            });
            c_.mpi(MPI_Win_unlock_all(*window_), what);
            break;
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    void end(epoch around, const std::string &what)
    {
        const auto check = [&] { owned_.check(bytes_of_all(), what + ": the window"); };
        if (epoch::fence == around || epoch::post_start == around) {
            check();
        } else {
            in_own_epoch(c_, *window_, c_.rank, check);
        }
        origin_.check(bytes_of_all(), what + ": the origin's buffer");
        result_.check(bytes_of_all(), what + ": the result");
        MPI_Barrier(MPI_COMM_WORLD); // the next one begins with a lock
    }

    context &c_;
    watched origin_;
    watched result_;
    watched owned_;
    window_of window_;
    std::string what_;
    bool is_open_ = false;
    std::uint64_t seed_ = 0;
};

} // namespace

void test_windows_epochs(context &c)
{
    generator from(c.draw_seeds(1));
    for (std::size_t i = 0; i < c.kinds.size(); ++i) {
        for (std::size_t step = 0; step < std::min<std::size_t>(2, c.kinds.size()); ++step) {
            everyone all(c, c.kinds[i], c.kind_at(i + step));
            if (!all.is_open()) {
                continue;
            }
            for (int round = 0; round < std::max(1, c.rounds); ++round) {
                for (const epoch around :
                     {epoch::fence, epoch::post_start, epoch::locks, epoch::flushes}) {
                    all.all_to_all(around, false);
                    all.all_to_all(around, true);
                }
                all.requests(from);
                all.in_order();
                all.puts_in_order(false);
                all.puts_in_order(true);
                all.while_owner_receives();
                all.from_window();
            }
        }
    }
}

} // namespace gpusm::exchange
