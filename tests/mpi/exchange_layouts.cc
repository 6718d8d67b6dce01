// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_layouts.cc: datatypes that programs make again and again, at absolute addresses, and of
// memory on another device than the thread's.
#include "tests/mpi/waiting_work.h"

#include <cstdlib>
#include <numeric>
#include <vector>

namespace gpusm::exchange {

namespace {

constexpr int tag = 73;

// --- reductions of MPI_BOTTOM ------------------------------------------------------------------

// What is added to the addresses that the program's operation is given.
MPI_Aint distance = 0;

void add_there(void *in, void *inout, int *count, MPI_Datatype *)
{
    const auto *from = reinterpret_cast<double *>(static_cast<char *>(in) + distance);
    auto *into = reinterpret_cast<double *>(static_cast<char *>(inout) + distance);
    for (int i = 0; i < *count; ++i) {
        into[i] += from[i];
    }
}

MPI_Datatype double_at(const void *address)
{
    MPI_Datatype there = MPI_DATATYPE_NULL;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Get_address(address, &distance);
    MPI_Type_create_hindexed_block(1, 1, &distance, MPI_DOUBLE, &there);
    MPI_Type_create_resized(there, 0, sizeof(double), &made);
    MPI_Type_commit(&made);
    MPI_Type_free(&there);
    return made;
}

// --- many datatypes ----------------------------------------------------------------------------

std::size_t free_bytes(context &c)
{
    std::size_t all = 0;
    std::size_t left = 0;
    c.expect_true(CUDA_SUCCESS == c.gpu->driver().mem_get_info(&left, &all), "cuMemGetInfo");
    return left;
}

// Of ints, none of them beside another.
MPI_Datatype irregular(int blocks, int number)
{
    std::vector<int> places(static_cast<std::size_t>(blocks));
    for (int i = 0; i < blocks; ++i) {
        places[static_cast<std::size_t>(i)] = 4 * i + (7 * i + number) % 3;
    }
    MPI_Datatype made = MPI_DATATYPE_NULL;
    MPI_Type_create_indexed_block(blocks, 1, places.data(), MPI_INT, &made);
    MPI_Type_commit(&made);
    return made;
}

void send_one_way(context &c, const buffer &at, MPI_Datatype type, const char *what)
{
    c.mpi(0 == c.rank ? MPI_Send(at.data(), 1, type, 1, tag, MPI_COMM_WORLD)
                      : MPI_Recv(at.data(), 1, type, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
          what);
}

} // namespace

// Longer than what is reduced at once, by an operation of the program's.
void test_absolute_reductions(context &c)
{
    constexpr std::size_t count = (std::size_t{20} << 20) / sizeof(double) + 1;
    MPI_Op add = MPI_OP_NULL;
    MPI_Op_create(add_there, 1, &add);
    for (const memory_kind kind : c.kinds) {
        auto of = c.make(kind, count * sizeof(double));
        const MPI_Datatype type = double_at(of->data());
        for (const bool is_scan : {false, true}) {
            const std::string what =
                std::string(is_scan ? "MPI_Scan" : "MPI_Allreduce") + " of MPI_BOTTOM";
            at_step(what);
            std::vector<double> all(count);
            std::iota(all.begin(), all.end(), c.rank);
            c.expect(of->write(0, all.data(), count * sizeof(double)), "fill");
            c.mpi((is_scan ? MPI_Scan : MPI_Allreduce)(
                      MPI_IN_PLACE, MPI_BOTTOM, static_cast<int>(count), type, add, MPI_COMM_WORLD),
                  what);
            c.expect(of->read(0, all.data(), count * sizeof(double)), "read");
            const int ranks = is_scan ? c.rank + 1 : c.ranks;
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < count; ++i) {
                const double wanted =
                    static_cast<double>(ranks) * static_cast<double>(i) + 0.5 * ranks * (ranks - 1);
                wrong += wanted == all[i] ? 0 : 1;
            }
            c.expect_true(0 == wrong, what + ": " + std::to_string(wrong) + " wrong elements");
            ++c.messages;
        }
        MPI_Datatype over = type;
        MPI_Type_free(&over);
    }
    MPI_Op_free(&add);
}

// What the lists of their blocks take is used again, also while the program's default stream has
// work that does not end.
void test_many_types(context &c)
{
    constexpr int blocks = 65536;
    constexpr int types = 60;
    constexpr std::size_t most_bytes = std::size_t{16} << 20; // a list has 1.5 MiB
    auto at = c.make(memory_kind::device, std::size_t{blocks} * 4 * sizeof(int));
    c.expect(at->poison(), "poison");
    const auto send_new_ones = [&](int number) {
        for (int i = 0; i < number; ++i) {
            at_step("datatype " + std::to_string(i));
            MPI_Datatype type = irregular(blocks, i);
            send_one_way(c, *at, type, "a datatype that is new");
            MPI_Type_free(&type);
            ++c.messages;
        }
    };
    const auto take_no_more = [&](std::size_t before, const char *when) {
        const std::size_t after = free_bytes(c);
        c.expect_true(after + most_bytes > before,
                      std::to_string(types) + " datatypes that are gone take " +
                          std::to_string((before - after) >> 20) + " MiB, " + when);
        return after;
    };
    send_new_ones(5);
    std::size_t left = free_bytes(c);
    send_new_ones(types);
    left = take_no_more(left, "with nothing else to do");
    const waiting_work work(c, CU_STREAM_DEFAULT);
    send_new_ones(types);
    (void)take_no_more(left, "while work waits");
}

// Of a 32-bit integer: each rank may name it as it likes.
void test_type_handles(context &c)
{
    const MPI_Datatype handles[] = {MPI_INT, MPI_INT32_T};
    const MPI_Datatype mine = handles[c.rank % 2];
    for (const memory_kind kind : c.kinds) {
        auto out = c.make(kind, sizeof(int));
        auto in = c.make(kind, sizeof(int));
        const auto call = [&](const char *what, int wanted, bool is_for_all, const auto &start) {
            at_step(what);
            const int value = 10 + c.rank;
            const int nothing = 0;
            c.expect(out->write(0, &value, sizeof(value)), "fill");
            c.expect(in->write(0, &nothing, sizeof(nothing)), "fill");
            MPI_Request request = MPI_REQUEST_NULL;
            c.mpi(start(&request), what);
            c.mpi(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
            int got = 0;
            c.expect(in->read(0, &got, sizeof(got)), "read");
            c.expect_true(got == (is_for_all || 0 == c.rank ? wanted : 0), what);
            ++c.messages;
        };
        call("MPI_Iallreduce", 10 + c.ranks - 1, true, [&](MPI_Request *request) {
            return MPI_Iallreduce(out->data(), in->data(), 1, mine, MPI_MAX, MPI_COMM_WORLD,
                                  request);
        });
        call("MPI_Ireduce", 10, false, [&](MPI_Request *request) {
            return MPI_Ireduce(out->data(), in->data(), 1, mine, MPI_MIN, 0, MPI_COMM_WORLD,
                               request);
        });
    }
}

// Memory of another device than the one that is current, as a message without gaps and then with
// them, which is looked at first with either of the two devices current.
void test_other_device(context &c)
{
    constexpr int rows = 1000;
    constexpr int row = 16;
    constexpr std::size_t len = std::size_t{rows} * 2 * row;
    const auto second = second_device(c);
    if (nullptr == second) {
        return;
    }
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Type_vector(rows, row, 2 * row, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    for (const memory_kind kind : c.kinds) {
        for (const bool is_there_first : {false, true}) {
            c.expect(second->make_current(), "the second device");
            auto at = c.make_on(second.get(), kind, len);
            for (int i = 0; i < 4; ++i) {
                const bool with_gaps = 0 != i;
                const std::string what = describe(kind, kind, len, with_gaps ? "gaps" : "none");
                at_step(what);
                c.expect(second->make_current(), "the second device");
                const std::uint64_t seed = c.draw_seeds(1);
                c.expect(0 == c.rank ? at->fill(0, len, seed) : at->poison(), "fill");
                const bool is_there = is_there_first == (i < 2);
                c.expect((is_there ? second : c.gpu)->make_current(), "a device");
                MPI_Datatype whole = MPI_DATATYPE_NULL;
                MPI_Type_contiguous(static_cast<int>(len), MPI_BYTE, &whole);
                MPI_Type_commit(&whole);
                send_one_way(c, *at, with_gaps ? type : whole, what.c_str());
                MPI_Type_free(&whole);
                c.expect(second->make_current(), "the second device");
                for (std::size_t piece = 0; piece < (1 == c.rank ? len : 0); piece += 2 * row) {
                    c.expect(at->compare(piece, row, seed, piece), what);
                    c.expect(with_gaps ? at->compare_poison(piece + row, row)
                                       : at->compare(piece + row, row, seed, piece + row),
                             what + ": gaps");
                }
                ++c.messages;
            }
        }
    }
    MPI_Type_free(&type);
    c.use_gpu();
}

} // namespace gpusm::exchange
