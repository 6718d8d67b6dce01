// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_order.cc: matching: order of messages, unexpected ones, too long ones, many at once,
// and messages to oneself.
#include "tests/mpi/exchange.h"

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
    std::vector<MPI_Request> requests;

    sequence(context &c, int to)
    {
        for (int i = 0; i < sequence_messages; ++i) {
            const std::size_t len = length_of(c.rank, i);
            auto &out = memory.emplace_back(c.make(c.kind_at(static_cast<std::size_t>(i)), len));
            (void)c.expect(out->fill(0, len, seed_of(c.rank, i)), "fill");
        }
        for (int i = 0; i < sequence_messages; ++i) {
            (void)c.mpi(MPI_Isend(memory[static_cast<std::size_t>(i)]->data(),
                                  static_cast<int>(length_of(c.rank, i)), MPI_BYTE, to, data_tag,
                                  MPI_COMM_WORLD, &requests.emplace_back()),
                        "MPI_Isend");
        }
    }
    void wait(context &c)
    {
        (void)c.mpi(
            MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
            "MPI_Waitall");
    }
};

// What arrived is the next message of its sender, and not a later one.
void check_next(context &c, buffer &in, const MPI_Status &status, std::vector<int> &next)
{
    const int from = status.MPI_SOURCE;
    const int message = next[static_cast<std::size_t>(from)]++;
    const std::size_t len = length_of(from, message);
    int count = -1;
    (void)MPI_Get_count(&status, MPI_BYTE, &count);
    const std::string what =
        "message " + std::to_string(message) + " of rank " + std::to_string(from);
    if (c.expect(static_cast<std::size_t>(count) == len
                     ? ""
                     : "length is " + std::to_string(count) + ", expected " + std::to_string(len),
                 what)) {
        (void)c.expect(in.compare(0, len, seed_of(from, message)), what);
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
            (void)MPI_Probe(MPI_ANY_SOURCE, data_tag, MPI_COMM_WORLD, &status);
            int count = 0;
            (void)MPI_Get_count(&status, MPI_BYTE, &count);
            code = MPI_Recv(in->data(), count, MPI_BYTE, status.MPI_SOURCE, data_tag,
                            MPI_COMM_WORLD, &status);
        } else {
            MPI_Message message;
            (void)MPI_Mprobe(MPI_ANY_SOURCE, data_tag, MPI_COMM_WORLD, &message, &status);
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
        sent.wait(c);
    }
}

