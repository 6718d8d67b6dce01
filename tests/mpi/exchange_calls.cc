// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_calls.cc: calls that Open MPI makes of messages and copies, with buffers of every kind:
// partitioned and buffered messages, a buffer that is sent and received into, neighbours, files.
#include "tests/mpi/exchange.h"

#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

namespace gpusm::exchange {

namespace {

constexpr int tag = 67;
constexpr std::size_t guard_bytes = 64;
constexpr int partitions = 4;
constexpr std::size_t lengths[] = {partitions, 4096, 1000000}; // multiples of `partitions`

// From each rank to the one behind it.
struct message {
    context &c;
    buffer &out;
    buffer &in;
    int len;
    std::uint64_t seed; // of this rank's

    int before() const { return (c.rank + c.ranks - 1) % c.ranks; }
    int behind() const { return (c.rank + 1) % c.ranks; }

    void partitioned() const
    {
        MPI_Request all[2];
        c.mpi(MPI_Precv_init(in.data(), partitions, len / partitions, MPI_BYTE, before(), tag,
                             MPI_COMM_WORLD, MPI_INFO_NULL, &all[0]),
              "MPI_Precv_init");
        c.mpi(MPI_Psend_init(out.data(), partitions, len / partitions, MPI_BYTE, behind(), tag,
                             MPI_COMM_WORLD, MPI_INFO_NULL, &all[1]),
              "MPI_Psend_init");
        for (int times = 0; times < 2; ++times) {
            c.expect(in.poison(), "poison");
            c.mpi(MPI_Startall(2, all), "MPI_Startall");
            for (int i = partitions; i-- > 0;) {
                c.mpi(MPI_Pready(i, all[1]), "MPI_Pready");
            }
            c.mpi(MPI_Waitall(2, all, MPI_STATUSES_IGNORE), "MPI_Waitall");
        }
        MPI_Request_free(&all[0]);
        MPI_Request_free(&all[1]);
    }
    void buffered() const
    {
        std::vector<unsigned char> room(static_cast<std::size_t>(len) + MPI_BSEND_OVERHEAD);
        c.mpi(MPI_Buffer_attach(room.data(), static_cast<int>(room.size())), "MPI_Buffer_attach");
        c.mpi(MPI_Bsend(out.data(), len, MPI_BYTE, behind(), tag, MPI_COMM_WORLD), "MPI_Bsend");
        c.receive(in.data(), static_cast<std::size_t>(len), before(), tag);
        void *was = nullptr;
        int was_bytes = 0;
        c.mpi(MPI_Buffer_detach(static_cast<void *>(&was), &was_bytes), "MPI_Buffer_detach");
    }
    void replaced() const
    {
        c.expect(in.fill(0, static_cast<std::size_t>(len), seed), "fill");
        c.mpi(MPI_Sendrecv_replace(in.data(), len, MPI_BYTE, behind(), tag, before(), tag,
                                   MPI_COMM_WORLD, MPI_STATUS_IGNORE),
              "MPI_Sendrecv_replace");
    }
    void neighbours() const
    {
        const int is_periodic = 1;
        MPI_Comm ring = MPI_COMM_NULL;
        c.mpi(MPI_Cart_create(MPI_COMM_WORLD, 1, &c.ranks, &is_periodic, 0, &ring),
              "MPI_Cart_create");
        // First the one before, then the one behind.
        const int sends[2] = {0, len};
        const int receives[2] = {len, 0};
        const MPI_Aint at[2] = {0, 0};
        const MPI_Datatype types[2] = {MPI_BYTE, MPI_BYTE};
        c.mpi(MPI_Neighbor_alltoallw(out.data(), sends, at, types, in.data(), receives, at, types,
                                     ring),
              "MPI_Neighbor_alltoallw");
        MPI_Comm_free(&ring);
    }

