// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_paths.cc: which way messages go, and when a process starts to use its GPU; windows of
// many messages, which the receiver gathers into few submissions; and long messages between host
// memories, of which the sender copies a part.
#include "tests/mpi/exchange_tools.h"

#include <chrono>
#include <cstdio>
#include <thread>

namespace gpusm::exchange {

namespace {

constexpr int tag = 51;

// One message each way between ranks 0 and 1, from and into fresh memory, checked.
void ping_pong(context &c, memory_kind mine, memory_kind peers, std::size_t len)
{
    auto out = c.make(mine, len);
    auto in = c.make(mine, len);
    swap_checked(c, *out, *in, describe(peers, mine, len, "ping-pong"));
}

} // namespace

bool until_counted(context &c, const counter_names &names, int most_rounds,
                   const std::function<void()> &send)
{
    const bench::path_counters counters;
    const unsigned long long before = sum_of(counters.read(), names);
    at_step("until both ranks have " + names.front());
    for (int i = 0; i < most_rounds; ++i) {
        send();
        const char mine = sum_of(counters.read(), names) > before ? 1 : 0;
        char peers = 0;
        c.send_receive(&mine, 1, &peers, 1, 1 - c.rank, tag);
        if (0 != mine && 0 != peers) {
            return true;
        }
        pause_ms(10);
    }
    return false;
}

bool until_by_get(context &c, memory_kind kind, std::size_t len_bytes)
{
    auto out = c.make(kind, len_bytes);
    auto in = c.make(kind, len_bytes);
    const filler space(c);
    space.fill();
    return until_counted(c, fetched("messages"), 200, [&] {
        c.send_receive(out->data(), len_bytes, in->data(), len_bytes, 1 - c.rank, tag);
    });
}

// "Every kind of memory goes its way" after the first few messages, whatever it is received into.
void test_ways(context &c)
{
    constexpr std::size_t lengths[] = {1, 256, 4096, 65535, (1u << 20) + 1, 5u << 20};
    const bench::path_counters counters;
    if (!all_by_their_ways(c)) {
        return;
    }
    for (const memory_kind kind : c.kinds) {
        for (const memory_kind into : {memory_kind::device, kind, memory_kind::host}) {
            for (const std::size_t len : lengths) {
                way_watch watch;
                const bench::path_counts before = counters.read();
                auto out = c.make(kind, len);
                auto in = c.make(into, len);
                swap_checked(c, *out, *in, describe(kind, into, len, "by its way"));
                watch.swapped(kind, len, 1, into);
                watch.check(c, describe(kind, into, len, "by its way"));
                if (way::get == expected_way(kind, len) &&
                    (bench::is_gpu(kind) || bench::is_gpu(into))) {
                    c.expect_true(sum_of(bench::since(before, counters.read()), fetched("bytes")) ==
                                      len,
                                  describe(kind, into, len, "every byte by get"));
                }
            }
        }
    }
}

// MPI_Init, host messages; then one rank starts to use its GPU; then the other does.
void test_late(context &c)
{
    constexpr std::size_t lengths[] = {1, 4096, 65535, 300000};
    constexpr int rounds = 3;
    const auto talk = [&](bool zero_late, bool one_late) {
        for (memory_kind kind : c.kinds) {
            const memory_kind of[2] = {zero_late ? memory_kind::host : kind,
                                       one_late ? memory_kind::host : kind};
            for (int i = 0; i < rounds; ++i) {
                for (std::size_t len : lengths) {
                    ping_pong(c, of[c.rank], of[1 - c.rank], len);
                }
            }
        }
    };
    talk(true, true);
    if (0 == c.rank) {
        c.use_gpu();
    }
    talk(false, true);
    if (1 == c.rank) {
        c.use_gpu();
    }
    talk(false, false);
}

// ---------------------------------------------------------------- windows that are gathered

namespace {

// Where the messages of a window lie: lengths on both sides of every limit, places at addresses of
// every remainder, and guard bytes between them.
window make_window(std::uint64_t first_seed, std::size_t messages, std::size_t shift)
{
    constexpr std::size_t lengths[] = {8,    1,    7,     33,    255,   256,
                                       1001, 4096, 16384, 65537, 64000, 200003};
    constexpr std::size_t long_one = (3U << 20) + 5; // longer than a copy for the kernel
    window made;
    std::size_t end = 0;
    for (std::size_t i = 0; i < messages; ++i) {
        const std::size_t len = 63 == i % 64 ? long_one : lengths[i % std::size(lengths)];
        const std::size_t offset = end + 64 + (i * shift) % 131;
        made.push_back({offset, len, first_seed + i});
        end = offset + len;
    }
    return made;
}

// A window each way between ranks 0 and 1, checked.
void check_window(context &c, memory_kind from, memory_kind to, std::size_t messages)
{
    const std::uint64_t seed = c.draw_seeds(2 * messages);
    const auto seed_of = [&](int rank) {
        return seed + messages * static_cast<std::uint64_t>(rank);
    };
    const window to_send = make_window(seed_of(c.rank), messages, 37);
    const window to_receive = make_window(seed_of(1 - c.rank), messages, 101);
    auto out = c.make(from, end_of(to_send));
    auto in = c.make(to, end_of(to_receive));
    swap_windows(c, *out, to_send, *in, to_receive, tag,
                 std::string("a window from ") + bench::describe(from) + " into " +
                     bench::describe(to));
}

// Windows from that memory into memory of each kind in --kinds. How many messages of a window at
// least must have come by get is for the caller to say.
void check_windows(context &c, memory_kind from, std::size_t messages, std::size_t by_get_at_least)
{
    constexpr int rounds = 3;
    const bench::path_counters counters;
    if (!c.expect_true(counters.available(), "the transport has performance variables")) {
        return;
    }
    const bench::path_counts before = counters.read();
    for (int i = 0; i < rounds; ++i) {
        for (memory_kind kind : c.kinds) {
            check_window(c, from, kind, messages);
        }
    }
    bench::path_counts used = bench::since(before, counters.read());
    c.expect_true(sum_of(used, fetched("messages")) >= rounds * by_get_at_least * c.kinds.size(),
                  "the messages came by get");
    // One line with the sums over both ranks, for the shell driver.
    const unsigned long long mine[] = {used["single_submissions"], used["batch_submissions"],
                                       used["kernel_submissions"]};
    unsigned long long sum[3] = {};
    MPI_Reduce(mine, sum, 3, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == c.rank) {
        std::printf("submissions: single %llu, batch %llu, kernel %llu\n", sum[0], sum[1], sum[2]);
    }
}

} // namespace

void test_gather(context &c)
{
    constexpr std::size_t messages = 256;
    check_windows(c, memory_kind::device, messages, messages);
}

// Of twelve messages three are long enough to be staged.
void test_gather_from_host(context &c)
{
    constexpr std::size_t messages = 256;
    check_windows(c, memory_kind::host, messages, messages / 4);
}

// One of many receives ends behind its allocation. That is an error of the program, which ends it;
// how, the shell driver looks at.
void test_behind_end(context &c)
{
    constexpr std::size_t messages = 64;
    constexpr std::size_t len = 1000;
    // Rank 0 has room for all of them, rank 1 for all but half of the last.
    auto memory = c.make(memory_kind::device, messages * len - (0 == c.rank ? 0 : len / 2));
    requests under_way(c);
    at_step("a message that is longer than what is left of its buffer");
    for (std::size_t i = 0; i < messages; ++i) {
        if (0 == c.rank) {
            under_way.send(memory->at(i * len), len, 1, tag);
        } else {
            under_way.receive(memory->at(i * len), len, 0, tag);
        }
    }
    under_way.wait();
}

// ---------------------------------------------------------------- copies by both sides

namespace {

constexpr int cooperative_messages = 20; // more than the receiver may ask for at once
constexpr std::size_t long_bytes = 300001;
constexpr std::uint64_t later_seed = 77;
constexpr std::chrono::seconds patience{60};

using buffers = std::vector<std::unique_ptr<buffer>>;

void send_all(context &c, const buffers &all, const sign *away)
{
    requests under_way(c);
    for (std::size_t i = 0; i < all.size(); ++i) {
        c.expect(all[i]->fill(0, long_bytes, i), "fill");
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        under_way.send(all[i]->data(), long_bytes, 1, tag);
    }
    if (away != nullptr) {
        at_step("the receiver has everything while the sender is away");
        away->wait();
    }
    under_way.wait();
}

void receive_all(context &c, const buffers &all, const std::string &what)
{
    requests under_way(c);
    for (std::size_t i = 0; i < all.size(); ++i) {
        c.expect(all[i]->poison(), "poison");
        under_way.receive(all[i]->data(), long_bytes, 0, tag);
    }
    under_way.wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
        c.expect(all[i]->compare(0, long_bytes, i), what + ", message " + std::to_string(i));
        ++c.messages;
    }
}

// What the sender has had a part in, by single copies of its own or through a ring.
unsigned long long together(const bench::path_counters &counters)
{
    auto counts = counters.read();
    return counts["both_copy_written_bytes"] + counts["host_ring_written_bytes"];
}

// Messages until the sender has copied a part of them. False: it never does.
bool until_together(context &c, const buffers &all, const bench::path_counters &counters)
{
    const unsigned long long before = together(counters);
    const auto until = std::chrono::steady_clock::now() + patience;
    int go_on = 1;
    bool seen = false;
    while (1 == go_on) {
        if (0 == c.rank) {
            send_all(c, all, nullptr);
        } else {
            receive_all(c, all, "with both sides there");
            seen = together(counters) > before;
            go_on = seen || std::chrono::steady_clock::now() > until ? 0 : 1;
            // Beside other programs one rank may keep running when the other one does not. Who has
            // slept is given the processor as soon as it wakes.
            std::this_thread::sleep_for(std::chrono::milliseconds(go_on));
        }
        MPI_Bcast(&go_on, 1, MPI_INT, 1, MPI_COMM_WORLD);
    }
    return 0 == c.rank || seen;
}

} // namespace