void test_unexpected(context &c)
{
    at_step("unexpected messages");
    std::vector<int> next(static_cast<std::size_t>(c.ranks), 0);
    char end = 0;
    if (0 == c.rank) {
        sequence sent(c, 1);
        (void)c.mpi(MPI_Send(&end, 1, MPI_CHAR, 1, end_tag, MPI_COMM_WORLD), "MPI_Send");
        sent.wait(c);
    } else if (1 == c.rank) {
        // All of the sequence is here, and unexpected, when this one has been received.
        (void)c.mpi(MPI_Recv(&end, 1, MPI_CHAR, 0, end_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                    "MPI_Recv");
        for (int i = 0; i < sequence_messages; ++i) {
            auto in = c.make(c.kind_at(static_cast<std::size_t>(i / 3)), longest);
            MPI_Status status;
            int flag = 0;
            while (0 == flag) {
                (void)MPI_Iprobe(0, data_tag, MPI_COMM_WORLD, &flag, &status);
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
    constexpr int messages = 1000;
    constexpr std::size_t len = 8;
    if (1 < c.rank) {
        return;
    }
    for (memory_kind kind : c.kinds) {
        at_step(std::string("many messages, ") + bench::describe(kind));
        auto memory = c.make(kind, messages * len);
        std::vector<MPI_Request> requests(messages, MPI_REQUEST_NULL);
        const std::uint64_t seed = c.next_seed++;
        if (0 == c.rank) {
            (void)c.expect(memory->fill(0, messages * len, seed), "fill");
        } else {
            (void)c.expect(memory->poison(), "poison");
        }
        for (int i = 0; i < messages; ++i) {
            void *place = memory->at(static_cast<std::size_t>(i) * len);
            auto *request = &requests[static_cast<std::size_t>(i)];
            const int code =
                0 == c.rank ? MPI_Isend(place, len, MPI_BYTE, 1, data_tag, MPI_COMM_WORLD, request)
                            : MPI_Irecv(place, len, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD, request);
            (void)c.mpi(code, "1000 messages");
        }
        if (c.mpi(MPI_Waitall(messages, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall") &&
            1 == c.rank) {
            (void)c.expect(memory->compare(0, messages * len, seed),
                           std::string("1000 messages of 8 bytes, ") + bench::describe(kind));
            c.messages += messages;
        }
    }
}

// The buffer is longer than MPI_Recv is told: pml/ob1 of Open MPI 5.0 fetches all of a message
// whose sender's memory it can read, also into a receive that is too short for it (every transport
// that offers a get has this), so the test does not look behind the end.
void test_truncation(context &c)
{
    constexpr std::size_t room = 100;
    if (1 < c.rank) {
        return;
    }
    for (memory_kind kind : c.kinds) {
        for (std::size_t len : {std::size_t{4096}, longest}) {
            const std::string what = std::to_string(len) + " bytes into " + std::to_string(room) +
                                     ", " + bench::describe(kind);
            at_step("truncation, " + what);
            auto memory = c.make(kind, len);
            const std::uint64_t seed = c.next_seed++;
            const int n = static_cast<int>(len);
            if (0 == c.rank) {
                (void)c.expect(memory->fill(0, len, seed), "fill");
                (void)c.mpi(MPI_Send(memory->data(), n, MPI_BYTE, 1, data_tag, MPI_COMM_WORLD),
                            "MPI_Send");
                (void)c.mpi(MPI_Send(memory->data(), n, MPI_BYTE, 1, data_tag, MPI_COMM_WORLD),
                            "MPI_Send");
                continue;
            }
            (void)c.expect(memory->poison(), "poison");
            const int code = MPI_Recv(memory->data(), room, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD,
                                      MPI_STATUS_IGNORE);
            int error_class = MPI_SUCCESS;
            (void)MPI_Error_class(code, &error_class);
            (void)c.expect_true(MPI_ERR_TRUNCATE == error_class, what + ", MPI_ERR_TRUNCATE");
            if (c.mpi(MPI_Recv(memory->data(), n, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD,
                               MPI_STATUS_IGNORE),
                      "MPI_Recv")) {
                (void)c.expect(memory->compare(0, len, seed), what + ", the message after it");
                ++c.messages;
            }
        }
    }
}

namespace {

// Open MPI 5.0's btl/self copies what a host buffer sends with memcpy, and so crashes when a long
// message of that kind goes into device memory; those are left out. Nothing of it is gpusm's.
bool btl_self_can(memory_kind from, memory_kind to, std::size_t len)
{
    return len <= 256 || bench::is_gpu(from) || !bench::is_gpu(to);
}

} // namespace

void test_self(context &c)
{
    for (memory_kind from : c.kinds) {
        for (memory_kind to : c.kinds) {
            for (std::size_t len : {std::size_t{0}, std::size_t{16}, longest}) {
                if (!btl_self_can(from, to, len)) {
                    continue;
                }
                const std::string what = describe(from, to, len, "to self");
                at_step(what);
                auto out = c.make(from, len);
                auto in = c.make(to, len);
                const std::uint64_t seed = c.next_seed++;
                (void)c.expect(out->fill(0, len, seed), "fill");
                (void)c.expect(in->poison(), "poison");
                MPI_Request requests[2];
                const int n = static_cast<int>(len);
                (void)c.mpi(MPI_Isend(out->data(), n, MPI_BYTE, c.rank, data_tag, MPI_COMM_WORLD,
                                      &requests[0]),
                            "MPI_Isend");
                (void)c.mpi(MPI_Irecv(in->data(), n, MPI_BYTE, c.rank, data_tag, MPI_COMM_WORLD,
                                      &requests[1]),
                            "MPI_Irecv");
                if (c.mpi(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE), "MPI_Waitall")) {
                    (void)c.expect(in->compare(0, len, seed), what);
                    ++c.messages;
                }
            }
        }
    }
}

} // namespace gpusm::exchange
