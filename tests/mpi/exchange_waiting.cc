// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_waiting.cc: a kernel of the program waits on the device for a message. Calls of the
// driver that wait for kernels must not be made meanwhile, or the program hangs.
#include "tests/mpi/waiting_work.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 132;

constexpr std::size_t row_bytes = 4096;

// Every second row of so many bytes.
class rows_with_gaps {
  public:
    explicit rows_with_gaps(std::size_t len_bytes)
    {
        MPI_Type_vector(static_cast<int>(len_bytes / row_bytes / 2), row_bytes, 2 * row_bytes,
                        MPI_BYTE, &type_);
        MPI_Type_commit(&type_);
    }
    ~rows_with_gaps() { MPI_Type_free(&type_); }
    rows_with_gaps(const rows_with_gaps &) = delete;
    rows_with_gaps &operator=(const rows_with_gaps &) = delete;
    MPI_Datatype get() const { return type_; }

  private:
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

} // namespace

// "A program whose kernel waits on the device for a message does not hang because of another one":
// while work of rank 1 waits, memory goes that it had mapped, other memory comes, and many small
// messages, for which a kernel might be loaded. With --rounds 1 in a stream that only the parameter
// kernel_blocks tells gpusm of.
void test_work_waits(context &c)
{
    constexpr std::size_t len = 3u << 20;
    constexpr std::size_t few = 64;
    constexpr int small_ones = 40;
    const unsigned flags = 1 == c.rounds ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    auto in = c.make(memory_kind::device, len);
    const rows_with_gaps rows(len);
    for (int round = 0; round < 3; ++round) {
        auto first = c.make(memory_kind::device, len);
        auto second = c.make(memory_kind::device, len);
        const std::uint64_t seed = c.draw_seeds(1);
        c.expect(second->fill(0, len, seed), "fill");
        at_step("memory that is mapped");
        if (0 == c.rank) {
            c.send(first->data(), len, 1, tag);
            first.reset();
        } else {
            c.receive(in->data(), len, 0, tag);
        }
        std::vector<std::unique_ptr<buffer>> others;
        std::vector<std::unique_ptr<buffer>> spread;
        for (const memory_kind kind : c.kinds) { // the receiver's have had no message yet
            others.push_back(c.make(0 == c.rank ? kind : memory_kind::device, len));
            c.expect(others.back()->fill(0, 0 == c.rank ? len : 0, seed), "fill");
            spread.push_back(c.make(memory_kind::device, len));
        }
        std::unique_ptr<waiting_work> work;
        if (1 == c.rank) {
            work = std::make_unique<waiting_work>(c, flags);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        at_step("messages into new memory while work waits");
        for (const auto &each : others) {
            if (0 == c.rank) {
                c.send(each->data(), len, 1, tag);
            } else {
                c.receive(each->data(), len, 0, tag);
            }
        }
        at_step("messages with gaps while work waits");
        for (std::size_t i = 0; i < others.size(); ++i) {
            if (0 == c.rank) {
                c.send(others[i]->data(), len / 2, 1, tag);
            } else {
                c.mpi(MPI_Recv(spread[i]->data(), 1, rows.get(), 0, tag, MPI_COMM_WORLD,
                               MPI_STATUS_IGNORE),
                      "MPI_Recv of a type with gaps");
            }
        }
        at_step("messages while work waits");
        requests under_way(c);
        if (0 == c.rank) {
            c.send(second->data(), len, 1, tag);
            for (std::size_t i = 0; i < small_ones; ++i) {
                under_way.send(second->at(i * few), few, 1, tag);
            }
        } else {
            c.receive(in->data(), len, 0, tag);
            for (std::size_t i = 0; i < small_ones; ++i) {
                under_way.receive(in->at(i * few), few, 0, tag);
            }
        }
        under_way.wait();
        for (int i = 0; i < 1000; ++i) { // housekeeping
            int flag = 0;
            MPI_Iprobe(1 - c.rank, tag + 1, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        }
        work.reset();
        if (1 == c.rank) {
            c.expect(in->compare(0, len, seed), "a message while work waits");
            for (const auto &each : others) {
                c.expect(each->compare(0, len, seed), "a message into new memory");
                ++c.messages;
            }
            for (const auto &each : spread) {
                for (std::size_t at = 0; at < len / 2; at += row_bytes) {
                    c.expect(each->compare(2 * at, row_bytes, seed, at), "a message with gaps");
                }
                ++c.messages;
            }
            ++c.messages;
        }
    }
}

// The first messages of a job, for which kernels are loaded and memory is registered, while work of
// the receiver waits already.
void test_work_waits_first(context &c)
{
    constexpr std::size_t len = 3u << 20;
    constexpr std::size_t few = 64;
    constexpr std::size_t small_ones = 40;
    auto from = c.make(c.kinds.front(), len);
    auto into = c.make(memory_kind::device, len);
    const std::uint64_t seed = c.draw_seeds(1);
    c.expect(from->fill(0, len, seed), "fill");
    c.expect(into->poison(), "poison");
    std::unique_ptr<waiting_work> work;
    if (1 == c.rank) {
        work = std::make_unique<waiting_work>(c, CU_STREAM_DEFAULT);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    at_step("first messages while work waits");
    requests small(c);
    for (std::size_t i = 0; i < small_ones; ++i) {
        0 == c.rank ? small.send(from->at(i * few), few, 1, tag)
                    : small.receive(into->at(i * few), few, 0, tag);
    }
    small.wait();
    if (0 == c.rank) {
        c.send(from->data(), len, 1, tag);
    } else {
        c.receive(into->data(), len, 0, tag);
    }
    work.reset();
    if (1 == c.rank) {
        c.expect(into->compare(0, len, seed), "a message while work waits");
        c.messages += small_ones + 1;
    }
}

// The first MPI_Get of a process whose work waits.
void test_work_waits_window(context &c)
{
    constexpr std::size_t len = 1u << 20;
    for (const memory_kind kind : c.kinds) {
        auto theirs = c.make(kind, len);
        auto mine = c.make(memory_kind::device, len);
        const std::uint64_t seed = c.draw_seeds(1);
        c.expect(theirs->fill(0, len, seed), "fill");
        at_step("a window, and MPI_Get by the other rank");
        MPI_Win shared = MPI_WIN_NULL;
        c.mpi(MPI_Win_create(theirs->data(), static_cast<MPI_Aint>(len), 1, MPI_INFO_NULL,
                             MPI_COMM_WORLD, &shared),
              "MPI_Win_create");
        std::unique_ptr<waiting_work> work;
        if (1 == c.rank) {
            work = std::make_unique<waiting_work>(c, CU_STREAM_DEFAULT);
            at_step("MPI_Get while work waits");
            c.mpi(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, shared), "MPI_Win_lock");
            c.mpi(MPI_Get(mine->data(), static_cast<int>(len), MPI_BYTE, 0, 0,
                          static_cast<int>(len), MPI_BYTE, shared),
                  "MPI_Get");
            c.mpi(MPI_Win_unlock(0, shared), "MPI_Win_unlock");
            work.reset();
            c.expect(mine->compare(0, len, seed), "MPI_Get while work waits");
            ++c.messages;
        }
        MPI_Win_free(&shared);
    }
}

// Collectives into memory that no peer has mapped yet, from memory that has been sent from before.
void test_work_waits_collective(context &c)
{
    constexpr std::size_t len = 4u << 20;
    constexpr int ints = len / sizeof(int);
    const auto ranks = static_cast<std::size_t>(c.ranks);
    const auto gather_and_combine = [&c](const buffer &from, buffer &gathered, buffer &combined) {
        c.mpi(MPI_Allgather(from.data(), len, MPI_BYTE, gathered.data(), len, MPI_BYTE,
                            MPI_COMM_WORLD),
              "MPI_Allgather");
        c.mpi(MPI_Allreduce(from.data(), combined.data(), ints, MPI_INT, MPI_BOR, MPI_COMM_WORLD),
              "MPI_Allreduce");
    };
    for (const memory_kind kind : c.kinds) {
        auto mine = c.make(kind, len);
        const std::uint64_t seed = c.draw_seeds(1);
        c.expect(mine->fill(0, len, seed), "fill");
        at_step("collectives before");
        gather_and_combine(*mine, *c.make(kind, ranks * len), *c.make(kind, len));
        auto gathered = c.make(kind, ranks * len);
        auto combined = c.make(kind, len);
        std::unique_ptr<waiting_work> work;
        if (1 == c.rank) {
            work = std::make_unique<waiting_work>(c, CU_STREAM_DEFAULT);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        at_step("collectives into new memory while work waits");
        gather_and_combine(*mine, *gathered, *combined);
        MPI_Barrier(MPI_COMM_WORLD);
        work.reset();
        for (std::size_t from = 0; from < ranks; ++from) {
            c.expect(gathered->compare(from * len, len, seed), "MPI_Allgather");
        }
        c.expect(combined->compare(0, len, seed), "MPI_Allreduce");
        c.messages += 2;
    }
}

// ---------------------------------------------------------------------- a peer ends meanwhile

namespace {

constexpr std::size_t streamed_bytes = 1u << 20;
constexpr int streamed_messages = 20; // the first ones may go another way

// A part of this process's addresses that is a segment of the transport.
struct mapped_segment {
    std::string path;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

std::vector<mapped_segment> mapped_segments()
{
    std::vector<mapped_segment> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const std::size_t path = line.find('/');
        mapped_segment each;
        if (std::string::npos != line.find("/gpusm.") &&
            2 == std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &each.begin, &each.end)) {
            each.path = line.substr(path);
            found.push_back(each);
        }
    }
    return found;
}

// Of those that are mapped now and were not then.
std::vector<mapped_segment> mapped_since(const std::vector<mapped_segment> &then)
{
    std::vector<mapped_segment> now = mapped_segments();
    std::erase_if(now, [&](const mapped_segment &each) {
        return std::any_of(then.begin(), then.end(),
                           [&](const mapped_segment &known) { return known.path == each.path; });
    });
    return now;
}

// Has somebody registered a part of it with the driver?
bool has_registered_part(const mapped_segment &in)
{
    constexpr std::uint64_t step = 4096;
    for (std::uint64_t at = in.begin; at < in.end; at += step) {
        CUmemorytype kind{};
        if (CUDA_SUCCESS ==
                CU(cuPointerGetAttribute)(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) &&
            CU_MEMORYTYPE_HOST == kind) {
            return true;
        }
    }
    return false;
}

// Rank 0 sends as long as `more` says so; rank 1 answers.
template <typename More> void go_on(context &c, const More &more)
{
    char again = 1;
    while (0 != again) {
        again = 0 == c.rank && more() ? 1 : 0;
        if (0 == c.rank) {
            c.send(&again, 1, 1, tag);
        } else {
            c.receive(&again, 1, 0, tag);
        }
        char answer = 0;
        if (0 == c.rank) {
            c.receive(&answer, 1, 1, tag + 1);
        } else {
            c.send(&answer, 1, 0, tag + 1);
        }
        ++c.messages;
    }
}

} // namespace

// "Nor because of a process that has ended": its ring in host memory, registered with the driver of
// rank 0 for memory of a kind that no other process can map, is given back when no kernel runs, and
// messages go on until then.
void test_work_waits_child_ends(context &c)
{
    constexpr double going_on_s = 0.5; // housekeeping looks at a peer each millisecond
    auto memory = c.make(c.kinds[0], streamed_bytes);
    std::unique_ptr<waiting_work> work;
    std::vector<mapped_segment> before;
    pid_t child = 0;
    go_on(c, [] { return false; }); // they know each other
    if (0 == c.rank) {
        before = mapped_segments();
        char subtest[] = "streamed-child";
        char *arguments[] = {subtest, nullptr};
        MPI_Comm between = MPI_COMM_NULL;
        at_step("a child");
        if (c.mpi(MPI_Comm_spawn(c.argv[0], arguments, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &between,
                                 MPI_ERRCODES_IGNORE),
                  "MPI_Comm_spawn")) {
            c.expect(memory->fill(0, streamed_bytes, 1), "fill");
            for (int i = 0; i < streamed_messages; ++i) {
                c.mpi(MPI_Send(memory->data(), streamed_bytes, MPI_BYTE, 0, tag, between),
                      "MPI_Send");
            }
            c.mpi(MPI_Recv(&child, sizeof(child), MPI_BYTE, 0, tag, between, MPI_STATUS_IGNORE),
                  "MPI_Recv");
            const std::vector<mapped_segment> its = mapped_since(before);
            c.expect_true(std::any_of(its.begin(), its.end(), has_registered_part),
                          "a ring of the child is registered with the driver");
            work = std::make_unique<waiting_work>(c, CU_STREAM_DEFAULT);
            MPI_Comm_disconnect(&between);
        }
    }
    at_step("messages while work waits and a child ends");
    double ended_at = 0;
    go_on(c, [&] {
        if (0 == ended_at && (child <= 0 || (0 != kill(child, 0) && ESRCH == errno))) {
            ended_at = MPI_Wtime();
        }
        return 0 == ended_at || MPI_Wtime() - ended_at < going_on_s;
    });
    work.reset();
    at_step("giving back what was kept for the child");
    const double end = MPI_Wtime() + 20;
    go_on(c, [&] { return !mapped_since(before).empty() && MPI_Wtime() < end; });
    c.expect_true(0 != c.rank || mapped_since(before).empty(),
                  "the child's segment is given back when no work waits");
}

void streamed_child(context &c)
{
    MPI_Comm parent = MPI_COMM_NULL;
    MPI_Comm_get_parent(&parent);
    if (!c.expect_true(MPI_COMM_NULL != parent, "the child has a parent")) {
        return;
    }
    auto memory = c.make(memory_kind::host, streamed_bytes);
    for (int i = 0; i < streamed_messages; ++i) {
        c.mpi(MPI_Recv(memory->data(), streamed_bytes, MPI_BYTE, 0, tag, parent, MPI_STATUS_IGNORE),
              "MPI_Recv");
    }
    c.expect(memory->compare(0, streamed_bytes, 1), "compare");
    pid_t self = getpid();
    c.mpi(MPI_Send(&self, sizeof(self), MPI_BYTE, 0, tag, parent), "MPI_Send");
    MPI_Comm_disconnect(&parent);
}

} // namespace gpusm::exchange
