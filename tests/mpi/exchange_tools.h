// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_tools.h: what several subtests about memory, contexts and devices need besides
// exchange.h: contexts and devices of one's own, checked messages between given buffers, and the
// way that messages are expected to go.
#ifndef GPUSM_TESTS_MPI_EXCHANGE_TOOLS_H
#define GPUSM_TESTS_MPI_EXCHANGE_TOOLS_H

#include "tests/mpi/exchange.h"
#include "tests/driver_functions.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>

namespace gpusm::exchange {

// A context that the program makes beside the primary one, and may destroy; current when it is
// made. It is not destroyed by itself. The process ends when the driver refuses.
class own_context {
  public:
    explicit own_context(const context &c);
    bool make_current() const;
    bool destroy();

  private:
    CUcontext context_ = nullptr;
};

CUcontext current_context();

// The contexts of devices that this process has not asked for are not there: for all visible
// devices but those numbers. Starts the driver if the process has not.
void expect_no_context_elsewhere(context &c, const std::vector<int> &own);

// What is taken of the current context's device, by all processes.
std::size_t taken_bytes();
// Of freed memory, what a peer may keep mapped for a second or two: so many bytes on the current
// context's device (import_table::kept_part), and so many allocations
// (mapping_cache::max_kept_entries).
std::size_t kept_bytes();
inline constexpr std::size_t kept_allocations = 16;

// How many devices this process sees.
int device_count();
// The device after this rank's own one. Null, with the subtest skipped, when this rank or its peer
// sees only one.
std::unique_ptr<device> second_device(context &c);

// Shorter messages are not written by their sender: pushed_least_bytes of the component.
inline constexpr std::size_t direct_from_bytes = 32768;

// Which way messages from memory of a kind are expected to go, once both ranks know each other.
// Said by expected_way(), and nowhere else.
enum class way {
    get,         // fetched by the receiver out of the sender's memory
    device_ring, // through a ring on the receiver's device, or in host memory if it goes there
    direct,      // into device memory: written there by the sender, and counted as fetched
    host_ring,   // into device memory: fetched out of a ring in host memory
    staged,      // through host fragments
};
way expected_way(memory_kind source, std::size_t len_bytes);

// Which way messages went since it was made.
class way_watch {
  public:
    way_watch() : before_(read()) {}
    // What is expected: messages of that kind and length. (A ring for host memory is not on a
    // device.)
    void sent(memory_kind source, std::size_t len_bytes, int messages = 1);
    void received(memory_kind source, std::size_t len_bytes, int messages = 1,
                  memory_kind into = memory_kind::device);
    // As many each way.
    void swapped(memory_kind source, std::size_t len_bytes, int messages = 1,
                 memory_kind into = memory_kind::device);
    // All of them have gone as expected.
    void check(context &c, const std::string &what) const;

  private:
    struct tally {
        unsigned long long got = 0;    // received by get, by way of a ring or not
        unsigned long long ring = 0;   // those by way of a ring on a device
        unsigned long long direct = 0; // those that the sender has written
        unsigned long long staged = 0; // sent by this rank
    };
    tally read() const;

    bench::path_counters counters_;
    tally before_;
    tally expected_;
};

// Ranks 0 and 1 have sent each other messages of that kind until they went the way that is expected
// of them. For these two ranks only.
bool until_expected_way(context &c, memory_kind kind);
// Likewise for every kind of memory in --kinds; when they do not, that is a failure.
bool all_by_their_ways(context &c);

// One message each way between ranks 0 and 1: all of `out` goes, and `in` is compared. The content
// is new. MPI has to leave the current context what it was. `out` and `in` may lie in different
// contexts, `enter_out` and `enter_in` make the right one current around filling and comparing, and
// `enter` the one in which MPI is called; empty: the one that is current.
struct surroundings {
    std::function<void()> enter_out;
    std::function<void()> enter_in;
    std::function<void()> enter;
};
void swap_checked(context &c, buffer &out, buffer &in, const std::string &what,
                  const surroundings &around = {});

// Messages both ways between ranks 0 and 1, each from and into an allocation of its own. They are
// prepared and compared where a context is current, so that what is between needs none.
class message_set {
  public:
    // As in `surroundings`, for the message of that number; set before one is added.
    std::function<void(std::size_t)> enter_out;
    std::function<void(std::size_t)> enter_in;
    std::function<void(std::size_t)> enter;

    message_set(context &c, std::size_t first_tag) : c_(c), first_tag_(first_tag) {}
    // On the rank's own device if nothing is said.
    void add(memory_kind from, memory_kind into, std::size_t len_bytes,
             const device *from_on = nullptr, const device *into_on = nullptr);
    std::size_t count() const { return out_.size(); }
    std::size_t length_of(std::size_t i) const { return out_[i]->len_bytes(); }
    void prepare(); // new content
    void exchange(std::size_t i) const;
    void exchange_at_once(const std::function<void()> &before_wait = {}) const;
    void compare(const std::string &what) const;
    void clear(); // for those who have to enter a context

  private:
    std::uint64_t seed_of(int sender, std::size_t i) const
    {
        return seed_ + 2 * i + static_cast<std::uint64_t>(sender);
    }
    int tag_of(std::size_t i) const { return static_cast<int>(first_tag_ + i); }

    context &c_;
    std::size_t first_tag_;
    std::uint64_t seed_ = 0;
    std::vector<std::unique_ptr<buffer>> out_;
    std::vector<std::unique_ptr<buffer>> in_;
};

void pause_ms(long ms);

// A word from one of ranks 0 and 1 to the other that MPI knows nothing of: a file that is there
// until it is given.
class sign {
  public:
    explicit sign(context &c); // for both of them
    void give() const;
    void wait() const; // the program has a deadline

  private:
    std::array<char, 64> path_{};
};

// Counters of all ranks, by which a rank waits outside MPI, where nothing of a transport goes on.
template <std::size_t count> class shared_counters {
  public:
    explicit shared_counters(context &c) : c_(c)
    {
        void *own = nullptr;
        c.mpi(MPI_Win_allocate_shared(0 == c.rank ? sizeof(*at_) : 0, 1, MPI_INFO_NULL,
                                      MPI_COMM_WORLD, &own, &shared_),
              "MPI_Win_allocate_shared");
        MPI_Aint bytes = 0;
        int unit = 0;
        c.mpi(MPI_Win_shared_query(shared_, 0, &bytes, &unit, &at_), "MPI_Win_shared_query");
        if (0 == c.rank) {
            at_->fill(0);
        }
        c.mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    }
    ~shared_counters() { c_.mpi(MPI_Win_free(&shared_), "MPI_Win_free"); }
    shared_counters(const shared_counters &) = delete;
    shared_counters &operator=(const shared_counters &) = delete;

    void add(std::size_t i) const { std::atomic_ref((*at_)[i]).fetch_add(1); }
    int of(std::size_t i) const { return std::atomic_ref((*at_)[i]).load(); }
    void wait(std::size_t i, int until) const // the program has a deadline
    {
        while (of(i) < until) {
            std::this_thread::yield();
        }
    }

  private:
    context &c_;
    MPI_Win shared_ = MPI_WIN_NULL;
    std::array<int, count> *at_ = nullptr;
};

} // namespace gpusm::exchange

#endif