// The sender does not look while they arrive, and finds what it was asked when the receiver has
// long put its memory to another use. Where nothing goes in single copies, the messages are only
// checked.
void test_cooperative_late(context &c)
{
    const bench::path_counters counters;
    buffers all(cooperative_messages);
    for (auto &each : all) {
        each = c.make(memory_kind::host, long_bytes);
    }
    const unsigned long long before = counters.read()["single_copy_messages"];
    constexpr int rounds = 3; // also after the receiver has had enough of asking
    for (int round = 0; round < rounds; ++round) {
        const sign received(c);
        if (0 == c.rank) {
            send_all(c, all, &received);
            MPI_Barrier(MPI_COMM_WORLD);
        } else {
            receive_all(c, all, "with the sender away");
            for (auto &each : all) {
                c.expect(each->fill(0, long_bytes, later_seed), "fill");
            }
            received.give();
            MPI_Barrier(MPI_COMM_WORLD);
            for (auto &each : all) {
                c.expect(each->compare(0, long_bytes, later_seed),
                         "nobody writes into memory whose receive is over");
            }
        }
    }
    int single = counters.read()["single_copy_messages"] > before ? 1 : 0;
    MPI_Bcast(&single, 1, MPI_INT, 1, MPI_COMM_WORLD);
    if (1 == single) {
        c.expect_true(until_together(c, all, counters),
                      "the sender that is there again copies its part");
    }
}

