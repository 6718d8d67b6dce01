// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_lifetime.cc: peers, memory and contexts that end while something still names them: a
// message, a persistent request, the copies in flight, what gpusm has made in a context, and
// MPI_Finalize.
#include "tests/mpi/exchange_tools.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 81;
constexpr std::size_t window_messages = 64;
constexpr std::size_t window_len = 1024; // bytes of each

// Frees that memory, and allocates until it is there again, as another allocation at the same
// address, with the content of `seed`. False when it does not come back.
bool replace(context &c, std::unique_ptr<buffer> *memory, std::uint64_t seed)
{
    constexpr int most_tries = 64;
    const void *const address = (*memory)->data();
    const std::size_t len = (*memory)->len_bytes();
    memory->reset();
    std::vector<std::unique_ptr<buffer>> elsewhere; // kept, or it would be given out again
    do {
        elsewhere.push_back(c.make(memory_kind::device, len));
    } while (elsewhere.back()->data() != address && elsewhere.size() < most_tries);
    *memory = std::move(elsewhere.back());
    c.expect((*memory)->fill(0, len, seed), "fill");
    return (*memory)->data() == address;
}

// Nothing of MPI between the making of the request, the end of its memory and the start: whatever
// was found out about that memory is old then. Returns whether the memory was the same each time.
bool send_persistently(context &c, std::size_t len, std::uint64_t seed, int starts)
{
    const int n = static_cast<int>(len);
    auto memory = c.make(memory_kind::device, len);
    c.expect(memory->fill(0, len, seed), "fill");
    c.send(memory->data(), len, 1, tag);
    MPI_Request request = MPI_REQUEST_NULL;
    c.mpi(MPI_Send_init(memory->data(), n, MPI_BYTE, 1, tag, MPI_COMM_WORLD, &request),
          "MPI_Send_init");
    bool same = true;
    for (int i = 1; i <= starts; ++i) {
        same = replace(c, &memory, seed + static_cast<std::uint64_t>(i)) && same;
        if (same) {
            c.mpi(MPI_Start(&request), "MPI_Start");
            c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        } else {
            c.send(memory->data(), len, 1, tag);
        }
    }
    c.mpi(MPI_Request_free(&request), "MPI_Request_free");
    return same;
}

std::unique_ptr<buffer> make_room(context &c)
{
    return c.make(memory_kind::device, end_of(side_by_side(window_messages, window_len, 0)));
}

