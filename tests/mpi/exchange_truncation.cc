// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_truncation.cc: a message that is too long for its receive is an error of that receive,
// whose first part is right; it writes nothing behind the buffer, and harms no message after it.
#include "tests/mpi/exchange.h"

#include <array>
#include <cstring>

namespace gpusm::exchange {

namespace {

constexpr int data_tag = 71;
constexpr int word_tag = 72;
constexpr std::size_t guard_bytes = 64;

// How a message is received.
enum class call { recv, posted_irecv, late_irecv, mrecv, imrecv, persistent, count };

const char *describe(call how)
{
    constexpr const char *names[] = {
        "MPI_Recv",  "MPI_Irecv that waits", "MPI_Irecv of what has come",
        "MPI_Mrecv", "MPI_Imrecv",           "MPI_Recv_init"};
    return names[static_cast<int>(how)];
}

class too_short {
  public:
    too_short(context &c, call how, std::string what) : c_(c), how_(how), what_(std::move(what)) {}

    // Rank 0: `len` bytes, and again, as much as fits the second receive.
    void send(const buffer &out, std::size_t len, std::size_t second)
    {
        at_step(what_);
        word(call::posted_irecv == how_ || call::persistent == how_, 1);
        requests under_way(c_);
        under_way.send(out.data(), len, 1, data_tag);
        word(call::late_irecv == how_, 0);
        under_way.send(out.data(), second, 1, data_tag);
        under_way.wait();
    }

    // Rank 1: `room` bytes; the second receive takes `second`.
    void receive(void *at, std::size_t room, std::size_t second, const std::function<void()> &look)
    {
        at_step(what_);
        word(call::late_irecv == how_, 0);
        MPI_Request request = MPI_REQUEST_NULL;
        int error_class = MPI_SUCCESS;
        MPI_Error_class(first(at, static_cast<int>(room), &request), &error_class);
        c_.expect_true(MPI_ERR_TRUNCATE == error_class, what_ + ", MPI_ERR_TRUNCATE");
        look();
        if (MPI_REQUEST_NULL != request) { // Open MPI may have freed it for its error
            MPI_Request_free(&request);
        }
        c_.receive(at, second, 0, data_tag);
        ++c_.messages;
    }

  private:
    // Empty, from one rank to the other, when it is needed.
    void word(bool needed, int from)
    {
        char none = 0;
        if (needed) {
            (void)(from == c_.rank ? c_.send(&none, 0, 1 - from, word_tag)
                                   : c_.receive(&none, 0, from, word_tag));
        }
    }