    MPI_File opened() const
    {
        const char *folder = std::getenv("TMPDIR");
        int process = getpid();
        c.mpi(MPI_Bcast(&process, 1, MPI_INT, 0, MPI_COMM_WORLD), "MPI_Bcast");
        const std::string path = std::string(nullptr == folder ? "/tmp" : folder) +
                                 "/gpusm_calls." + std::to_string(process);
        MPI_File file = MPI_FILE_NULL;
        c.mpi(MPI_File_open(MPI_COMM_WORLD, path.c_str(),
                            MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                            MPI_INFO_NULL, &file),
              "MPI_File_open");
        return file;
    }
    void file() const
    {
        MPI_File in_turn = opened();
        c.mpi(MPI_File_write_at_all(in_turn, MPI_Offset{c.rank} * len, out.data(), len, MPI_BYTE,
                                    MPI_STATUS_IGNORE),
              "MPI_File_write_at_all");
        c.mpi(MPI_File_sync(in_turn), "MPI_File_sync");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Request under_way = MPI_REQUEST_NULL;
        c.mpi(MPI_File_iread_at(in_turn, MPI_Offset{before()} * len, in.data(), len, MPI_BYTE,
                                &under_way),
              "MPI_File_iread_at");
        c.mpi(MPI_Wait(&under_way, MPI_STATUS_IGNORE), "MPI_Wait");
        c.mpi(MPI_File_close(&in_turn), "MPI_File_close");
    }
    // The ranks' pieces take turns in the file.
    void file_by_pieces() const
    {
        const int piece = len / partitions;
        MPI_File mixed = opened();
        MPI_Datatype every = MPI_DATATYPE_NULL;
        c.mpi(MPI_Type_vector(partitions, piece, piece * c.ranks, MPI_BYTE, &every),
              "MPI_Type_vector");
        MPI_Type_commit(&every);
        const auto see = [&](int rank) {
            c.mpi(MPI_File_set_view(mixed, MPI_Offset{rank} * piece, MPI_BYTE, every, "native",
                                    MPI_INFO_NULL),
                  "MPI_File_set_view");
        };
        see(c.rank);
        c.mpi(MPI_File_write_all(mixed, out.data(), len, MPI_BYTE, MPI_STATUS_IGNORE),
              "MPI_File_write_all");
        c.mpi(MPI_File_sync(mixed), "MPI_File_sync");
        see(before());
        c.mpi(MPI_File_read_all(mixed, in.data(), len, MPI_BYTE, MPI_STATUS_IGNORE),
              "MPI_File_read_all");
        MPI_Type_free(&every);
        c.mpi(MPI_File_close(&mixed), "MPI_File_close");
    }
};

constexpr struct {
    const char *name;
    void (message::*send)() const;
    bool is_of_files = false;
} calls[] = {
    {"partitioned", &message::partitioned},
    {"MPI_Bsend", &message::buffered},
    {"MPI_Sendrecv_replace", &message::replaced},
    {"neighbours", &message::neighbours},
    {"file", &message::file, true},
    {"file by pieces", &message::file_by_pieces, true},
};

// Open MPI main has pwritev(2) read device memory (docs/upstream/open-mpi-6.md).
constexpr bool files_take_device_memory = OMPI_MAJOR_VERSION < 6;

} // namespace

void test_calls(context &c)
{
    for (const memory_kind from : c.kinds) {
        for (const memory_kind into : c.kinds) {
            for (const std::size_t len : lengths) {
                auto out = c.make(from, len);
                auto in = c.make(into, len + guard_bytes);
                for (const auto &call : calls) {
                    if (call.is_of_files && !files_take_device_memory &&
                        (bench::is_gpu(from) || bench::is_gpu(into))) {
                        continue;
                    }
                    const std::string what = describe(from, into, len, call.name);
                    const std::uint64_t seed = c.draw_seeds(static_cast<std::size_t>(c.ranks));
                    const auto seed_of = [seed](int rank) {
                        return seed + static_cast<std::uint64_t>(rank);
                    };
                    at_step(what);
                    c.expect(out->fill(0, len, seed_of(c.rank)), "fill");
                    c.expect(in->poison(), "poison");
                    const message one{c, *out, *in, static_cast<int>(len), seed_of(c.rank)};
                    (one.*call.send)();
                    c.expect(in->compare(0, len, seed_of(one.before())), what);
                    c.expect(in->compare_poison(len, guard_bytes), what + ": behind the message");
                    ++c.messages;
                }
            }
        }
    }
}

} // namespace gpusm::exchange
