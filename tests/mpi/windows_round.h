// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// windows_round.h: one round of accesses to a window that each rank may have made differently:
// numbers go to the next rank's part of it and come from there, and both ends compare.
#ifndef GPUSM_TESTS_MPI_WINDOWS_ROUND_H
#define GPUSM_TESTS_MPI_WINDOWS_ROUND_H

#include "tests/mpi/windows.h"

#include <functional>
#include <utility>

namespace gpusm::exchange::windows {

// What every rank knows of the numbers (64 bits each) that one rank exposes.
struct region {
    MPI_Aint at = 0; // in units of the owner's
    int unit = 1;
    std::size_t count = 0; // a multiple of four; 0: it exposes nothing
};

// How a rank gets at its own: bytes from the region's begin on.
struct own_memory {
    std::function<void(const bytes &)> write;
    std::function<bytes(std::size_t)> read;
};

inline own_memory in_buffer(context &c, buffer &memory, std::size_t offset)
{
    return {[&c, &memory, offset](const bytes &all) {
                c.expect(memory.write(offset, all.data(), all.size()), "fill");
            },
            [&c, &memory, offset](std::size_t len) {
                bytes all(len);
                c.expect(memory.read(offset, all.data(), len), "read");
                return all;
            }};
}

inline own_memory at_address(void *base)
{
    return {[base](const bytes &all) {
                if (!all.empty()) {
                    std::memcpy(base, all.data(), all.size());
                }
            },
            [base](std::size_t len) {
                const auto *from = static_cast<const unsigned char *>(base);
                return bytes(from, from + len);
            }};
}

inline bytes numbers(std::size_t count, std::uint64_t seed)
{
    bytes made(count * long_element().extent);
    for (std::size_t i = 0; i < count; ++i) {
        long_element().put(made.data() + i * long_element().extent, seed + i);
    }
    return made;
}

inline void expect_same(context &c, const bytes &found, const bytes &wanted,
                        const std::string &what)
{
    const auto wrong = std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end());
    c.expect(found.end() == wrong.first && wanted.end() == wrong.second
                 ? ""
                 : "byte " + std::to_string(wrong.first - found.begin()) + " of " +
                       std::to_string(wanted.size()) + " is wrong",
             what);
    ++c.messages;
}

