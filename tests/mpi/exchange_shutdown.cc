// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_shutdown.cc: CUDA ends before MPI does: the program destroys its context, resets or
// releases the primary one, or the whole driver is gone when MPI_Finalize is called. Messages
// between host memories go on, and MPI_Finalize ends as always. That nothing is printed is for the
// shell driver to see.
#include "tests/mpi/exchange_tools.h"

#include <cstdio>

namespace gpusm::exchange {

namespace {

constexpr std::size_t lengths[] = {8, 4096, 65535, 3u << 20};

// Messages of every length from and to memory that outlives this function, because its context ends
// with it in it. (Nobody frees it: a destroyed context has freed it already.)
void use(context &c, const std::string &what)
{
    constexpr int rounds = 5;
    for (const std::size_t len : lengths) {
        auto out = c.make(memory_kind::device, len);
        auto in = c.make(memory_kind::device, len);
        for (int i = 0; i < rounds; ++i) {
            swap_checked(c, *out, *in, what);
        }
        (void)out.release();
        (void)in.release();
    }
    MPI_Barrier(MPI_COMM_WORLD); // a peer may still read
}

void talk_on(context &c, const std::string &what)
{
    constexpr int rounds = 200; // enough calls of progress for all that is done now and then
    auto out = c.make(memory_kind::host, 5000);
    auto in = c.make(memory_kind::host, 5000);
    for (int i = 0; i < rounds; ++i) {
        swap_checked(c, *out, *in, "host memory " + what);
    }
}

void reset_primary(context &c)
{
    c.expect_true(CUDA_SUCCESS == more_driver().primary_reset(c.gpu->ordinal()),
                  "the primary context can be reset");
    (void)c.gpu.release(); // what it held is gone
}

} // namespace

// Contexts that come and go while nothing is in flight. Messages go on in the primary one.
void test_context_destroyed(context &c)
{
    constexpr int contexts = 3;
    constexpr std::size_t messages = 64;
    constexpr std::size_t len = 1024;
    const std::size_t room = end_of(side_by_side(messages, len, 0));
    const auto windows = [&](buffer &out, buffer &in) {
        for (int i = 0; i < 5; ++i) {
            swap_side_by_side(c, out, in, len, messages, 81, "a window");
        }
        MPI_Barrier(MPI_COMM_WORLD);
    };
    auto out = c.make(memory_kind::device, room);
    auto in = c.make(memory_kind::device, room);
    for (int i = 0; i < contexts; ++i) {
        own_context own(c);
        use(c, "in a context of the program's own");
        windows(*c.make(memory_kind::device, room), *c.make(memory_kind::device, room));
        c.expect_true(own.destroy(), "the context can be destroyed");
        talk_on(c, "after the context was destroyed");
        windows(*out, *in);
    }
    own_context last(c);
    use(c, "in another context");
    c.expect_true(last.destroy(), "the context can be destroyed");
}

void test_primary_reset(context &c)
{
    use(c, "in the primary context");
    reset_primary(c);
    talk_on(c, "after the primary context was reset");
}

void test_primary_released(context &c)
{
    use(c, "in the primary context");
    c.gpu.reset(); // the last to hold it, unless MPI does
    talk_on(c, "after the primary context was released");
}

// cudaDeviceReset, and a new primary context, usually with the handle of the old one, in which MPI
// has nothing to do: what it had in the old one is not there.
void test_primary_renewed(context &c)
{
    use(c, "in the primary context");
    reset_primary(c);
    c.use_gpu();
    auto untouched = c.make(memory_kind::device, 4096);
    c.expect(untouched->fill(0, 4096, 7), "fill");
    talk_on(c, "after the primary context was renewed");
    c.expect(untouched->compare(0, 4096, 7), "memory of the new context");
}

// cudaDeviceReset in the middle of a program, which then goes on with the same device.
void test_primary_again(context &c)
{
    constexpr int times = 3;
    for (int i = 0; i < times; ++i) {
        use(c, "in the primary context, time " + std::to_string(i));
        reset_primary(c);
        talk_on(c, "after a reset");
        c.use_gpu();
    }
    use(c, "in the primary context, at last");
}

// The handler that calls MPI_Finalize runs after the driver's own.
void test_finalize_at_exit(context &c)
{
    c.use_gpu();
    if (c.expect_true(until_by_get(c), "messages go by get at last")) {
        use(c, "before exit");
        (void)c.gpu.release(); // the driver ends with everything in it
    }
}

void finalize_at_exit()
{
    CUcontext current = nullptr;
    const CUresult answer = more_driver().ctx_get_current(&current);
    at_step("MPI_Finalize at exit");
    MPI_Finalize();
    std::printf("exchange: finalized at exit, with a driver that answered %d\n",
                static_cast<int>(answer));
    std::fflush(stdout);
}

} // namespace gpusm::exchange