// "No message waits for the handshake": the first ones of a job, either way and of every length, go
// out of device memory to device memory, and none of them through host memory.
void test_first(context &c)
{
    const bench::path_counters counters;
    const bench::path_counts before = counters.read();
    for (const std::size_t len : {std::size_t{8}, std::size_t{65536}, std::size_t{8} << 20}) {
        auto out = c.make(memory_kind::device, len);
        auto in = c.make(memory_kind::device, len);
        for (int sender = 0; sender < 2; ++sender) {
            at_step("the first messages of " + std::to_string(len) + " bytes");
            const std::uint64_t seed = c.draw_seeds(1);
            if (c.rank == sender) {
                c.expect(out->fill(0, len, seed), "fill");
                c.send(out->data(), len, 1 - sender, 1);
            } else {
                c.expect(in->poison(), "poison");
                c.receive(in->data(), len, sender, 1);
                c.expect(in->compare(0, len, seed), "a first message");
                ++c.messages;
            }
        }
    }
    if (counters.available()) {
        bench::path_counts gone = bench::since(before, counters.read());
        c.expect_true(0 == gone["device_fragments_bytes"],
                      "no first message goes through host memory");
        c.expect_true(3 == sum_of(gone, fetched("messages")), "each first message is fetched");
    }
}

} // namespace gpusm::exchange
