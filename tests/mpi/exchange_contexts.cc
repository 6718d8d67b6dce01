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

} // namespace

// Threads that never made a context current, beside one whose context is taken away while MPI is
// called; the very first GPU message comes from such a thread.
void test_threads_without_context(context &c)
{
    constexpr std::size_t threads = 4;
    constexpr std::size_t each = 25;
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
        message_set all(c, tag);
        for (std::size_t i = 0; i < threads * each + 1; ++i) {
            all.add(from, plain, lengths[i % std::size(lengths)]);
        }
        all.prepare();
        way_watch watch;
        c.expect_true(CUDA_SUCCESS == c.gpu->driver().ctx_set_current(nullptr),
                      "the context can be taken away");
        std::vector<std::thread> running;
        at_step(what);
        for (std::size_t t = 0; t < threads; ++t) {
            running.emplace_back([&, t] {
                c.expect_true(nullptr == current_context(), "a new thread has no context");
                for (std::size_t i = 0; i < each; ++i) {
                    all.exchange(t * each + i);
                }
            });
        }
        all.exchange(threads * each);
        for (std::thread &thread : running) {
            thread.join();
        }
        c.use_gpu();
        all.compare(what);
        if (known) {
            for (std::size_t i = 0; i < all.count(); ++i) {
                watch.swapped(from, all.length_of(i));
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
    own_context other(c);
    const auto enter = [&](bool own) {
        c.expect_true(own ? other.make_current() : c.gpu->make_current().empty(),
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
    message_set in_flight(c, tag);
    in_flight.enter_out = in_flight.enter_in = [&](std::size_t i) { enter(0 != i); };
    in_flight.add(plain, plain, len);
    in_flight.add(plain, plain, len);
    for (int i = 0; i < 8; ++i) {
        at_step("context switched while messages are in flight");
        const bool posted_in_own = 0 != i % 2;
        in_flight.prepare();
        in_flight.enter = [&](std::size_t) { enter(posted_in_own); };
        in_flight.exchange_at_once([&] { enter(!posted_in_own); });
        in_flight.compare("context switched in flight");
        watch.swapped(plain, len, 2);
    }
    in_flight.clear();
    watch.check(c, "context switched");
    // Many at once, for which the gather kernel is loaded, in each context.
    for (const bool own : {false, true}) {
        enter(own);
        for (int i = 0; i < 4; ++i) {
            swap_side_by_side(c, *out[own], *in[own], 100, 64, tag, "a window in one context");
        }
    }
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
    auto host = c.make(memory_kind::host, len);
    const auto swap_some = [&](const std::string &what) {
        auto on_device = c.make(plain, len);
        for (int i = 0; i < 4; ++i) {
            swap_checked(c, *host, *on_device, "host memory into " + what);
            swap_checked(c, *on_device, *host, "host memory out of " + what);
        }
    };
    own_context first(c);
    c.expect_true(first.make_current(), "the context can be made current");
    swap_some("a context of its own");
    c.expect_true(c.gpu->make_current().empty(), "another one can be made current");
    swap_some("another one");
    c.expect_true(first.destroy(), "the first one can be destroyed");
    c.expect_true(c.gpu->make_current().empty(), "the other one can be made current");
    swap_some("the other one, after that");
}

namespace {

// A fill that returns before it is done, unless its context or the memory is marked, and a message
// from there.
void send_filled(context &c, const buffer &out, buffer &in, const char *what)
{
    static unsigned char value = 0;
    const auto expected = static_cast<char>(++value);
    c.expect(in.poison(), "poison");
    at_step(what);
    c.expect_true(CUDA_SUCCESS == CU(cuMemsetD8)(bench::address_of(out), value, out.len_bytes()),
                  "cuMemsetD8");
    c.send_receive(out.data(), out.len_bytes(), in.data(), in.len_bytes(), 1 - c.rank, tag);
    std::string content(in.len_bytes(), 0);
    c.expect(in.read(0, content.data(), content.size()), "read");
    c.expect_true(content == std::string(in.len_bytes(), expected), what);
    ++c.messages;
}

// What a peer has freed stays mapped for a second or two in which MPI is called: waits so long for
// the device to have less than that taken, in both ranks.
bool taken_less_than(std::size_t bytes, double seconds)
{
    const double end = MPI_Wtime() + seconds;
    int state[2] = {0, 0}; // it has, and there is time left
    do {
        state[0] = taken_bytes() < bytes ? 1 : 0;
        state[1] = MPI_Wtime() < end ? 1 : 0;
        MPI_Allreduce(MPI_IN_PLACE, state, 2, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    } while (0 == state[0] && 0 != state[1]);
    return 0 != state[0];
}

} // namespace

// Memory that two contexts of a device use, of which the first is then destroyed: here, and in the
// peer, which has mapped it there.
void test_context_of_two_destroyed(context &c)
{
    constexpr std::size_t len = 8 << 20;
    constexpr int rounds = 3;
    c.use_gpu();
    for (const memory_kind kind : c.kinds) {
        std::size_t taken_before = 0;
        for (int i = 0; i < rounds; ++i) {
            if (1 == i) {
                (void)taken_less_than(0, 3);
                taken_before = taken_bytes();
            }
            own_context first(c);
            own_context second(c);
            const auto enter = [&c](const own_context &which) {
                c.expect_true(which.make_current(), "the context can be made current");
            };
            enter(first);
            auto in_first = c.make(plain, len);
            swap_checked(c, *c.make(plain, len), *in_first, "the first of two contexts");
            enter(second);
            auto out = c.make(kind, len);
            auto in = c.make(plain, len);
            surroundings around;
            around.enter = [&] { enter(first); };
            for (int message = 0; message < 3; ++message) {
                swap_checked(c, *out, *in_first, "two contexts, called in the first", around);
            }
            enter(second);
            for (int message = 0; message < 3; ++message) {
                send_filled(c, *out, *in, "two contexts, called in the second");
            }
            MPI_Barrier(MPI_COMM_WORLD); // the peer may still read
            (void)in_first.release();
            c.expect_true(first.destroy(), "the first one can be destroyed");
            enter(second);
            for (int message = 0; message < 3; ++message) {
                send_filled(c, *out, *in, "two contexts, of which the first is destroyed");
            }
            MPI_Barrier(MPI_COMM_WORLD);
            out.reset();
            in.reset();
            c.expect_true(second.destroy(), "the second one can be destroyed");
            c.expect(c.gpu->make_current(), "the primary context can be made current");
            MPI_Barrier(MPI_COMM_WORLD);
        }
        // The driver keeps some MiB for itself, less than one of the buffers.
        if (!taken_less_than(taken_before + len, 20)) {
            c.expect(std::to_string(taken_bytes()) + " bytes are taken, and were " +
                         std::to_string(taken_before),
                     "no memory stays taken");
        }
    }
}

// cudaSetDevice after MPI_Init, and messages before.
void test_device_switched(context &c)
{
    constexpr std::size_t len = 100000;
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
    around.enter = [&] { c.expect(second->make_current(), "the second device"); };
    for (int i = 0; i < 20; ++i) {
        swap_checked(c, *out, *in, "after the device was switched", around);
        c.expect_true(current_context() != nullptr, "a context is still current");
    }
    // What was made on the first one is still of use.
    around.enter_out = [&] { c.expect(c.gpu->make_current(), "the first device"); };
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
    constexpr std::size_t messages = 64;
    constexpr int rounds = 20;
    const auto second = second_device(c);
    if (nullptr == second) {
        return;
    }
    const device *const both[2] = {c.gpu.get(), second.get()};
    const auto enter = [&](std::size_t which) {
        c.expect(both[which % 2]->make_current(), "a device can be made current");
    };
    message_set all(c, tag);
    all.enter_out = enter;
    all.enter_in = [&](std::size_t i) { enter(i / 2); };
    for (std::size_t i = 0; i < messages; ++i) {
        all.add(plain, plain, lengths[i / 4 % std::size(lengths)], both[i % 2], both[i / 2 % 2]);
    }
    way_watch watch;
    for (std::size_t round = 0; round < rounds; ++round) {
        const std::string what = "two devices, window " + std::to_string(round);
        at_step(what);
        all.prepare();
        all.enter = [&](std::size_t i) { enter(i / 16 + round); };
        all.exchange_at_once();
        all.compare(what);
    }
    watch.swapped(plain, 0, rounds * static_cast<int>(messages));
    watch.check(c, "two devices");
    all.clear();
    c.use_gpu();
    expect_no_context_elsewhere(c, {both[0]->ordinal(), both[1]->ordinal()});
}

namespace {

// Some messages from each kind of memory; what this rank uses of it instead is up to `own`.
template <typename Own> void swap_every_kind(context &c, const char *what, Own &&own)
{
    constexpr int rounds = 10;
    for (const memory_kind kind : c.kinds) {
        for (const std::size_t len : lengths) {
            auto out = c.make(own(kind), len);
            auto in = c.make(own(kind), len);
            for (int i = 0; i < rounds; ++i) {
                swap_checked(c, *out, *in, describe(kind, kind, len, what));
            }
        }
    }
}

} // namespace

// Rank 1 never uses CUDA, and rank 0 sends it device memory all the same. Rank 1 gets no context on
// any device.
void test_never(context &c)
{
    if (0 == c.rank) {
        c.use_gpu();
    }
    swap_every_kind(c, "never CUDA",
                    [&](memory_kind kind) { return 0 == c.rank ? kind : memory_kind::host; });
    expect_no_context_elsewhere(c, 0 == c.rank ? std::vector<int>{c.gpu->ordinal()}
                                               : std::vector<int>{});
}

// Messages from and to every kind of memory make no context on a device that the program does not
// use, though the peer's memory is on one of them.
void test_elsewhere(context &c)
{
    swap_every_kind(c, "devices of others", [](memory_kind kind) { return kind; });
    expect_no_context_elsewhere(c, {c.gpu->ordinal()});
}

} // namespace gpusm::exchange
