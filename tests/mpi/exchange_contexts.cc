// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_contexts.cc: threads without a context, contexts and devices that change after MPI_Init,
// several devices in one rank, ranks that never use CUDA, and devices that nobody asked for.
#include "tests/mpi/exchange_tools.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr int tag = 121;
constexpr std::size_t lengths[] = {8, 4096, 65535, 300000};
constexpr memory_kind plain = memory_kind::device;

// Allocations and what is expected of them, made and compared where there is a context, so that
// what is between needs none.
struct prepared {
    std::vector<std::unique_ptr<buffer>> out;
    std::vector<std::unique_ptr<buffer>> in;
    std::uint64_t seed = 0;

    prepared(context &c, memory_kind from, int messages)
    {
        seed = c.next_seed;
        c.next_seed += 2 * static_cast<std::uint64_t>(messages);
        for (int i = 0; i < messages; ++i) {
            const std::size_t len = lengths[static_cast<std::size_t>(i) % std::size(lengths)];
            out.push_back(c.make(from, len));
            in.push_back(c.make(plain, len));
            (void)c.expect(out.back()->fill(0, len, seed_of(c.rank, i)), "fill");
            (void)c.expect(in.back()->poison(), "poison");
        }
    }
    std::uint64_t seed_of(int sender, int i) const
    {
        return seed + 2 * static_cast<std::uint64_t>(i) + static_cast<std::uint64_t>(sender);
    }
    int messages() const { return static_cast<int>(out.size()); }
    // Message number i goes both ways.
    void exchange(context &c, int i) const
    {
        const auto at = static_cast<std::size_t>(i);
        const int n = static_cast<int>(out[at]->len_bytes());
        (void)c.mpi(MPI_Sendrecv(out[at]->data(), n, MPI_BYTE, 1 - c.rank, tag + i, in[at]->data(),
                                 n, MPI_BYTE, 1 - c.rank, tag + i, MPI_COMM_WORLD,
                                 MPI_STATUS_IGNORE),
                    "MPI_Sendrecv");
    }
    void compare(context &c, const std::string &what) const
    {
        for (int i = 0; i < messages(); ++i) {
            const buffer &memory = *in[static_cast<std::size_t>(i)];
            (void)c.expect(memory.compare(0, memory.len_bytes(), seed_of(1 - c.rank, i)),
                           what + ", message " + std::to_string(i));
            ++c.messages;
        }
    }
};

} // namespace

// Threads that never made a context current, beside one whose context is taken away while MPI is
// called; the very first GPU message comes from such a thread.
void test_threads_without_context(context &c)
{
    constexpr int threads = 4;
    constexpr int each = 25;
    if (1 < c.rank) {
        return;
    }
    struct {
        memory_kind from;
        bool known; // the ranks know each other
        const char *what;
    } const cases[] = {
        {plain, false, "threads without a context, from the first message on"},
        {plain, true, "threads without a context, by get"},
        {memory_kind::page_locked, true, "threads without a context, page-locked memory"},
    };
    for (const auto &[from, known, what] : cases) {
        if (known && !c.expect_true(until_by_get(c), "messages go by get at last")) {
            return;
        }
        const prepared all(c, from, threads * each + 1);
        way_watch watch;
        (void)c.expect_true(CUDA_SUCCESS == c.gpu->driver().ctx_set_current(nullptr),
                            "the context can be taken away");
        std::vector<std::thread> running;
        at_step(what);
        for (int t = 0; t < threads; ++t) {
            running.emplace_back([&, t] {
                (void)c.expect_true(nullptr == current_context(), "a new thread has no context");
                for (int i = 0; i < each; ++i) {
                    all.exchange(c, t * each + i);
                }
            });
        }
        all.exchange(c, threads * each);
        for (std::thread &thread : running) {
            thread.join();
        }
        c.use_gpu();
        all.compare(c, what);
        if (known) {
            for (const auto &each_out : all.out) {
                watch.swapped(from, each_out->len_bytes());
            }
            watch.check(c, what);
        }
    }
}

