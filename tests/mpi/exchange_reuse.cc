// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_reuse.cc: addresses that come back with other content, other sizes and other handles,
// many allocations in flight at once, and one that is source and destination at the same time. What
// a peer has mapped of memory that is gone must never be read. Every byte is checked.
#include "tests/mpi/exchange_tools.h"

#include "bench/common/placed.h"

#include <algorithm>
#include <cstdio>

namespace gpusm::exchange {

namespace {

constexpr int tag = 111;

// Small allocations lie side by side in one block of the driver, those from 1 MiB on alone.
constexpr std::size_t lengths[] = {8, 4096, 100, 65535, 1024, 20001, 512, 3, 300000, 16384};
constexpr std::size_t longest = 300000;
constexpr std::size_t large = (std::size_t{1} << 20) + 3; // every so often

// A number that both ranks draw alike, from what it is for.
std::uint64_t draw(std::uint64_t sender, std::uint64_t round, std::uint64_t i)
{
    std::uint64_t value = (sender * 1000003 + round) * 1000033 + i + 1;
    value ^= value >> 31;
    value *= 0x9E3779B97F4A7C15u;
    return value ^ (value >> 29);
}

std::size_t length_of(int sender, int round, int i)
{
    const std::uint64_t drawn =
        draw(static_cast<std::uint64_t>(sender), static_cast<std::uint64_t>(round),
             static_cast<std::uint64_t>(i));
    return 0 == drawn % 97 ? large : lengths[drawn % std::size(lengths)];
}

std::uint64_t seed_of(int sender, int round, int i)
{
    return draw(static_cast<std::uint64_t>(sender) + 7, static_cast<std::uint64_t>(round),
                static_cast<std::uint64_t>(i));
}

// One allocation at a time, freed as soon as its message is done, so that the next one usually has
// its address. Returns how often it had.
int one_after_the_other(context &c, int rounds, way_watch &watch)
{
    const int peer = 1 - c.rank;
    auto in = c.make(memory_kind::device, large + bench::placement::guard_bytes);
    const void *before = nullptr;
    int same = 0;
    for (int round = 0; round < rounds; ++round) {
        const std::size_t len = length_of(c.rank, round, 0);
        const std::size_t expected = length_of(peer, round, 0);
        const memory_kind kind = c.kind_at(static_cast<std::size_t>(round));
        const std::string what = "round " + std::to_string(round) + ", " +
                                 describe(kind, memory_kind::device, expected, "an address again");
        at_step(what);
        auto out = c.make(kind, len);
        same += out->data() == before ? 1 : 0;
        before = out->data();
        (void)c.expect(out->fill(0, len, seed_of(c.rank, round, 0)), "fill");
        (void)c.expect(in->poison(0, expected + bench::placement::guard_bytes), "poison");
        if (c.mpi(MPI_Sendrecv(out->data(), static_cast<int>(len), MPI_BYTE, peer, tag, in->data(),
                               static_cast<int>(expected), MPI_BYTE, peer, tag, MPI_COMM_WORLD,
                               MPI_STATUS_IGNORE),
                  "MPI_Sendrecv")) {
            (void)c.expect(in->compare(0, expected, seed_of(peer, round, 0)), what);
            (void)c.expect(in->compare_poison(expected, bench::placement::guard_bytes),
                           what + ", behind the end");
            ++c.messages;
        }
        watch.sent(kind, len);
        watch.received(kind, expected);
    }
    return same;
}

// Windows of allocations of their own. After each window most of them are freed, in no order, and
// the others get new content.
void many_at_once(context &c, int windows, way_watch &watch)
{
    constexpr int window = 64;
    const int peer = 1 - c.rank;
    std::vector<std::unique_ptr<buffer>> out(window);
    std::vector<std::size_t> lens(window);
    auto in = c.make(memory_kind::device, window * (longest + 512) + 4 * (large + 512));
    for (int round = 0; round < windows; ++round) {
        const std::string what = "window " + std::to_string(round) + " of 64 allocations";
        at_step(what);
        std::vector<MPI_Request> requests(2 * window, MPI_REQUEST_NULL);
        std::vector<bench::placed_message> expected;
        std::size_t at = 256;
        for (int i = 0; i < window; ++i) {
            // The one that stays from the round before has the length that it had.
            const auto kept = [&](int sender) {
                int from = round;
                while (0 < from && 0 == draw(static_cast<std::uint64_t>(sender),
                                             static_cast<std::uint64_t>(from) + 5000,
                                             static_cast<std::uint64_t>(i)) %
                                            8) {
                    --from;
                }
                return from;
            };
            const std::size_t len = length_of(peer, 100000 + kept(peer), i);
            if (at + len + 256 > in->len_bytes()) {
                (void)c.expect_true(false, "the receive buffer is large enough");
                return;
            }
            expected.push_back({at, len, seed_of(peer, 100000 + round, i)});
            const auto kind_of = [&](int born) {
                return c.kind_at(static_cast<std::size_t>(i + born));
            };
            watch.received(kind_of(kept(peer)), len);
            at = (at + len + bench::placement::guard_bytes + 255) / 256 * 256;
            const int born = kept(c.rank);
            const auto slot = static_cast<std::size_t>(i);
            lens[slot] = length_of(c.rank, 100000 + born, i);
            if (born == round) {
                out[slot] = c.make(kind_of(born), lens[slot]);
            }
            watch.sent(out[slot]->kind(), lens[slot]);
            (void)c.expect(out[slot]->fill(0, lens[slot], seed_of(c.rank, 100000 + round, i)),
                           "fill");
        }
        (void)c.expect(in->poison(0, at), "poison");
        for (int i = 0; i < window; ++i) {
            const auto slot = static_cast<std::size_t>(i);
            (void)c.mpi(MPI_Irecv(in->at(expected[slot].offset),
                                  static_cast<int>(expected[slot].len_bytes), MPI_BYTE, peer,
                                  tag + i, MPI_COMM_WORLD, &requests[slot]),
                        "MPI_Irecv");
        }
        for (int i = 0; i < window; ++i) {
            const auto slot = static_cast<std::size_t>(i);
            (void)c.mpi(MPI_Isend(out[slot]->data(), static_cast<int>(lens[slot]), MPI_BYTE, peer,
                                  tag + i, MPI_COMM_WORLD, &requests[window + slot]),
                        "MPI_Isend");
        }
        if (c.mpi(MPI_Waitall(2 * window, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall")) {
            (void)c.expect(compare_placed(*in, at, expected), what);
            c.messages += window;
        }
        for (int k = 0; k < window; ++k) {
            const int i = k * 37 % window; // in no order
            if (0 != draw(static_cast<std::uint64_t>(c.rank),
                          static_cast<std::uint64_t>(round) + 5001, static_cast<std::uint64_t>(i)) %
                         8) {
                out[static_cast<std::size_t>(i)].reset();
            }
        }
    }
}

// One allocation per round: half of its slots are sent while the others are received into, and what
// was received goes back from where it is. Then it is freed.
void both_ways_in_one(context &c, int rounds, way_watch &watch)
{
    constexpr int slots = 8;
    constexpr std::size_t slot_bytes = 16384;
    constexpr std::size_t len = slot_bytes - 512; // guard bytes behind it
    const int peer = 1 - c.rank;
    for (int round = 0; round < rounds; ++round) {
        const std::string what = "round " + std::to_string(round) + ", source and destination";
        at_step(what);
        auto memory = c.make(c.kind_at(static_cast<std::size_t>(round)), slots * slot_bytes);
        std::vector<bench::placed_message> content; // of this rank's allocation, at each moment
        for (int i = 0; i < slots; i += 2) {
            content.push_back({static_cast<std::size_t>(i) * slot_bytes, len,
                               seed_of(c.rank, 200000 + round, i)});
        }
        (void)c.expect(fill_placed(*memory, slots * slot_bytes, content), "fill");
        // Slot i of the first pass goes to slot i + 1 over there; in the second one what has come
        // there goes back to where it came from, over the content that was sent.
        for (int pass = 0; pass < 2; ++pass) {
            std::vector<MPI_Request> requests;
            for (int i = 0; i < slots; i += 2) {
                const int from = i + pass;
                const int to = i + 1 - pass;
                requests.resize(requests.size() + 2, MPI_REQUEST_NULL);
                (void)c.mpi(MPI_Irecv(memory->at(static_cast<std::size_t>(to) * slot_bytes), len,
                                      MPI_BYTE, peer, tag + i, MPI_COMM_WORLD,
                                      &requests[requests.size() - 2]),
                            "MPI_Irecv");
                (void)c.mpi(MPI_Isend(memory->at(static_cast<std::size_t>(from) * slot_bytes), len,
                                      MPI_BYTE, peer, tag + i, MPI_COMM_WORLD,
                                      &requests[requests.size() - 1]),
                            "MPI_Isend");
            }
            if (!c.mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(),
                                   MPI_STATUSES_IGNORE),
                       "MPI_Waitall")) {
                return;
            }
            content.clear();
            for (int i = 0; i < slots; ++i) {
                const int owner = 0 == i % 2 ? c.rank : peer;
                content.push_back({static_cast<std::size_t>(i) * slot_bytes, len,
                                   seed_of(owner, 200000 + round, i / 2 * 2)});
            }
            (void)c.expect(compare_placed(*memory, slots * slot_bytes, content, "slot"), what);
            c.messages += slots / 2;
            watch.swapped(memory->kind(), len, slots / 2, memory->kind());
        }
    }
}

} // namespace

// --rounds counts messages of each rank, over the three ways to use addresses again.
void test_reuse(context &c)
{
    const int rounds = 0 < c.rounds ? c.rounds : 5000;
    if (1 < c.rank || !c.expect_true(until_by_get(c), "messages go by get at last")) {
        return;
    }
    for (const memory_kind kind : c.kinds) {
        if (!c.expect_true(until_expected_way(c, kind), "messages go the expected way at last")) {
            return;
        }
    }
    way_watch watch;
    const int same = one_after_the_other(c, rounds * 2 / 5, watch);
    many_at_once(c, rounds * 2 / 5 / 64, watch);
    both_ways_in_one(c, rounds / 5 / 8, watch);
    watch.check(c, "addresses again");
    if (0 == c.rank) {
        std::printf("reuse: the same address in %d of %d rounds\n", same, rounds * 2 / 5);
    }
}

} // namespace gpusm::exchange
