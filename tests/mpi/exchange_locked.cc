// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_locked.cc: host memory that the program has page-locked, all of it or parts, to and from
// memory of devices: every byte arrives, and nothing behind the end is touched, whichever way the
// messages go. How many the sender has written straight into device memory is printed.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::exchange {

namespace {

constexpr int tag = 121;
constexpr std::size_t guard_bytes = 64;
constexpr std::size_t direct_from_bytes = 32768; // direct_least_bytes of the component

// So many messages each way between ranks 0 and 1 at once, each in a place of its own, from `out`
// into `in`, which have room for all of them and the guards.
void swap_at_once(context &c, buffer &out, buffer &in, std::size_t len, int messages,
                  const std::string &what)
{
    const int peer = 1 - c.rank;
    const int n = static_cast<int>(len);
    const std::size_t stride = len + guard_bytes;
    const std::uint64_t seed = c.next_seed;
    c.next_seed += 2 * static_cast<std::uint64_t>(messages);
    const auto seed_of = [&](int rank, int i) {
        return seed + static_cast<std::uint64_t>(rank * messages + i);
    };
    at_step(what);
    (void)c.expect(in.poison(0, stride * static_cast<std::size_t>(messages)), "poison");
    std::vector<MPI_Request> requests(2 * static_cast<std::size_t>(messages), MPI_REQUEST_NULL);
    for (int i = 0; i < messages; ++i) {
        const std::size_t place = stride * static_cast<std::size_t>(i);
        (void)c.expect(out.fill(place, len, seed_of(c.rank, i)), "fill");
        (void)c.mpi(MPI_Irecv(in.at(place), n, MPI_BYTE, peer, tag + i, MPI_COMM_WORLD,
                              &requests[2 * static_cast<std::size_t>(i)]),
                    "MPI_Irecv");
    }
    for (int i = 0; i < messages; ++i) {
        (void)c.mpi(MPI_Isend(out.at(stride * static_cast<std::size_t>(i)), n, MPI_BYTE, peer,
                              tag + i, MPI_COMM_WORLD,
                              &requests[2 * static_cast<std::size_t>(i) + 1]),
                    "MPI_Isend");
    }
    if (!c.mpi(MPI_Waitall(2 * messages, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall")) {
        return;
    }
    for (int i = 0; i < messages; ++i) {
        const std::size_t place = stride * static_cast<std::size_t>(i);
        (void)c.expect(in.compare(place, len, seed_of(peer, i)), what);
        (void)c.expect(in.compare_poison(place + len, guard_bytes), what + ", behind the end");
        ++c.messages;
    }
}

// What has been written straight into memory of this rank since it was made.
class direct_count {
  public:
    direct_count() : counter_("btl_gpusm_direct_host_messages", MPI_T_PVAR_CLASS_COUNTER)
    {
        before_ = counter_.read();
    }
    bool available() const { return counter_.available(); }
    unsigned long long now() const { return counter_.read() - before_; }

  private:
    variable counter_;
    unsigned long long before_ = 0;
};

// Both ranks have been written to, or will not be: the first messages find the ranks without what
// they need of each other.
void until_direct(context &c, buffer &out, buffer &in, std::size_t len)
{
    constexpr int most_rounds = 20;
    const direct_count direct;
    const int peer = 1 - c.rank;
    for (int i = 0; i < most_rounds; ++i) {
        swap_at_once(c, out, in, len, 1, "until messages go directly");
        const int mine = 0 != direct.now() ? 1 : 0;
        int peers = 0;
        (void)c.mpi(MPI_Sendrecv(&mine, 1, MPI_INT, peer, tag, &peers, 1, MPI_INT, peer, tag,
                                 MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                    "MPI_Sendrecv");
        if (0 != mine && 0 != peers) {
            return;
        }
        pause_ms(10);
    }
}

} // namespace

// Whole allocations.
void test_locked(context &c)
{
    constexpr std::size_t lengths[] = {1,     4096,  20000,  direct_from_bytes - 1,
                                       32768, 65537, 300000, (5u << 20) + 3};
    constexpr std::size_t longest = (5u << 20) + 3;
    // More at once than one process asks of another.
    constexpr int at_once = 100;
    constexpr std::size_t one_of_many = 40000;
    constexpr std::size_t room =
        std::max(longest + guard_bytes, at_once * (one_of_many + guard_bytes));
    if (1 < c.rank) {
        return;
    }
    (void)until_by_get(c); // where a driver call is made to fail they may never do
    for (const memory_kind kind : c.kinds) {
        if (!bench::is_gpu(kind)) {
            continue;
        }
        const direct_count direct;
        int long_enough = 0;
        for (const std::size_t odd : {0u, 1u}) {
            auto host = c.make(memory_kind::page_locked, room, odd);
            auto on_device = c.make(kind, room, 3 * odd);
            until_direct(c, *host, *on_device, longest);
            const unsigned long long before = direct.now();
            for (const std::size_t len : lengths) {
                swap_at_once(c, *host, *on_device, len, 1,
                             describe(memory_kind::page_locked, kind, len, "alone"));
                long_enough += len >= direct_from_bytes ? 1 : 0;
                swap_at_once(c, *on_device, *host, len, 1,
                             describe(kind, memory_kind::page_locked, len, "alone"));
            }
            swap_at_once(c, *host, *on_device, one_of_many, at_once,
                         describe(memory_kind::page_locked, kind, one_of_many, "at once"));
            long_enough += at_once;
            swap_at_once(c, *on_device, *host, one_of_many, at_once,
                         describe(kind, memory_kind::page_locked, one_of_many, "at once"));
            if (direct.available()) {
                const unsigned long long written = direct.now() - before;
                std::printf("locked: into %c: %llu of %d directly\n", bench::letter_of(kind),
                            written, long_enough);
                (void)c.expect_true(written <= static_cast<unsigned>(long_enough),
                                    "no shorter message went directly");
            }
            long_enough = 0;
        }
    }
}

// From rank 1 to rank 0, one after the other; rank 1 moves nothing else.
void test_locked_one_way(context &c)
{
    constexpr int messages = 30;
    constexpr std::size_t len = 300000;
    const direct_count direct;
    auto host = c.make(memory_kind::page_locked, len);
    auto on_device = c.make(memory_kind::device, len + guard_bytes);
    const int n = static_cast<int>(len);
    for (int i = 0; i < messages && 2 > c.rank; ++i) {
        const std::uint64_t seed = c.next_seed++;
        at_step("one way");
        if (1 == c.rank) {
            (void)c.expect(host->fill(0, len, seed), "fill");
            (void)c.mpi(MPI_Ssend(host->data(), n, MPI_BYTE, 0, tag, MPI_COMM_WORLD), "MPI_Ssend");
            continue;
        }
        (void)c.expect(on_device->poison(), "poison");
        if (c.mpi(
                MPI_Recv(on_device->data(), n, MPI_BYTE, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                "MPI_Recv")) {
            (void)c.expect(on_device->compare(0, len, seed), "one way");
            (void)c.expect(on_device->compare_poison(len, guard_bytes), "one way, behind the end");
            ++c.messages;
        }
    }
    if (0 == c.rank) {
        std::printf("locked: into D: %llu of %d directly\n", direct.now(), messages);
    }
}

// Ordinary memory of which the program has page-locked nothing, parts, or all.
void test_locked_in_part(context &c)
{
    constexpr std::size_t page = 4096;
    constexpr std::size_t pages = 256;
    struct piece {
        std::size_t first, count; // pages
    };
    struct locking {
        const char *name;
        std::vector<piece> pieces;
    };
    const locking lockings[] = {
        {"nothing", {}},
        {"the first half", {{0, pages / 2}}},
        {"the second half", {{pages / 2, pages / 2}}},
        {"the middle", {{pages / 4, pages / 2}}},
        {"the ends", {{0, pages / 4}, {3 * pages / 4, pages / 4}}},
        {"two halves by themselves", {{0, pages / 2}, {pages / 2, pages / 2}}},
        {"all", {{0, pages}}},
    };
    // In bytes of the buffer; guards come behind.
    const piece messages[] = {{0, pages * page - guard_bytes},
                              {0, pages / 2 * page - guard_bytes},
                              {3, pages / 2 * page},
                              {pages / 2 * page - 1, direct_from_bytes},
                              {pages / 2 * page, pages / 2 * page - guard_bytes}};
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    const bench::driver_api &driver = c.gpu->driver();
    // All of them stay, so that each has addresses of its own: that nobody has page-locked what is
    // at an address is believed for a while.
    std::vector<std::unique_ptr<buffer>> hosts;
    for (const locking &each : lockings) {
        const auto &host = hosts.emplace_back(c.make(memory_kind::host, pages * page));
        auto on_device = c.make(memory_kind::device, pages * page);
        for (const piece &part : each.pieces) {
            (void)c.expect_true(
                CUDA_SUCCESS ==
                    driver.mem_host_register(host->at(part.first * page), part.count * page, 0),
                "memory can be registered");
        }
        const direct_count direct;
        const variable singly("btl_gpusm_single_submissions", MPI_T_PVAR_CLASS_COUNTER);
        const variable as_batches("btl_gpusm_batch_submissions", MPI_T_PVAR_CLASS_COUNTER);
        unsigned long long within_one = 0;
        for (const piece &at : messages) {
            const auto holds = [&](const piece &part) {
                return part.first * page <= at.first &&
                       at.first + at.count <= (part.first + part.count) * page;
            };
            const bool at_once = std::any_of(each.pieces.begin(), each.pieces.end(), holds);
            within_one += at_once ? 1 : 0;
            const std::uint64_t seed = c.next_seed;
            c.next_seed += 4;
            const std::string what = std::string("page-locked: ") + each.name + ", from byte " +
                                     std::to_string(at.first);
            // There and back, over the same memory.
            for (const bool into_device : {true, false}) {
                buffer &out = into_device ? *host : *on_device;
                buffer &in = into_device ? *on_device : *host;
                const auto seed_of = [&](int rank) {
                    return seed + static_cast<std::uint64_t>(2 * rank) + (into_device ? 1 : 0);
                };
                const int n = static_cast<int>(at.count);
                at_step(what);
                const unsigned long long before = singly.read() + as_batches.read();
                (void)c.expect(out.fill(at.first, at.count, seed_of(c.rank)), "fill");
                (void)c.expect(in.poison(), "poison");
                if (c.mpi(MPI_Sendrecv(out.at(at.first), n, MPI_BYTE, 1 - c.rank, tag,
                                       in.at(at.first), n, MPI_BYTE, 1 - c.rank, tag,
                                       MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                          "MPI_Sendrecv")) {
                    (void)c.expect(in.compare(at.first, at.count, seed_of(1 - c.rank)), what);
                    (void)c.expect(in.compare_poison(at.first + at.count, guard_bytes),
                                   what + ", behind the end");
                    ++c.messages;
                }
                if (at_once && !into_device && direct.available()) {
                    (void)c.expect_true(singly.read() + as_batches.read() == before + 1,
                                        what + ", back in one copy");
                }
            }
        }
        if (direct.available()) {
            (void)c.expect_true(direct.now() == within_one,
                                std::string("directly what lies within one piece, page-locked: ") +
                                    each.name);
        }
        for (const piece &part : each.pieces) {
            (void)driver.mem_host_unregister(host->at(part.first * page));
        }
    }
}

// Memory that the program page-locks, and lets go again, when it has already been sent from and
// received into.
void test_locked_later(context &c)
{
    constexpr int messages = 40;
    constexpr std::size_t len = 300000;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    const bench::driver_api &driver = c.gpu->driver();
    auto host = c.make(memory_kind::host, len + guard_bytes);
    auto on_device = c.make(memory_kind::device, len + guard_bytes);
    for (int round = 0; round < 2; ++round) {
        const auto both_ways = [&](const char *what) {
            for (int i = 0; i < messages; ++i) {
                swap_at_once(c, *host, *on_device, len, 1, what);
                swap_at_once(c, *on_device, *host, len, 1, what);
            }
        };
        const direct_count before;
        both_ways("before it is page-locked");
        (void)c.expect_true(0 == before.now(), "ordinary memory goes in pieces");
        (void)c.expect_true(CUDA_SUCCESS == driver.mem_host_register(host->at(0), len, 0),
                            "memory can be registered");
        const direct_count after;
        both_ways("page-locked since");
        const variable singly("btl_gpusm_single_submissions", MPI_T_PVAR_CLASS_COUNTER);
        const variable as_batches("btl_gpusm_batch_submissions", MPI_T_PVAR_CLASS_COUNTER);
        const unsigned long long submitted = singly.read() + as_batches.read();
        swap_at_once(c, *on_device, *host, len, 1, "page-locked since, once more");
        if (after.available()) {
            (void)c.expect_true(after.now() >= messages / 2, "it goes directly before long");
            (void)c.expect_true(singly.read() + as_batches.read() == submitted + 1,
                                "and comes back in one copy");
        }
        (void)driver.mem_host_unregister(host->at(0));
    }
}

// Device memory that the sender has written to, and so has mapped, comes back when it is freed:
// what is taken of the receiver's device is at most one buffer more than its program holds.
void test_locked_life(context &c)
{
    constexpr std::size_t buffer_bytes = std::size_t{64} << 20;
    constexpr std::size_t slack_bytes = std::size_t{32} << 20; // what the driver takes for itself
    constexpr std::size_t len = 300000;
    const int rounds = 0 < c.rounds ? c.rounds : 30;
    if (1 < c.rank) {
        return;
    }
    const auto taken = [] {
        std::size_t free_bytes = 0;
        std::size_t total_bytes = 0;
        (void)more_driver().mem_get_info(&free_bytes, &total_bytes);
        return total_bytes - free_bytes;
    };
    auto host = c.make(memory_kind::page_locked, len);
    {
        auto first = c.make(memory_kind::device, len + guard_bytes);
        until_direct(c, *host, *first, len);
    }
    const direct_count direct;
    const std::size_t before = taken();
    std::size_t most = 0;
    for (int i = 0; i < rounds; ++i) {
        const std::uint64_t seed = c.next_seed++;
        at_step("memory that was written to and freed, round " + std::to_string(i));
        if (1 == c.rank) {
            (void)c.expect(host->fill(0, len, seed), "fill");
            (void)c.mpi(MPI_Ssend(host->data(), len, MPI_BYTE, 0, tag, MPI_COMM_WORLD),
                        "MPI_Ssend");
            continue;
        }
        auto on_device = c.make(memory_kind::device, buffer_bytes);
        (void)c.expect(on_device->poison(0, len + guard_bytes), "poison");
        if (c.mpi(MPI_Recv(on_device->data(), len, MPI_BYTE, 1, tag, MPI_COMM_WORLD,
                           MPI_STATUS_IGNORE),
                  "MPI_Recv")) {
            (void)c.expect(on_device->compare(0, len, seed), "memory of this round");
            (void)c.expect(on_device->compare_poison(len, guard_bytes), "behind the end");
            ++c.messages;
        }
        on_device.reset();
        const std::size_t now = taken();
        most = std::max(most, now > before ? now - before : 0);
    }
    if (0 == c.rank) {
        std::printf("life: page-locked memory written into %d buffers of 64 MiB, %llu directly: at "
                    "most %.1f MiB taken beyond what was held\n",
                    rounds, direct.now(), static_cast<double>(most) / (1 << 20));
        (void)c.expect_true(most <= buffer_bytes + slack_bytes, "freed memory comes back");
        (void)c.expect_true(direct.now() == static_cast<unsigned>(rounds),
                            "every message went directly");
    }
}

} // namespace gpusm::exchange