// Another context is made current after MPI_Init, and another one again: source, destination and
// the calls of MPI in each combination, and a switch while messages are in flight. MPI leaves the
// current context what it was.
void test_context_switched(context &c)
{
    constexpr std::size_t len = 40000;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    own_context other(c);
    const auto enter = [&](bool own) {
        (void)c.expect_true(own ? other.make_current() : c.gpu->make_current().empty(),
                            "the context can be made current");
    };
    std::unique_ptr<buffer> out[2];
    std::unique_ptr<buffer> in[2];
    for (const bool own : {false, true}) {
        enter(own);
        out[own] = c.make(plain, len);
        in[own] = c.make(plain, len);
    }
    way_watch watch;
    for (int i = 0; i < 24; ++i) {
        const bool from_own = 0 != (i & 1);
        const bool to_own = 0 != (i & 2);
        const bool call_in_own = 0 != (i & 4);
        surroundings around;
        around.enter_out = [&, from_own] { enter(from_own); };
        around.enter_in = [&, to_own] { enter(to_own); };
        around.enter = [&, call_in_own] { enter(call_in_own); };
        swap_checked(c, *out[from_own], *in[to_own], "context switched, " + std::to_string(i),
                     around);
        watch.swapped(plain, len);
    }
    for (int i = 0; i < 8; ++i) {
        at_step("context switched while messages are in flight");
        const bool posted_in_own = 0 != i % 2;
        const std::uint64_t seed = c.next_seed;
        c.next_seed += 2;
        MPI_Request requests[4] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL,
                                   MPI_REQUEST_NULL};
        for (const bool own : {false, true}) {
            enter(own);
            (void)c.expect(out[own]->fill(0, len, seed + static_cast<std::uint64_t>(c.rank)),
                           "fill");
            (void)c.expect(in[own]->poison(), "poison");
        }
        enter(posted_in_own);
        for (const bool own : {false, true}) {
            (void)c.mpi(MPI_Irecv(in[own]->data(), len, MPI_BYTE, 1 - c.rank, tag + own,
                                  MPI_COMM_WORLD, &requests[own]),
                        "MPI_Irecv");
            (void)c.mpi(MPI_Isend(out[own]->data(), len, MPI_BYTE, 1 - c.rank, tag + own,
                                  MPI_COMM_WORLD, &requests[2 + own]),
                        "MPI_Isend");
        }
        enter(!posted_in_own);
        (void)c.mpi(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
        for (const bool own : {false, true}) {
            enter(own);
            (void)c.expect(in[own]->compare(0, len, seed + static_cast<std::uint64_t>(1 - c.rank)),
                           "context switched in flight");
            ++c.messages;
            watch.swapped(plain, len);
        }
    }
    watch.check(c, "context switched");
    enter(true);
    out[1].reset();
    in[1].reset();
    enter(false);
}

// Host memory into two contexts and out of them, of which the first is then destroyed, and the
// other one again. What of the host's memory the first one had registered is not registered any
// more.
void test_host_context_destroyed(context &c)
{
    constexpr std::size_t len = 3 << 20;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    auto host = c.make(memory_kind::host, len);
    const auto swap_some = [&](const std::string &what) {
        auto on_device = c.make(plain, len);
        for (int i = 0; i < 4; ++i) {
            swap_checked(c, *host, *on_device, "host memory into " + what);
            swap_checked(c, *on_device, *host, "host memory out of " + what);
        }
    };
    own_context first(c);
    (void)c.expect_true(first.make_current(), "the context can be made current");
    swap_some("a context of its own");
    (void)c.expect_true(c.gpu->make_current().empty(), "another one can be made current");
    swap_some("another one");
    (void)c.expect_true(first.destroy(), "the first one can be destroyed");
    (void)c.expect_true(c.gpu->make_current().empty(), "the other one can be made current");
    swap_some("the other one, after that");
}

