// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_reuse.cc: addresses that come back with other content, other sizes and other handles,
// many allocations in flight at once, and one that is source and destination at the same time. What
// a peer has mapped of memory that is gone must never be read. Every byte is checked.
#include "tests/mpi/exchange_tools.h"

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

std::size_t length_of(std::uint64_t sender, std::uint64_t round, std::uint64_t i)
{
    const std::uint64_t drawn = draw(sender, round, i);
    return 0 == drawn % 97 ? large : lengths[drawn % std::size(lengths)];
}

std::uint64_t seed_of(std::uint64_t sender, std::uint64_t round, std::uint64_t i)
{
    return draw(sender + 7, round, i);
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
        c.expect(out->fill(0, len, seed_of(c.rank, round, 0)), "fill");
        c.expect(in->poison(0, expected + bench::placement::guard_bytes), "poison");
        if (c.send_receive(out->data(), len, in->data(), expected, peer, tag)) {
            c.expect(in->compare(0, expected, seed_of(peer, round, 0)), what);
            c.expect(in->compare_poison(expected, bench::placement::guard_bytes),
                     what + ", behind the end");
            ++c.messages;
        }
        watch.sent(kind, len);
        watch.received(kind, expected);
    }
    return same;
}

// Whether the allocation in that slot stays after that round.
bool stays(int sender, std::uint64_t round, std::uint64_t slot)
{
    return 0 == draw(sender, round + 5001, slot) % 8;
}

// The round in which the allocation that is sent from that slot in that round was made.
std::uint64_t born_in(int sender, std::uint64_t round, std::uint64_t slot)
{
    while (0 < round && stays(sender, round - 1, slot)) {
        --round;
    }
    return round;
}

// Windows of allocations of their own. After each window most of them are freed, in no order, and
// the others get new content.
void many_at_once(context &c, std::uint64_t windows, way_watch &watch)
{
    constexpr std::size_t slots = 64;
    constexpr std::uint64_t first_round = 100000;
    const int peer = 1 - c.rank;
    std::vector<std::unique_ptr<buffer>> out(slots);
    auto in = c.make(memory_kind::device, slots * (longest + 512) + 4 * (large + 512));
    for (std::uint64_t round = 0; round < windows; ++round) {
        const std::string what = "window " + std::to_string(round) + " of 64 allocations";
        at_step(what);
        requests under_way(c);
        window expected;
        std::size_t at = 256;
        for (std::size_t i = 0; i < slots; ++i) {
            const auto kind_of = [&](std::uint64_t born) { return c.kind_at(i + born); };
            const std::uint64_t theirs = born_in(peer, round, i);
            const std::size_t len = length_of(peer, first_round + theirs, i);
            if (at + len + 256 > in->len_bytes()) {
                c.expect_true(false, "the receive buffer is large enough");
                return;
            }
            expected.push_back({at, len, seed_of(peer, first_round + round, i)});
            watch.received(kind_of(theirs), len);
            at = (at + len + bench::placement::guard_bytes + 255) / 256 * 256;
            if (nullptr == out[i]) {
                out[i] = c.make(kind_of(round), length_of(c.rank, first_round + round, i));
            }
            watch.sent(out[i]->kind(), out[i]->len_bytes());
            c.expect(out[i]->fill(0, out[i]->len_bytes(), seed_of(c.rank, first_round + round, i)),
                     "fill");
        }
        c.expect(in->poison(0, at), "poison");
        for (const auto &each : expected) {
            under_way.receive(in->at(each.offset), each.len_bytes, peer, tag);
        }
        for (const auto &each : out) {
            under_way.send(each->data(), each->len_bytes(), peer, tag);
        }
        if (under_way.wait()) {
            c.expect(compare_placed(*in, at, expected), what);
            c.messages += slots;
        }
        for (std::size_t k = 0; k < slots; ++k) {
            const std::size_t i = k * 37 % slots; // in no order
            if (!stays(c.rank, round, i)) {
                out[i].reset();
            }
        }
    }
}

// One allocation per round: half of its slots are sent while the others are received into, and what
// was received goes back from where it is. Then it is freed.
void both_ways_in_one(context &c, int rounds, way_watch &watch)
{
    constexpr std::size_t slots = 8;
    constexpr std::size_t slot_bytes = 16384;
    constexpr std::size_t len = slot_bytes - 512; // guard bytes behind it
    const int peer = 1 - c.rank;
    for (int round = 0; round < rounds; ++round) {
        const std::string what = "round " + std::to_string(round) + ", source and destination";
        const auto in_slot = [&](std::size_t i, int owner) {
            return bench::placed_message{i * slot_bytes, len,
                                         seed_of(owner, 200000 + round, i / 2 * 2)};
        };
        at_step(what);
        auto memory = c.make(c.kind_at(static_cast<std::size_t>(round)), slots * slot_bytes);
        window content;
        for (std::size_t i = 0; i < slots; i += 2) {
            content.push_back(in_slot(i, c.rank));
        }
        c.expect(fill_placed(*memory, slots * slot_bytes, content), "fill");
        // Slot i of the first pass goes to slot i + 1 over there; in the second one what has come
        // there goes back to where it came from, over the content that was sent.
        for (std::size_t pass = 0; pass < 2; ++pass) {
            requests under_way(c);
            for (std::size_t i = 0; i < slots; i += 2) {
                under_way.receive(memory->at((i + 1 - pass) * slot_bytes), len, peer, tag);
                under_way.send(memory->at((i + pass) * slot_bytes), len, peer, tag);
            }
            if (!under_way.wait()) {
                return;
            }
            content.clear();
            for (std::size_t i = 0; i < slots; ++i) {
                content.push_back(in_slot(i, 0 == i % 2 ? c.rank : peer));
            }
            c.expect(compare_placed(*memory, slots * slot_bytes, content, "slot"), what);
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
    if (!all_by_their_ways(c)) {
        return;
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
