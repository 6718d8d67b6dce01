// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_locked.cc: host memory that the program has page-locked, all of it or parts, to and from
// memory of devices: every byte arrives, and nothing behind the end is touched, whichever way the
// messages go. How many the sender has written straight into device memory is printed.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <cstdio>

namespace gpusm::exchange {

namespace {

constexpr int tag = 121;
constexpr std::size_t guard_bytes = bench::placement::guard_bytes;

// What has been written straight into memory of this rank, and how many copies of the driver's it
// has asked for, since it was made.
class direct_count {
  public:
    direct_count() : before_(counters_.read()) {}
    bool available() const { return counters_.available(); }
    unsigned long long now() const { return since_then()["pushed_messages"]; }
    unsigned long long copies() const
    {
        bench::path_counts used = since_then();
        return used["single_submissions"] + used["batch_submissions"];
    }

  private:
    bench::path_counts since_then() const { return bench::since(before_, counters_.read()); }

    bench::path_counters counters_;
    bench::path_counts before_;
};

// Both ranks have been written to, or will not be: the first messages find the ranks without what
// they need of each other.
void until_direct(context &c, buffer &out, buffer &in, std::size_t len)
{
    (void)until_counted(c, {"pushed_messages"}, 20, [&] {
        swap_side_by_side(c, out, in, len, 1, tag, "until messages go directly");
    });
}

// A message from rank 1 to rank 0, checked.
void send_one_way(context &c, buffer &host, buffer *on_device, const std::string &what)
{
    const std::uint64_t seed = c.draw_seeds(1);
    const std::size_t len = host.len_bytes();
    at_step(what);
    if (1 == c.rank) {
        c.expect(host.fill(0, len, seed), "fill");
        c.mpi(MPI_Ssend(host.data(), static_cast<int>(len), MPI_BYTE, 0, tag, MPI_COMM_WORLD),
              "MPI_Ssend");
        return;
    }
    c.expect(on_device->poison(0, len + guard_bytes), "poison");
    if (c.receive(on_device->data(), len, 1, tag)) {
        c.expect(on_device->compare(0, len, seed), what);
        c.expect(on_device->compare_poison(len, guard_bytes), what + ", behind the end");
        ++c.messages;
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
    constexpr std::size_t at_once = 100;
    constexpr std::size_t one_of_many = 40000;
    constexpr std::size_t room =
        std::max(longest + guard_bytes, at_once * (one_of_many + guard_bytes));
    (void)until_by_get(c); // where a driver call is made to fail they may never do
    for (const memory_kind kind : c.kinds) {
        if (!bench::is_gpu(kind)) {
            continue;
        }
        for (const std::size_t odd : {0u, 1u}) {
            auto host = c.make(memory_kind::page_locked, room, odd);
            auto on_device = c.make(kind, room, 3 * odd);
            until_direct(c, *host, *on_device, longest);
            const direct_count direct;
            unsigned long long long_enough = 0;
            const auto both_ways = [&](std::size_t len, std::size_t messages, const char *how) {
                swap_side_by_side(c, *host, *on_device, len, messages, tag,
                                  describe(memory_kind::page_locked, kind, len, how));
                swap_side_by_side(c, *on_device, *host, len, messages, tag,
                                  describe(kind, memory_kind::page_locked, len, how));
                long_enough += len >= direct_from_bytes ? messages : 0;
            };
            for (const std::size_t len : lengths) {
                both_ways(len, 1, "alone");
            }
            both_ways(one_of_many, at_once, "at once");
            if (direct.available()) {
                std::printf("locked: into %c: %llu of %llu directly\n", bench::letter_of(kind),
                            direct.now(), long_enough);
                c.expect_true(direct.now() <= long_enough, "no shorter message went directly");
            }
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
    for (int i = 0; i < messages; ++i) {
        send_one_way(c, *host, on_device.get(), "one way");
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
    const bench::driver_api &driver = c.gpu->driver();
    // All of them stay, so that each has addresses of its own: that nobody has page-locked what is
    // at an address is believed for a while.
    std::vector<std::unique_ptr<buffer>> hosts;
    for (const locking &each : lockings) {
        const auto &host = hosts.emplace_back(c.make(memory_kind::host, pages * page));
        auto on_device = c.make(memory_kind::device, pages * page);
        for (const piece &part : each.pieces) {
            c.expect_true(CUDA_SUCCESS == driver.mem_host_register(host->at(part.first * page),
                                                                   part.count * page, 0),
                          "memory can be registered");
        }
        const direct_count direct;
        unsigned long long within_one = 0;
        for (const piece &at : messages) {
            const bool in_one_piece =
                std::any_of(each.pieces.begin(), each.pieces.end(), [&](const piece &part) {
                    return part.first * page <= at.first &&
                           at.first + at.count <= (part.first + part.count) * page;
                });
            within_one += in_one_piece ? 1 : 0;
            const std::string what = std::string("page-locked: ") + each.name + ", from byte " +
                                     std::to_string(at.first);
            // There and back, over the same memory.
            const std::uint64_t seed = c.draw_seeds(4);
            for (const bool into_device : {true, false}) {
                buffer &out = into_device ? *host : *on_device;
                buffer &in = into_device ? *on_device : *host;
                const auto from = [&](int rank) {
                    const auto number = static_cast<std::uint64_t>(2 * rank) + into_device;
                    return window{{at.first, at.count, seed + number}};
                };
                const direct_count here;
                swap_windows(c, out, from(c.rank), in, from(1 - c.rank), tag, what);
                if (in_one_piece && !into_device && direct.available()) {
                    c.expect_true(1 == here.copies(), what + ", back in one copy");
                }
            }
        }
        if (direct.available()) {
            c.expect_true(direct.now() == within_one,
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
    const bench::driver_api &driver = c.gpu->driver();
    auto host = c.make(memory_kind::host, len + guard_bytes);
    auto on_device = c.make(memory_kind::device, len + guard_bytes);
    const auto both_ways = [&](const char *what) {
        for (int i = 0; i < messages; ++i) {
            swap_side_by_side(c, *host, *on_device, len, 1, tag, what);
            swap_side_by_side(c, *on_device, *host, len, 1, tag, what);
        }
    };
    for (int round = 0; round < 2; ++round) {
        const direct_count before;
        both_ways("before it is page-locked");
        c.expect_true(0 == before.now(), "ordinary memory goes in pieces");
        c.expect_true(CUDA_SUCCESS == driver.mem_host_register(host->at(0), len, 0),
                      "memory can be registered");
        if (before.available()) { // that it is pageable is believed for about a millisecond
            (void)until_counted(c, {"pushed_messages"}, 20, [&] { both_ways("just page-locked"); });
        }
        const direct_count after;
        both_ways("page-locked since");
        const direct_count once_more;
        swap_side_by_side(c, *on_device, *host, len, 1, tag, "page-locked since, once more");
        if (after.available()) {
            c.expect_true(after.now() >= messages / 2, "it goes directly before long");
            c.expect_true(1 == once_more.copies(), "and comes back in one copy");
        }
        (void)driver.mem_host_unregister(host->at(0));
    }
}

// Device memory that the sender has written to, and so has mapped, comes back when it is freed:
// what is taken of the receiver's device is at most one buffer more than its program holds, and
// what the sender may keep mapped.
void test_locked_life(context &c)
{
    constexpr std::size_t buffer_bytes = std::size_t{64} << 20;
    constexpr std::size_t slack_bytes = std::size_t{32} << 20; // what the driver takes for itself
    constexpr std::size_t len = 300000;
    const int rounds = 0 < c.rounds ? c.rounds : 30;
    auto host = c.make(memory_kind::page_locked, len);
    {
        auto room = c.make(memory_kind::page_locked, len + guard_bytes);
        auto first = c.make(memory_kind::device, len + guard_bytes);
        until_direct(c, *room, *first, len);
    }
    const direct_count direct;
    const std::size_t before = taken_bytes();
    std::size_t most = 0;
    for (int i = 0; i < rounds; ++i) {
        auto on_device = 0 == c.rank ? c.make(memory_kind::device, buffer_bytes) : nullptr;
        send_one_way(c, *host, on_device.get(),
                     "memory that is written to and freed, round " + std::to_string(i));
        on_device.reset();
        const std::size_t now = taken_bytes();
        most = std::max(most, now > before ? now - before : 0);
    }
    if (0 == c.rank) {
        std::printf("life: page-locked memory written into %d buffers of 64 MiB, %llu directly: at "
                    "most %.1f MiB taken beyond what was held\n",
                    rounds, direct.now(), static_cast<double>(most) / (1 << 20));
        c.expect_true(most <= (1 + kept_allocations) * buffer_bytes + slack_bytes,
                      "freed memory comes back");
        c.expect_true(direct.now() == static_cast<unsigned>(rounds), "every message went directly");
    }
}

} // namespace gpusm::exchange