namespace {

// The device after this rank's own one. Null, with the subtest skipped, when this rank or its peer
// sees only one.
std::unique_ptr<device> second_device(context &c)
{
    const int mine = device_count();
    int peers = 0;
    (void)MPI_Sendrecv(&mine, 1, MPI_INT, 1 - c.rank, tag, &peers, 1, MPI_INT, 1 - c.rank, tag,
                       MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (mine < 2 || peers < 2) {
        c.skip_because = "needs two visible devices";
        return nullptr;
    }
    std::string why;
    auto found = device::open(bench::local_rank_from_environment() + 1, &why);
    if (nullptr == found) {
        std::fprintf(stderr, "exchange: rank %d: no second device: %s\n", c.rank, why.c_str());
        std::exit(exit_wrong);
    }
    return found;
}

} // namespace

// cudaSetDevice after MPI_Init, and messages before.
void test_device_switched(context &c)
{
    constexpr std::size_t len = 100000;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    auto first_out = c.make(plain, len);
    auto first_in = c.make(plain, len);
    swap_checked(c, *first_out, *first_in, "before the device is switched");
    const auto second = second_device(c); // and current, as cudaSetDevice makes it
    if (nullptr == second) {
        return;
    }
    way_watch watch;
    auto out = c.make_on(second.get(), plain, len);
    auto in = c.make_on(second.get(), plain, len);
    surroundings around;
    around.enter = [&] { (void)c.expect(second->make_current(), "the second device"); };
    for (int i = 0; i < 20; ++i) {
        swap_checked(c, *out, *in, "after the device was switched", around);
        (void)c.expect_true(current_context() != nullptr, "a context is still current");
    }
    // What was made on the first one is still of use.
    around.enter_out = [&] { (void)c.expect(c.gpu->make_current(), "the first device"); };
    for (int i = 0; i < 10; ++i) {
        swap_checked(c, *first_out, *in, "from the first device to the second", around);
    }
    std::swap(around.enter_out, around.enter_in);
    for (int i = 0; i < 10; ++i) {
        swap_checked(c, *out, *first_in, "from the second device to the first", around);
    }
    watch.swapped(plain, len, 20 + 10 + 10);
    watch.check(c, "device switched");
    (void)second->make_current();
    out.reset();
    in.reset();
    c.use_gpu();
}

// Both devices at once, each for source and destination, whichever is current.
void test_two_devices(context &c)
{
    constexpr std::size_t window = 64;
    constexpr int rounds = 20;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    const auto second = second_device(c);
    if (nullptr == second) {
        return;
    }
    const device *const both[2] = {c.gpu.get(), second.get()};
    const auto enter = [&](std::size_t which) {
        (void)c.expect(both[which % 2]->make_current(), "a device can be made current");
    };
    std::vector<std::unique_ptr<buffer>> out;
    std::vector<std::unique_ptr<buffer>> in;
    for (std::size_t i = 0; i < window; ++i) {
        const std::size_t len = lengths[i / 4 % std::size(lengths)];
        enter(i);
        out.push_back(c.make_on(both[i % 2], plain, len));
        enter(i / 2);
        in.push_back(c.make_on(both[i / 2 % 2], plain, len));
    }
    way_watch watch;
    for (int round = 0; round < rounds; ++round) {
        const std::string what = "two devices, window " + std::to_string(round);
        const std::uint64_t seed = c.next_seed;
        c.next_seed += 2 * window;
        const auto seed_of = [&](int sender, std::size_t i) {
            return seed + 2 * i + static_cast<std::uint64_t>(sender);
        };
        at_step(what);
        for (std::size_t i = 0; i < window; ++i) {
            enter(i);
            (void)c.expect(out[i]->fill(0, out[i]->len_bytes(), seed_of(c.rank, i)), "fill");
            enter(i / 2);
            (void)c.expect(in[i]->poison(), "poison");
        }
        std::vector<MPI_Request> requests(2 * window, MPI_REQUEST_NULL);
        for (std::size_t i = 0; i < window; ++i) {
            const int n = static_cast<int>(in[i]->len_bytes());
            enter(i / 16 + static_cast<std::size_t>(round));
            (void)c.mpi(MPI_Irecv(in[i]->data(), n, MPI_BYTE, 1 - c.rank, tag + static_cast<int>(i),
                                  MPI_COMM_WORLD, &requests[i]),
                        "MPI_Irecv");
            (void)c.mpi(MPI_Isend(out[i]->data(), n, MPI_BYTE, 1 - c.rank,
                                  tag + static_cast<int>(i), MPI_COMM_WORLD, &requests[window + i]),
                        "MPI_Isend");
        }
        (void)c.mpi(MPI_Waitall(2 * window, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
        for (std::size_t i = 0; i < window; ++i) {
            enter(i / 2);
            (void)c.expect(in[i]->compare(0, in[i]->len_bytes(), seed_of(1 - c.rank, i)),
                           what + ", message " + std::to_string(i));
            ++c.messages;
        }
    }
    watch.swapped(plain, 0, rounds * static_cast<int>(window));
    watch.check(c, "two devices");
    for (std::size_t i = 0; i < window; ++i) {
        enter(i);
        out[i].reset();
        enter(i / 2);
        in[i].reset();
    }
    c.use_gpu();
    expect_no_context_elsewhere(c, {both[0]->ordinal(), both[1]->ordinal()});
}

// Rank 1 never uses CUDA, and rank 0 sends it device memory all the same. Rank 1 gets no context on
// any device.
void test_never(context &c)
{
    constexpr int rounds = 10;
    if (1 < c.rank) {
        return;
    }
    if (0 == c.rank) {
        c.use_gpu();
    }
    for (const memory_kind kind : c.kinds) {
        for (const std::size_t len : lengths) {
            auto out = c.make(0 == c.rank ? kind : memory_kind::host, len);
            auto in = c.make(0 == c.rank ? kind : memory_kind::host, len);
            for (int i = 0; i < rounds; ++i) {
                swap_checked(c, *out, *in, describe(kind, memory_kind::host, len, "never CUDA"));
            }
        }
    }
    expect_no_context_elsewhere(c, 0 == c.rank ? std::vector<int>{c.gpu->ordinal()}
                                               : std::vector<int>{});
}

// Messages from and to every kind of memory make no context on a device that the program does not
// use, though the peer's memory is on one of them.
void test_elsewhere(context &c)
{
    constexpr int rounds = 5;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    for (const memory_kind kind : c.kinds) {
        for (const std::size_t len : lengths) {
            auto out = c.make(kind, len);
            auto in = c.make(kind, len);
            for (int i = 0; i < rounds; ++i) {
                swap_checked(c, *out, *in, describe(kind, kind, len, "devices of others"));
            }
        }
        expect_no_context_elsewhere(c, {c.gpu->ordinal()});
    }
}

} // namespace gpusm::exchange
