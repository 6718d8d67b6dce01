// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fifo_killed_sender.cc: a sender is killed after every single instruction of fifo_post (after
// every few, where a sanitizer makes it long), one process for each; afterwards the others must
// find the ring in order. The parent lets the sender run step by step (ptrace), so no window is too
// small to be hit.
#include "opal/mca/common/gpusm/shm/fifo.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <tuple>

#include <csignal>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace gpusm;

constexpr std::uint32_t slots = 2;
constexpr std::uint32_t mortal = 5;
constexpr std::uint32_t living = 6;
constexpr int deadline_s = 240;
constexpr long longest_post = 2000000; // instructions; a sanitizer needs many
constexpr long most_deaths = 150;      // per scenario

struct shared_ring {
    std::atomic<std::uint64_t> tail;
    fifo_slot slot[slots];
    std::atomic<int> begun;
    std::atomic<int> over;
};

shared_ring *ring = nullptr;

fifo_view view()
{
    return {&ring->tail, ring->slot, slots};
}

enum class outcome { killed, returned, not_permitted };

// Runs a post in a child and kills it `steps` instructions after its begin. `*taken`: how many it
// has made.
outcome post_and_kill(long steps, long *taken)
{
    ring->begun.store(0);
    ring->over.store(0);
    const pid_t child = fork();
    if (0 == child) {
        if (0 != ptrace(PTRACE_TRACEME, 0, nullptr, nullptr)) {
            _exit(77);
        }
        (void)raise(SIGSTOP);
        ring->begun.store(1);
        (void)(status::ok == fifo_post(view(), {mortal, 55}));
        ring->over.store(1);
        _exit(0);
    }
    int state = 0;
    if (child < 0 || child != waitpid(child, &state, 0) || !WIFSTOPPED(state)) {
        return outcome::not_permitted;
    }
    bool alive = true;
    for (*taken = 0; alive && 0 == ring->over.load() && *taken < steps;) {
        alive = 0 == ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) &&
                child == waitpid(child, &state, 0) && WIFSTOPPED(state);
        *taken += ring->begun.load();
    }
    const bool returned = 0 != ring->over.load();
    if (alive) {
        (void)kill(child, SIGKILL);
        while (child == waitpid(child, &state, 0) && WIFSTOPPED(state)) {
            (void)ptrace(PTRACE_KILL, child, nullptr, nullptr);
        }
    }
    return returned ? outcome::returned : outcome::killed;
}

// Takes what there is; false when something else than `expected` messages of the living, in
// order, and at most one of the dead comes out.
bool drain(fifo_reader *reader, std::uint32_t expected, bool *seen_dead)
{
    fifo_message message{};
    std::uint32_t next = 1;
    for (; reader->peek(&message); reader->pop()) {
        if (mortal == message.sender && 55 == message.granule && !*seen_dead) {
            *seen_dead = true;
        } else if (living != message.sender || next++ != message.granule) {
            return false;
        }
    }
    return next == expected + 1;
}

// The ring after a sender's death: a living one gets as many messages through as there are slots.
const char *fault_after_death(fifo_reader *reader, bool reader_first)
{
    bool seen_dead = false;
    if (reader_first && !drain(reader, 0, &seen_dead)) {
        return "the reader found a message that nobody sent";
    }
    for (int lap = 0; lap < 3; ++lap) {
        std::uint32_t posted = 0;
        while (posted < slots && status::ok == fifo_post(view(), {living, posted + 1})) {
            ++posted;
        }
        const bool lap_has_dead = !reader_first && 0 == lap;
        if (posted < slots && !(lap_has_dead && posted == slots - 1)) {
            return "a sender is told busy, though there is room";
        }
        if (!drain(reader, posted, &seen_dead)) {
            return "the reader lost a message, or got one twice or out of order";
        }
    }
    return nullptr;
}

// One scenario: `earlier` messages have gone through the ring before.
int try_every_instruction(const char *name, std::uint32_t earlier, bool reader_first)
{
    long deaths = 0;
    long lagging = 0; // of them between publishing and moving the tail
    long stride = 1;
    long taken = 0;
    // The first run is not cut short: it tells how long a post is.
    for (long steps = longest_post; steps >= 0; steps -= stride) {
        new (ring) shared_ring{};
        fifo_reader reader(view());
        for (std::uint32_t i = 0; i < earlier; ++i) {
            fifo_message message{};
            if (status::ok != fifo_post(view(), {living, 1}) || !reader.peek(&message)) {
                std::printf("FAIL: %s: the ring does not work at all\n", name);
                return 1;
            }
            reader.pop();
        }
        const outcome end = post_and_kill(steps, &taken);
        if (outcome::not_permitted == end) {
            std::printf("SKIP: %s: tracing a child is not permitted here\n", name);
            return 77;
        }
        if (longest_post == steps) {
            if (outcome::returned != end) {
                std::printf("FAIL: %s: fifo_post does not end\n", name);
                return 1;
            }
            stride = 1 + taken / most_deaths;
            steps = taken;
        }
        const bool published = !fifo_word::is_empty(ring->slot[earlier % slots].word.load());
        const bool moved = ring->tail.load() != earlier;
        deaths += outcome::killed == end ? 1 : 0;
        lagging += published && !moved ? 1 : 0;
        if (const char *fault = fault_after_death(&reader, reader_first); fault != nullptr) {
            std::printf("killed after %ld instructions (published: %d, tail moved: %d): %s\n"
                        "FAIL: %s\n",
                        taken, published ? 1 : 0, moved ? 1 : 0, fault, name);
            return 1;
        }
    }
    std::printf("%ld deaths, %ld of them before the tail was moved\n", deaths, lagging);
    std::printf("%s: %s\n", deaths > 0 && lagging > 0 ? "PASS" : "FAIL", name);
    return deaths > 0 && lagging > 0 ? 0 : 1;
}

} // namespace

int main()
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    (void)alarm(deadline_s);
#if !defined(__x86_64__)
    std::printf("a post cannot be stepped through here: not an x86-64 processor\n");
    return 77;
#endif
    void *memory = mmap(nullptr, sizeof(shared_ring), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (MAP_FAILED == memory) {
        std::perror("mmap");
        return 1;
    }
    ring = static_cast<shared_ring *>(memory);
    int worst = 0;
    for (const auto &[name, earlier, reader_first] :
         {std::tuple{"KilledInTheFirstLapReaderNext", 0U, true},
          std::tuple{"KilledInTheFirstLapSenderNext", 0U, false},
          std::tuple{"KilledInALaterLapReaderNext", 7U, true},
          std::tuple{"KilledInALaterLapSenderNext", 7U, false}}) {
        const int result = try_every_instruction(name, earlier, reader_first);
        worst = 1 == result || 1 == worst ? 1 : (0 == result ? worst : result);
    }
    return worst;
}
