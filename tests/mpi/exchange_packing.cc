// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange_packing.cc: MPI_Pack, MPI_Unpack and MPI_Sendrecv_replace of derived datatypes, for
// every pair of memory kinds: every byte, the gaps and what is around, positions, and buffers that
// are too small.
#include "tests/mpi/exchange_views.h"

#include <cstdio>

namespace gpusm::exchange {

namespace {

const MPI_Comm world = MPI_COMM_WORLD;

class packing : private view_pair {
  public:
    using view_pair::view_pair;

    void run()
    {
        pack(false);
        unpack(false);
        replace(false);
        if (c_.views) {
            pack(true);
            unpack(true);
            replace(true);
        }
        too_small();
    }

  private:
    static constexpr int before = 7; // bytes in front of what is packed

    // Two messages, one behind the other.
    void pack(bool is_tight)
    {
        for_all("MPI_Pack", [&](const sample_type &of, int count, std::uint64_t seed,
                                const std::string &what) {
            strided_memory from(c_, from_, of, count, is_tight);
            const int len = static_cast<int>(from.len_bytes());
            strided_memory packed(c_, to_, plain_bytes(), before + 2 * len + 1);
            packed.poison();
            int position = before;
            for (int i : {0, 1}) {
                from.fill(seed + static_cast<std::uint64_t>(i));
                ok(MPI_Pack(from.at(), count, of.type, packed.at(), before + 2 * len, &position,
                            world),
                   what);
                c_.expect_true(before + (i + 1) * len == position, what + ": position");
                packed.expect_message(before + i * len, len, seed + static_cast<std::uint64_t>(i),
                                      from.len_bytes());
            }
            packed.check_all(what);
        });
    }

    void unpack(bool is_tight)
    {
        for_all("MPI_Unpack", [&](const sample_type &of, int count, std::uint64_t seed,
                                  const std::string &what) {
            strided_memory to(c_, to_, of, count, is_tight);
            const int len = static_cast<int>(to.len_bytes());
            strided_memory packed(c_, from_, plain_bytes(), before + len);
            packed.fill(before, len, seed);
            to.poison();
            int position = before;
            ok(MPI_Unpack(packed.at(), before + len, &position, to.at(), count, of.type, world),
               what);
            c_.expect_true(before + len == position, what + ": position");
            to.check(seed, what);
        });
    }

    // Each rank has one kind of memory, and sends more than the other one, or less.
    void replace(bool is_tight)
    {
        for_all("MPI_Sendrecv_replace", [&](const sample_type &of, int count, std::uint64_t seed,
                                            const std::string &what) {
            strided_memory memory(c_, sends_ ? from_ : to_, of, count, is_tight);
            for (int sent : {count, 1}) {
                const int coming = sends_ ? count : sent;
                memory.fill(mine(seed));
                MPI_Status status;
                if (sends_ && sent != count) { // the other one's longer message has no room here
                    ok(MPI_Send(memory.at(), sent, of.type, peer_, tag, world), what);
                    strided_memory in(c_, to_, of, count);
                    in.poison();
                    ok(MPI_Recv(in.at(), count, of.type, peer_, tag, world, &status), what);
                    in.check(peers(seed), what);
                    continue;
                }
                ok(MPI_Sendrecv_replace(memory.at(), count, of.type, peer_, tag, MPI_ANY_SOURCE,
                                        MPI_ANY_TAG, world, &status),
                   what);
                expect_status(status, of.type, coming, what);
                if (coming == count) {
                    memory.check(peers(seed), what);
                } else {
                    memory.expect_message(0, coming, peers(seed),
                                          of.size_bytes() * static_cast<std::size_t>(coming));
                    memory.check_all(what + ", a shorter message");
                }
            }
        });
    }

    // The buffer for the packed bytes ends too early: an error, and nothing has happened.
    void too_small()
    {
        for_all("too small", [&](const sample_type &of, int count, std::uint64_t seed,
                                 const std::string &what) {
            strided_memory from(c_, from_, of, count);
            strided_memory packed(c_, to_, plain_bytes(), static_cast<int>(from.len_bytes()));
            const int len = static_cast<int>(from.len_bytes());
            from.fill(seed);
            packed.fill(seed + 1);
            int position = 1;
            c_.expect_true(MPI_SUCCESS != MPI_Pack(from.at(), count, of.type, packed.at(), len,
                                                   &position, world),
                           what + ": MPI_Pack");
            packed.check(seed + 1, what);
            c_.expect_true(MPI_SUCCESS != MPI_Unpack(packed.at(), len, &position, from.at(), count,
                                                     of.type, world),
                           what + ": MPI_Unpack");
            from.check(seed, what);
            c_.expect_true(1 == position, what + ": position");
        });
    }
};

} // namespace

void test_packing(context &c)
{
    if (!c.views && 0 == c.rank) {
        std::printf("exchange packing: not tried without --views, as Open MPI alone crashes: host "
                    "memory packed into device memory or unpacked from it, and device memory of "
                    "datatypes whose address lies before the memory\n");
    }
    for (memory_kind from : c.kinds) {
        for (memory_kind to : c.kinds) {
            if (c.views || from == to) {
                packing(c, from, to).run();
            }
        }
    }
}

} // namespace gpusm::exchange
