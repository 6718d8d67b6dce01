// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_order.cc: matching: order of messages, unexpected ones, many at once, and from senders
// that are outside MPI.
#include "tests/mpi/exchange_tools.h"

namespace gpusm::exchange {

namespace {

constexpr int data_tag = 31;
constexpr int end_tag = 32;
constexpr int sequence_messages = 24;
constexpr std::size_t longest = 100000;

// Lengths jump between what is sent eagerly, by fragments and by get, so that a short message
// would overtake a long one if anything let it.
std::size_t length_of(int sender, int message)
{
    static constexpr std::size_t lengths[] = {longest, 8, 4096, 0, 65537, 100, 1, 20000, 255};
    return lengths[static_cast<std::size_t>(sender * 5 + message) % std::size(lengths)];
}

std::uint64_t seed_of(int sender, int message)
{
    return 7000 + static_cast<std::uint64_t>(sender) * 1000 + static_cast<std::uint64_t>(message);
}

// A sequence of messages with one tag to `to`, from memory of every kind in turn.
struct sequence {
    std::vector<std::unique_ptr<buffer>> memory;
    requests under_way;

    sequence(context &c, int to) : under_way(c)
    {
        for (int i = 0; i < sequence_messages; ++i) {
            const std::size_t len = length_of(c.rank, i);
            auto &out = memory.emplace_back(c.make(c.kind_at(static_cast<std::size_t>(i)), len));
            c.expect(out->fill(0, len, seed_of(c.rank, i)), "fill");
        }
        for (const auto &out : memory) {
            under_way.send(out->data(), out->len_bytes(), to, data_tag);
        }
    }
};

// What arrived is the next message of its sender, and not a later one.
void check_next(context &c, buffer &in, const MPI_Status &status, std::vector<int> &next)
{
    const int from = status.MPI_SOURCE;
    const int message = next[static_cast<std::size_t>(from)]++;
    const std::size_t len = length_of(from, message);
    int count = -1;
    MPI_Get_count(&status, MPI_BYTE, &count);
    const std::string what =
        "message " + std::to_string(message) + " of rank " + std::to_string(from);
    if (c.expect(static_cast<std::size_t>(count) == len
                     ? ""
                     : "length is " + std::to_string(count) + ", expected " + std::to_string(len),
                 what)) {
        c.expect(in.compare(0, len, seed_of(from, message)), what);
    }
    ++c.messages;
}

void receive_from_all(context &c)
{
    std::vector<int> next(static_cast<std::size_t>(c.ranks), 0);
    for (int i = 0; i < sequence_messages * (c.ranks - 1); ++i) {
        auto in = c.make(c.kind_at(static_cast<std::size_t>(i / 2)), longest);
        MPI_Status status;
        int code = MPI_SUCCESS;
        at_step("any source, message " + std::to_string(i));
        if (0 == i % 3) {
            code = MPI_Recv(in->data(), longest, MPI_BYTE, MPI_ANY_SOURCE, data_tag, MPI_COMM_WORLD,
                            &status);
        } else if (1 == i % 3) {
            MPI_Probe(MPI_ANY_SOURCE, data_tag, MPI_COMM_WORLD, &status);
            int count = 0;
            MPI_Get_count(&status, MPI_BYTE, &count);
            code = MPI_Recv(in->data(), count, MPI_BYTE, status.MPI_SOURCE, data_tag,
                            MPI_COMM_WORLD, &status);
        } else {
            MPI_Message message;
            MPI_Mprobe(MPI_ANY_SOURCE, data_tag, MPI_COMM_WORLD, &message, &status);
            code = MPI_Mrecv(in->data(), longest, MPI_BYTE, &message, &status);
        }
        if (c.mpi(code, "receive from any source")) {
            check_next(c, *in, status, next);
        }
    }
}

} // namespace

void test_any_source(context &c)
{
    if (0 == c.rank) {
        receive_from_all(c);
    } else {
        sequence sent(c, 0);
        at_step("any source, sender");
        sent.under_way.wait();
    }
}

void test_unexpected(context &c)
{
    at_step("unexpected messages");
    std::vector<int> next(static_cast<std::size_t>(c.ranks), 0);
    char end = 0;
    if (0 == c.rank) {
        sequence sent(c, 1);
        c.send(&end, 1, 1, end_tag);
        sent.under_way.wait();
    } else if (1 == c.rank) {
        // All of the sequence is here, and unexpected, when this one has been received.
        c.receive(&end, 1, 0, end_tag);
        for (int i = 0; i < sequence_messages; ++i) {
            auto in = c.make(c.kind_at(static_cast<std::size_t>(i / 3)), longest);
            MPI_Status status;
            int flag = 0;
            while (0 == flag) {
                MPI_Iprobe(0, data_tag, MPI_COMM_WORLD, &flag, &status);
            }
            if (c.mpi(MPI_Recv(in->data(), longest, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD, &status),
                      "MPI_Recv")) {
                check_next(c, *in, status, next);
            }
        }
    }
}

void test_many(context &c)
{
    const window all = side_by_side(1000, 8, c.draw_seeds(1000));
    const window none;
    for (memory_kind kind : c.kinds) {
        auto memory = c.make(kind, end_of(all));
        swap_windows(c, *memory, 0 == c.rank ? all : none, *memory, 1 == c.rank ? all : none,
                     data_tag, std::string("1000 messages of 8 bytes, ") + bench::describe(kind));
    }
}

// Host memory for a device from more ranks than there are rings, of which all but the last one have
// begun to send and are outside MPI: what the receiver can read by itself comes, and what the last
// one sends comes in any case.
void test_silent_senders(context &c)
{
    constexpr std::size_t sent = 0;
    constexpr std::size_t rings_are_lent = 1;
    constexpr std::size_t over = 2;
    constexpr int calls_enough = 1000; // of progress, to begin with what has been sent
    const int last = c.ranks - 1;
    for (const std::size_t len_bytes : {std::size_t{65536}, std::size_t{400000}}) {
        const bool all_come = 400000 == len_bytes; // else the senders help
        const std::string what = std::to_string(len_bytes) + " bytes from silent senders";
        at_step(what);
        const std::uint64_t seed = c.draw_seeds(static_cast<std::size_t>(c.ranks));
        const shared_counters<3> state(c);
        std::vector<std::unique_ptr<buffer>> memory;
        std::vector<MPI_Request> under_way(static_cast<std::size_t>(c.ranks), MPI_REQUEST_NULL);
        if (0 == c.rank) {
            for (int from = 1; from <= last; ++from) {
                auto &in = memory.emplace_back(c.make(memory_kind::device, len_bytes));
                c.expect(in->poison(), "poison");
                MPI_Irecv(in->data(), static_cast<int>(len_bytes), MPI_BYTE, from, data_tag,
                          MPI_COMM_WORLD, &under_way[static_cast<std::size_t>(from)]);
            }
            state.wait(sent, last - 1);
            int flag = 0;
            for (int i = 0; i < calls_enough; ++i) {
                MPI_Testall(c.ranks, under_way.data(), &flag, MPI_STATUSES_IGNORE);
            }
            state.add(rings_are_lent);
            all_come ? MPI_Waitall(c.ranks, under_way.data(), MPI_STATUSES_IGNORE)
                     : MPI_Wait(&under_way[static_cast<std::size_t>(last)], MPI_STATUS_IGNORE);
            state.add(over);
            MPI_Waitall(c.ranks, under_way.data(), MPI_STATUSES_IGNORE);
            for (int from = 1; from <= last; ++from) {
                c.expect(memory[static_cast<std::size_t>(from - 1)]->compare(
                             0, len_bytes, seed + static_cast<std::uint64_t>(from)),
                         what);
                ++c.messages;
            }
        } else {
            auto &out = memory.emplace_back(c.make(memory_kind::host, len_bytes));
            c.expect(out->fill(0, len_bytes, seed + static_cast<std::uint64_t>(c.rank)), "fill");
            if (last == c.rank) {
                state.wait(rings_are_lent, 1);
            }
            MPI_Isend(out->data(), static_cast<int>(len_bytes), MPI_BYTE, 0, data_tag,
                      MPI_COMM_WORLD, under_way.data());
            state.add(sent);
            if (last != c.rank) {
                state.wait(over, 1);
            }
            MPI_Wait(under_way.data(), MPI_STATUS_IGNORE);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

} // namespace gpusm::exchange