// Some of them both ways, checked.
void swap_some_windows(context &c, buffer &out, buffer &in)
{
    for (int i = 0; i < 5; ++i) {
        swap_side_by_side(c, out, in, window_len, window_messages, tag, "a window");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace

// "What a persistent send sends is what is in its buffer when it is started", though that memory
// was freed and allocated anew since the request was made. One line per length says how often the
// driver really gave the same address.
void test_persistent(context &c)
{
    constexpr std::size_t lengths[] = {8, 1024, 4U << 20};
    constexpr int rounds = 10;
    constexpr int starts = 2;
    for (const std::size_t len : lengths) {
        const std::string what = describe(memory_kind::device, memory_kind::device, len, "started");
        int same = 0;
        auto in = c.make(memory_kind::device, len);
        for (int round = 0; round < rounds; ++round) {
            at_step(what);
            const std::uint64_t seed = c.draw_seeds(starts + 1);
            if (0 == c.rank) {
                same += send_persistently(c, len, seed, starts) ? 1 : 0;
            }
            for (std::uint64_t i = 0; 1 == c.rank && i <= starts; ++i) {
                c.expect(in->poison(), "poison");
                c.receive(in->data(), len, 0, tag);
                c.expect(in->compare(0, len, seed + i), what);
                ++c.messages;
            }
        }
        if (0 == c.rank) {
            std::printf("persistent %zu bytes: the same address in %d of %d rounds\n", len, same,
                        rounds);
        }
    }
}

// The receiver destroys its context while copies into it are in flight. These messages are lost, by
// the program's own doing: they may fail, and Open MPI may end the program over it. But nobody
// crashes and nobody hangs. Ends without MPI_Finalize, for which the messages would have to end.
void test_context_lost(context &c)
{
    constexpr int rounds = 1000; // of a millisecond
    own_context passing(c);
    auto memory = make_room(c);
    swap_some_windows(c, *memory, *make_room(c));
    at_step("the window that is lost");
    requests under_way(c);
    for (std::size_t i = 0; i < window_messages; ++i) {
        void *at = memory->at(i * window_len);
        if (0 == c.rank) {
            under_way.send(at, window_len, 1, tag);
        } else {
            under_way.receive(at, window_len, 0, tag);
        }
    }
    int done = 0;
    int status = MPI_SUCCESS;
    const auto test = [&] {
        status = MPI_Testall(window_messages, under_way.all().data(), &done, MPI_STATUSES_IGNORE);
    };
    if (1 == c.rank) {
        pause_ms(200); // until all of them are there
        for (int i = 0; i < 5; ++i) {
            test();
        }
        std::printf("context-lost: %s when the context ends\n", 0 == done && MPI_SUCCESS == status
                                                                    ? "copies are in flight"
                                                                    : "nothing is left");
        c.expect_true(passing.destroy(), "the context can be destroyed");
        std::fflush(stdout);
    }
    for (int i = 0; i < rounds && 0 == done && MPI_SUCCESS == status; ++i) {
        test();
        pause_ms(1);
    }
    // The job ends with the first of them, and what matters is whether rank 1 comes here.
    if (0 == c.rank) {
        pause_ms(5000);
    }
    std::printf("context-lost: rank %d lives on\n", c.rank);
    std::fflush(stdout);
    _exit(exit_error);
}

// ---------------------------------------------------------------- a peer that makes no sense

namespace {

constexpr std::size_t closed_len = 2000; // in a fragment, which is not acknowledged
constexpr unsigned char closed_content = 0xa5;

// Everything from 64 bytes before the message on, in this process's mapping of its own segment:
// the headers of the fragment and of Open MPI.
bool overwrite_message(int rank)
{
    const std::string own = "." + std::to_string(rank) + ".";
    const std::vector<unsigned char> sent(closed_len, closed_content);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t name = line.find("/gpusm.");
        unsigned long from = 0;
        unsigned long to = 0;
        if (std::string::npos == name || line.find(own, name) == std::string::npos ||
            line.find("rw-s") == std::string::npos ||
            2 != std::sscanf(line.c_str(), "%lx-%lx", &from, &to)) {
            continue;
        }
        auto *begin = reinterpret_cast<unsigned char *>(from);
        auto *end = reinterpret_cast<unsigned char *>(to);
        auto *found = std::search(begin, end, sent.begin(), sent.end());
        if (found != end && found - begin >= 64) {
            std::memset(found - 64, 0xff, closed_len);
            return true;
        }
    }
    return false;
}

} // namespace

// A process whose shared memory is overwritten while a message lies in it. Its peer takes nothing
// of it any more, and says so to Open MPI, which ends the job.
void test_closed(context &c)
{
    std::vector<unsigned char> memory(closed_len, closed_content);
    // Rank 0 must make no call of MPI meanwhile, in which it would take the message.
    const sign outside(c);
    const sign overwritten(c);
    if (0 == c.rank) {
        outside.give();
        overwritten.wait();
    } else {
        outside.wait();
        c.send(memory.data(), closed_len, 0, tag);
        c.expect_true(overwrite_message(c.rank), "the message lies in this process's segment");
        overwritten.give();
    }
    c.receive(memory.data(), closed_len, 1 - c.rank, tag);
    c.expect_true(false, "the job has ended");
}

// ---------------------------------------------------------------- CUDA ends before MPI does

// The program destroys its context, resets or releases the primary one, or the whole driver is gone
// when MPI_Finalize is called. Messages between host memories go on, and MPI_Finalize ends as
// always. That nothing is printed is for the shell driver to see.
namespace {

// Messages of every length from and to memory that outlives this function, because its context ends
// with it in it. (Nobody frees it: a destroyed context has freed it already.)
void use(context &c, const std::string &what)
{
    for (const std::size_t len : {8u, 4096u, 65535u, 3u << 20, 3u << 21}) {
        auto out = c.make(len > 3U << 20 ? memory_kind::vmm_private : memory_kind::device, len);
        auto in = c.make(memory_kind::device, len);
        for (int i = 0; i < 5; ++i) {
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
    c.expect_true(CUDA_SUCCESS == CU(cuDevicePrimaryCtxReset)(c.gpu->ordinal()),
                  "the primary context can be reset");
    (void)c.gpu.release(); // what it held is gone
}

} // namespace

// Contexts that come and go while nothing is in flight. Messages go on in the primary one.
void test_context_destroyed(context &c)
{
    auto out = make_room(c);
    auto in = make_room(c);
    for (int i = 0; i < 3; ++i) {
        own_context own(c);
        use(c, "in a context of the program's own");
        swap_some_windows(c, *make_room(c), *make_room(c));
        c.expect_true(own.destroy(), "the context can be destroyed");
        talk_on(c, "after the context was destroyed");
        swap_some_windows(c, *out, *in);
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
    for (int i = 0; i < 3; ++i) {
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
    const CUresult answer = CU(cuCtxGetCurrent)(&current);
    at_step("MPI_Finalize at exit");
    MPI_Finalize();
    std::printf("exchange: finalized at exit, with a driver that answered %d\n",
                static_cast<int>(answer));
    std::fflush(stdout);
}

} // namespace gpusm::exchange
