// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_cooperative.cc: long messages between host memories, of which the sender may copy a
// part: the sender does not look while they arrive, and finds what it was asked when the receiver
// has long put its memory to another use.
#include "tests/mpi/exchange_tools.h"

#include <chrono>

namespace gpusm::exchange {

namespace {

constexpr int tag = 71;
constexpr int messages = 20; // more than the receiver may ask for at once
constexpr std::size_t len_bytes = 300001;
constexpr std::uint64_t later_seed = 77;
constexpr std::chrono::seconds patience{20};

using buffers = std::vector<std::unique_ptr<buffer>>;

void send_all(context &c, const buffers &all, const sign *away)
{
    requests under_way(c);
    for (std::size_t i = 0; i < all.size(); ++i) {
        c.expect(all[i]->fill(0, len_bytes, i), "fill");
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        under_way.send(all[i]->data(), len_bytes, 1, tag);
    }
    if (away != nullptr) {
        c.expect_true(away->wait(), "the receiver has everything while the sender is away");
    }
    under_way.wait();
}

void receive_all(context &c, const buffers &all, const std::string &what)
{
    requests under_way(c);
    for (std::size_t i = 0; i < all.size(); ++i) {
        c.expect(all[i]->poison(), "poison");
        under_way.receive(all[i]->data(), len_bytes, 0, tag);
    }
    under_way.wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
        c.expect(all[i]->compare(0, len_bytes, i), what + ", message " + std::to_string(i));
        ++c.messages;
    }
}

// What the sender has had a part in, by single copies of its own or through a ring.
unsigned long long together(const bench::path_counters &counters)
{
    auto counts = counters.read();
    return counts["cooperative_copy_bytes"] + counts["host_ring_bytes"];
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
        }
        MPI_Bcast(&go_on, 1, MPI_INT, 1, MPI_COMM_WORLD);
    }
    return 0 == c.rank || seen;
}

} // namespace

// For two ranks. Where nothing goes in single copies, the messages are only checked.
void test_cooperative_late(context &c)
{
    const bench::path_counters counters;
    buffers all(messages);
    for (auto &each : all) {
        each = c.make(memory_kind::host, len_bytes);
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
                c.expect(each->fill(0, len_bytes, later_seed), "fill");
            }
            received.give();
            MPI_Barrier(MPI_COMM_WORLD);
            for (auto &each : all) {
                c.expect(each->compare(0, len_bytes, later_seed),
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

} // namespace gpusm::exchange
