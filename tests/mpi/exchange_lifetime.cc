// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_lifetime.cc: memory and contexts that end while something still names them: a persistent
// request, the copies in flight, what gpusm has made in a context.
#include "tests/mpi/exchange_tools.h"

#include <cstdio>
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

// A window from rank 0 to rank 1, checked.
void send_window(context &c, buffer &memory)
{
    const window all = side_by_side(window_messages, window_len, c.draw_seeds(window_messages));
    const window nothing;
    swap_windows(c, memory, 0 == c.rank ? all : nothing, memory, 1 == c.rank ? all : nothing, tag,
                 "a window");
    MPI_Barrier(MPI_COMM_WORLD);
}

std::unique_ptr<buffer> make_room(context &c)
{
    return c.make(memory_kind::device, end_of(side_by_side(window_messages, window_len, 0)));
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
    constexpr int windows = 5;
    constexpr int rounds = 1000; // of a millisecond
    own_context passing(c);
    auto memory = make_room(c);
    for (int i = 0; i < windows; ++i) {
        send_window(c, *memory);
    }
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

} // namespace gpusm::exchange