    int first(void *at, int room, MPI_Request *request)
    {
        MPI_Message message = MPI_MESSAGE_NULL;
        int found = 0;
        switch (how_) {
        case call::posted_irecv:
        case call::late_irecv:
            MPI_Irecv(at, room, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD, request);
            word(call::posted_irecv == how_, 1);
            return MPI_Wait(request, MPI_STATUS_IGNORE);
        case call::mrecv:
            MPI_Mprobe(0, data_tag, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
            return MPI_Mrecv(at, room, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        case call::imrecv:
            while (0 == found) {
                MPI_Improbe(0, data_tag, MPI_COMM_WORLD, &found, &message, MPI_STATUS_IGNORE);
            }
            MPI_Imrecv(at, room, MPI_BYTE, &message, request);
            return MPI_Wait(request, MPI_STATUS_IGNORE);
        case call::persistent:
            MPI_Recv_init(at, room, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD, request);
            MPI_Start(request);
            word(true, 1);
            return MPI_Wait(request, MPI_STATUS_IGNORE);
        default:
            return MPI_Recv(at, room, MPI_BYTE, 0, data_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }

    context &c_;
    call how_;
    std::string what_;
};

std::string describe(memory_kind from, memory_kind to, std::size_t len, std::size_t room, call how)
{
    return exchange::describe(from, to, len, "into ") + std::to_string(room) + " by " +
           describe(how);
}

// Some calls in turn, so that all come about with every pair of kinds.
template <typename Each> void for_some_calls(int &turn, const Each &each)
{
    constexpr int at_once = 2;
    for (int i = 0; i < at_once; ++i) {
        each(static_cast<call>(turn++ % static_cast<int>(call::count)));
    }
}

// `room` bytes in the middle of an allocation that would hold the whole message.
void within_an_allocation(context &c, memory_kind from, memory_kind to, bool look_behind)
{
    constexpr std::size_t lengths[] = {64, 200, 4096, 9000, 100000, 300001};
    constexpr std::size_t longest = lengths[std::size(lengths) - 1];
    auto memory = c.make(0 == c.rank ? from : to, longest + 2 * guard_bytes);
    int turn = 0;
    for (std::size_t len : lengths) {
        for (std::size_t room : {0, 16, 8193}) {
            if (room >= len) {
                continue;
            }
            for_some_calls(turn, [&](call how) {
                const std::uint64_t seed = c.next_seed++;
                const std::string what = describe(from, to, len, room, how);
                if (0 == c.rank) {
                    c.expect(memory->fill(0, len, seed), "fill");
                    too_short(c, how, what).send(*memory, len, len);
                    return;
                }
                c.expect(memory->poison(0, len + 2 * guard_bytes), "poison");
                too_short(c, how, what).receive(memory->at(guard_bytes), room, len, [&] {
                    c.expect(memory->compare(guard_bytes, room, seed), what);
                    c.expect(memory->compare_poison(0, guard_bytes), what + ", before it");
                    if (look_behind) {
                        c.expect(
                            memory->compare_poison(guard_bytes + room, len + guard_bytes - room),
                            what + ", behind it");
                    }
                });
                c.expect(memory->compare(guard_bytes, len, seed), what + ", the next message");
            });
        }
    }
}

// `room` bytes that are a whole allocation, between others.
void at_the_end_of_an_allocation(context &c, memory_kind from, memory_kind to)
{
    constexpr std::size_t lengths[] = {1024, 20000, 100000};
    constexpr std::size_t longest = lengths[std::size(lengths) - 1];
    int turn = 0;
    for (std::size_t room : {512, 4096, 65536}) {
        std::vector<std::unique_ptr<buffer>> row;
        for (int i = 0; i < (0 == c.rank ? 1 : 4); ++i) {
            row.push_back(c.make(0 == c.rank ? from : to, 0 == c.rank ? longest : room));
        }
        for (std::size_t len : lengths) {
            if (room >= len) {
                continue;
            }
            for_some_calls(turn, [&](call how) {
                const std::uint64_t seed = c.next_seed++;
                const std::string what = describe(from, to, len, room, how) + ", all of it";
                if (0 == c.rank) {
                    c.expect(row[0]->fill(0, len, seed), "fill");
                    too_short(c, how, what).send(*row[0], len, room);
                    return;
                }
                for (const auto &each : row) {
                    c.expect(each->poison(), "poison");
                }
                too_short(c, how, what).receive(row[1]->data(), room, room, [&] {
                    c.expect(row[1]->compare(0, room, seed), what);
                    for (std::size_t other : {0, 2, 3}) {
                        c.expect(row[other]->compare_poison(0, room), what + ", in another one");
                    }
                });
                c.expect(row[1]->compare(0, room, seed), what + ", the next message");
            });
        }
    }
}

} // namespace

bool open_mpi_keeps_within()
{
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
    int length = 0;
    MPI_Get_library_version(version.data(), &length);
    return nullptr != std::strstr(version.data(), "ob1-rget-truncate");
}

void test_truncation(context &c)
{
    const bool look_behind = open_mpi_keeps_within();
    for (memory_kind from : c.kinds) {
        for (memory_kind to : c.kinds) {
            within_an_allocation(c, from, to, look_behind);
        }
    }
    if (!look_behind && 0 == c.rank) {
        c.skip_because = "this Open MPI writes behind buffers that are too short, as it was not "
                         "patched; all else is as it should be";
    }
}

// What gpusm promises in every Open MPI.
void test_truncation_at_end(context &c)
{
    const bool everywhere = open_mpi_keeps_within();
    for (memory_kind from : c.kinds) {
        for (memory_kind to : c.kinds) {
            if (everywhere || bench::is_gpu(to)) {
                at_the_end_of_an_allocation(c, from, to);
            }
        }
    }
}

} // namespace gpusm::exchange