// Every rank puts into the first quarter of what the next rank exposes, adds to the second, adds to
// the third and fetches what was there, and gets the last.
class round_of {
  public:
    round_of(context &c, MPI_Comm comm, MPI_Win window, const region &mine, own_memory own,
             const std::string &what)
        : c_(c), comm_(comm), window_(window), mine_(mine), own_(std::move(own)), what_(what)
    {
        MPI_Comm_rank(comm, &me_);
        MPI_Comm_size(comm, &ranks_);
        std::vector<region> all(static_cast<std::size_t>(ranks_));
        MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, comm);
        target_ = (me_ + 1) % ranks_;
        source_ = (me_ + ranks_ - 1) % ranks_;
        to_ = all[static_cast<std::size_t>(target_)];
    }
    void in_fences(memory_kind origin, std::uint64_t seed)
    {
        begin(origin, seed);
        own_.write(numbers(mine_.count, of(me_, 0)));
        c_.mpi(MPI_Win_fence(0, window_), what_);
        start();
        c_.mpi(MPI_Win_fence(MPI_MODE_NOSUCCEED, window_), what_);
        check();
        finish();
    }
    void in_locks(memory_kind origin, std::uint64_t seed)
    {
        begin(origin, seed);
        in_own_epoch(c_, window_, me_, [&] { own_.write(numbers(mine_.count, of(me_, 0))); });
        MPI_Barrier(comm_);
        c_.mpi(MPI_Win_lock_all(0, window_), what_);
        start();
        c_.mpi(MPI_Win_flush(target_, window_), what_);
        c_.mpi(MPI_Win_unlock_all(window_), what_);
        MPI_Barrier(comm_);
        in_own_epoch(c_, window_, me_, [&] { check(); });
        finish();
    }
    // The parts of it, for several windows at once.
    void begin(memory_kind origin, std::uint64_t seed)
    {
        at_step(what_);
        seed_ = seed;
        const std::size_t len = to_.count * number_bytes + guard_bytes;
        origin_ = c_.make(origin, len);
        result_ = c_.make(origin, len);
        c_.expect(result_->poison(), "poison");
        const bytes sent = numbers(to_.count, of(me_, 1));
        c_.expect(origin_->write(0, sent.data(), sent.size()), "fill");
    }
    void write_own() { own_.write(numbers(mine_.count, of(me_, 0))); }
    void start()
    {
        const std::size_t quarter = to_.count / 4;
        const auto n = static_cast<int>(quarter);
        const MPI_Datatype type = MPI_INT64_T;
        const auto at = [&](std::size_t part) {
            return to_.at + static_cast<MPI_Aint>(part * quarter * number_bytes) / to_.unit;
        };
        const auto from = [&](std::size_t part) {
            return origin_->at(part * quarter * number_bytes);
        };
        const auto into = [&](std::size_t part) {
            return result_->at(part * quarter * number_bytes);
        };
        c_.mpi(MPI_Put(from(0), n, type, target_, at(0), n, type, window_), what_);
        c_.mpi(MPI_Accumulate(from(1), n, type, target_, at(1), n, type, MPI_SUM, window_), what_);
        c_.mpi(MPI_Get_accumulate(from(2), n, type, into(2), n, type, target_, at(2), n, type,
                                  MPI_SUM, window_),
               what_);
        c_.mpi(MPI_Get(into(3), n, type, target_, at(3), n, type, window_), what_);
    }
    void check()
    {
        const bytes sent = numbers(mine_.count, of(source_, 1));
        bytes wanted = numbers(mine_.count, of(me_, 0));
        for (std::size_t i = 0; i < 3 * (mine_.count / 4); ++i) {
            const rule how = i < mine_.count / 4 ? rule::replace : rule::sum;
            long_element().combine(how, sent.data() + i * number_bytes,
                                   wanted.data() + i * number_bytes);
        }
        expect_same(c_, own_.read(wanted.size()), wanted, what_ + ": the window");
    }
    void finish()
    {
        const bytes wanted = numbers(to_.count, of(target_, 0));
        const std::size_t half = wanted.size() / 2;
        bytes found(wanted.size() - half);
        c_.expect(result_->compare_poison(0, half), what_ + ": before the result");
        c_.expect(result_->read(half, found.data(), found.size()), what_);
        expect_same(c_, found, bytes(wanted.begin() + static_cast<long>(half), wanted.end()),
                    what_ + ": the result");
        c_.expect(result_->compare_poison(wanted.size(), guard_bytes),
                  what_ + ": behind the result");
        origin_.reset();
        result_.reset();
    }

  private:
    static constexpr std::size_t number_bytes = sizeof(std::int64_t);
    std::uint64_t of(int rank, int role) const
    {
        return seed_ + mixed(static_cast<std::uint64_t>(rank * 4 + role));
    }

    context &c_;
    MPI_Comm comm_;
    MPI_Win window_;
    region mine_;
    own_memory own_;
    std::string what_;
    int me_ = 0;
    int ranks_ = 0;
    int target_ = 0;
    int source_ = 0;
    region to_;
    std::uint64_t seed_ = 0;
    std::unique_ptr<buffer> origin_;
    std::unique_ptr<buffer> result_;
};

// Parts of windows-flavours, in exchange_windows_many.cc.
void dynamic_windows(context &c);
void several_windows(context &c);
void many_puts_in_order(context &c, memory_kind kind);
void many_windows(context &c);

// An attribute of a window that is a number.
void expect_attribute(context &c, MPI_Win window, int key, long long wanted, const char *name);

} // namespace gpusm::exchange::windows

#endif
