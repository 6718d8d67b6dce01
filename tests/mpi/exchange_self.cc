// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_self.cc: messages of a process to itself, between memory of every pair of kinds and by
// every call that programs use for them; in the order of their sending; and without a way through
// the host where one side is device memory.
#include "tests/mpi/exchange.h"

#include <cstdlib>
#include <iterator>

namespace gpusm::exchange {

namespace {

constexpr int tag = 61;
constexpr std::size_t guard_bytes = 64;
// Empty, eager, longer than what is eager anywhere, in one fragment, in many.
constexpr std::size_t lengths[] = {0, 1, 8, 900, 4096, 65537, 1000003};
// Nothing of that length and more goes eagerly.
constexpr std::size_t not_eager_bytes = 4096;

// One message, and where it goes.
struct message {
    context &c;
    void *out;
    void *in;
    int len;

    void posted() const
    {
        MPI_Request all[2];
        c.mpi(MPI_Irecv(in, len, MPI_BYTE, c.rank, tag, MPI_COMM_WORLD, &all[0]), "MPI_Irecv");
        c.mpi(MPI_Isend(out, len, MPI_BYTE, c.rank, tag, MPI_COMM_WORLD, &all[1]), "MPI_Isend");
        c.mpi(MPI_Waitall(2, all, MPI_STATUSES_IGNORE), "MPI_Waitall");
    }
    void unexpected() const
    {
        MPI_Request sent = MPI_REQUEST_NULL;
        c.mpi(MPI_Isend(out, len, MPI_BYTE, c.rank, tag, MPI_COMM_WORLD, &sent), "MPI_Isend");
        c.mpi(MPI_Recv(in, len, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE),
              "MPI_Recv");
        c.mpi(MPI_Wait(&sent, MPI_STATUS_IGNORE), "MPI_Wait");
    }
    void probed() const
    {
        MPI_Request sent = MPI_REQUEST_NULL;
        MPI_Message found = MPI_MESSAGE_NULL;
        MPI_Status about;
        int count = -1;
        c.mpi(MPI_Issend(out, len, MPI_BYTE, c.rank, tag, MPI_COMM_WORLD, &sent), "MPI_Issend");
        c.mpi(MPI_Mprobe(c.rank, tag, MPI_COMM_WORLD, &found, &about), "MPI_Mprobe");
        c.mpi(MPI_Get_count(&about, MPI_BYTE, &count), "MPI_Get_count");
        c.expect_true(count == len, "the length that MPI_Mprobe tells");
        c.mpi(MPI_Mrecv(in, len, MPI_BYTE, &found, MPI_STATUS_IGNORE), "MPI_Mrecv");
        c.mpi(MPI_Wait(&sent, MPI_STATUS_IGNORE), "MPI_Wait");
    }
    void sendrecv() const
    {
        c.send_receive(out, static_cast<std::size_t>(len), in, static_cast<std::size_t>(len),
                       c.rank, tag);
    }
    void persistent() const
    {
        MPI_Request all[2];
        c.mpi(MPI_Recv_init(in, len, MPI_BYTE, 0, tag, MPI_COMM_SELF, &all[0]), "MPI_Recv_init");
        c.mpi(MPI_Send_init(out, len, MPI_BYTE, 0, tag, MPI_COMM_SELF, &all[1]), "MPI_Send_init");
        for (int i = 0; i < 2; ++i) {
            c.mpi(MPI_Startall(2, all), "MPI_Startall");
            c.mpi(MPI_Waitall(2, all, MPI_STATUSES_IGNORE), "MPI_Waitall");
        }
        MPI_Request_free(&all[0]);
        MPI_Request_free(&all[1]);
    }
    void alltoallv() const
    {
        const int zero = 0;
        c.mpi(MPI_Alltoallv(out, &len, &zero, MPI_BYTE, in, &len, &zero, MPI_BYTE, MPI_COMM_SELF),
              "MPI_Alltoallv");
    }
    void neighbours() const // a periodic domain of one process
    {
        const int once = 1;
        MPI_Comm ring = MPI_COMM_NULL;
        c.mpi(MPI_Cart_create(MPI_COMM_SELF, 1, &once, &once, 0, &ring), "MPI_Cart_create");
        // It is its neighbour on both sides; the second message is empty.
        const int counts[2] = {len, 0};
        const int from_both[2] = {0, len};
        const int at[2] = {0, 0};
        c.mpi(MPI_Neighbor_alltoallv(out, counts, at, MPI_BYTE, in, from_both, at, MPI_BYTE, ring),
              "MPI_Neighbor_alltoallv");
        MPI_Comm_free(&ring);
    }
};

constexpr struct {
    const char *name;
    void (message::*send)() const;
    unsigned messages; // through the transport; a collective of one process needs none
} ways[] = {
    {"posted", &message::posted, 1},         {"unexpected", &message::unexpected, 1},
    {"probed", &message::probed, 1},         {"MPI_Sendrecv", &message::sendrecv, 1},
    {"persistent", &message::persistent, 2}, {"MPI_Alltoallv", &message::alltoallv, 0},
    {"neighbours", &message::neighbours, 1},
};

bool is_on_device(memory_kind kind)
{
    // Managed memory is where it was used last.
    return bench::letter_of(kind) != 'H' && bench::letter_of(kind) != 'P' &&
           bench::letter_of(kind) != 'R' && bench::letter_of(kind) != 'M';
}

void send_each_way(context &c, memory_kind from, memory_kind into, std::size_t len)
{
    auto out = c.make(from, len + guard_bytes);
    auto in = c.make(into, len + guard_bytes);
    const bench::path_counters counters;
    for (const auto &way : ways) {
        const std::string what = describe(from, into, len, way.name);
        const std::uint64_t seed = c.draw_seeds(1);
        at_step(what);
        c.expect(out->fill(0, len, seed), "fill");
        c.expect(in->poison(), "poison");
        const bench::path_counts before = counters.read();
        const message one{c, out->data(), in->data(), static_cast<int>(len)};
        (one.*way.send)();
        c.expect(in->compare(0, len, seed), what);
        c.expect(in->compare_poison(len, guard_bytes), what + ": behind the message");
        ++c.messages;
        if (counters.available() && nullptr == std::getenv("GPUSM_TEST_ANY_WAY") &&
            len >= not_eager_bytes && (is_on_device(from) || is_on_device(into))) {
            bench::path_counts gone = bench::since(before, counters.read());
            std::uint64_t messages = 0;
            std::uint64_t bytes = 0;
            for (const std::string mode : {"self", "bounced", "delegated"}) {
                messages += gone[mode + "_messages"];
                bytes += gone[mode + "_bytes"];
            }
            c.expect_true(messages == way.messages && bytes == way.messages * len,
                          what + ": one copy of the device");
            c.expect_true(0 == gone["device_fragments_bytes"], what + ": nothing through the host");
        }
    }
}

// What is sent first is received first, whatever its length and memory.
void send_in_order(context &c)
{
    constexpr int messages = 60;
    std::vector<std::unique_ptr<buffer>> out;
    std::vector<std::unique_ptr<buffer>> in;
    const std::uint64_t seed = c.draw_seeds(messages);
    const auto length_of = [](int i) {
        return lengths[static_cast<std::size_t>(i * 4) % std::size(lengths)];
    };
    requests under_way(c);
    at_step("messages in order");
    for (int i = 0; i < messages; ++i) {
        const std::size_t len = length_of(i);
        out.push_back(c.make(c.kind_at(static_cast<std::size_t>(i)), len));
        in.push_back(c.make(c.kind_at(static_cast<std::size_t>(i * 3 + 1)), len));
        c.expect(out.back()->fill(0, len, seed + static_cast<std::uint64_t>(i)), "fill");
        c.expect(in.back()->poison(), "poison");
        if (0 == i % 2) { // half of them are unexpected
            under_way.send(out.back()->data(), len, c.rank, tag);
        }
    }
    for (int i = 0; i < messages; i += 2) {
        under_way.receive(in[static_cast<std::size_t>(i)]->data(), length_of(i), c.rank, tag);
    }
    for (int i = 1; i < messages; i += 2) {
        under_way.receive(in[static_cast<std::size_t>(i)]->data(), length_of(i), c.rank, tag);
    }
    for (int i = 1; i < messages; i += 2) {
        under_way.send(out[static_cast<std::size_t>(i)]->data(), length_of(i), c.rank, tag);
    }
    under_way.wait();
    for (int i = 0; i < messages; ++i) {
        c.expect(in[static_cast<std::size_t>(i)]->compare(0, length_of(i),
                                                          seed + static_cast<std::uint64_t>(i)),
                 "message " + std::to_string(i) + " in order");
        ++c.messages;
    }
}

// Programs send a few bytes to themselves and then receive them.
void send_before_receiving(context &c)
{
    constexpr std::size_t len = 512;
    for (const memory_kind kind : c.kinds) {
        at_step(describe(kind, kind, len, "sent before the receive"));
        auto out = c.make(kind, len);
        auto in = c.make(kind, len);
        const std::uint64_t seed = c.draw_seeds(1);
        c.expect(out->fill(0, len, seed), "fill");
        c.send(out->data(), len, c.rank, tag);
        c.receive(in->data(), len, c.rank, tag);
        c.expect(in->compare(0, len, seed), "sent before the receive");
        ++c.messages;
    }
}

void replace(context &c)
{
    for (const memory_kind kind : c.kinds) {
        for (const std::size_t len : {std::size_t{8}, std::size_t{100000}}) {
            at_step(describe(kind, kind, len, "MPI_Sendrecv_replace"));
            auto both = c.make(kind, len);
            const std::uint64_t seed = c.draw_seeds(1);
            c.expect(both->fill(0, len, seed), "fill");
            c.mpi(MPI_Sendrecv_replace(both->data(), static_cast<int>(len), MPI_BYTE, c.rank, tag,
                                       c.rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv_replace");
            c.expect(both->compare(0, len, seed), "MPI_Sendrecv_replace");
            ++c.messages;
        }
    }
}

} // namespace

void test_self(context &c)
{
    for (const memory_kind from : c.kinds) {
        for (const memory_kind into : c.kinds) {
            for (const std::size_t len : lengths) {
                send_each_way(c, from, into, len);
            }
        }
    }
    send_in_order(c);
    send_before_receiving(c);
    replace(c);
}

// Eager messages of device memory, and nothing else.
void test_self_short(context &c)
{
    const int rounds = 0 != c.rounds ? c.rounds : 1;
    constexpr std::size_t len = 8;
    auto out = c.make(memory_kind::device, len);
    auto in = c.make(memory_kind::device, len);
    for (int i = 0; i < rounds; ++i) {
        const std::uint64_t seed = c.draw_seeds(1);
        c.expect(out->fill(0, len, seed), "fill");
        const message one{c, out->data(), in->data(), static_cast<int>(len)};
        one.sendrecv();
        c.expect(in->compare(0, len, seed), "MPI_Sendrecv");
        ++c.messages;
    }
}

} // namespace gpusm::exchange
