// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// operations.h: what coll_bench measures, each by MPI and by NCCL over the same buffers, and how
// its result is checked.
#ifndef GPUSM_BENCH_OPERATIONS_H
#define GPUSM_BENCH_OPERATIONS_H

#include "bench/coll_bench/nccl.h"
#include "bench/common/buffer.h"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gpusm::bench {

// One rank's part of an operation of one size. The buffers hold `ranks` blocks each, of which an
// operation uses the first or all.
struct call {
    int rank = 0;
    int ranks = 1;
    std::size_t block_bytes = 0; // a multiple of sizeof(float)
    buffer *given = nullptr;
    buffer *taken = nullptr;
    // By MPI, what is no reduction: `block_bytes` of every second float, else of bytes.
    bool has_gaps = false;
    MPI_Datatype type = MPI_BYTE;

    void *given_at(int block) const { return given->at(offset(block)); }
    void *taken_at(int block) const { return taken->at(offset(block)); }
    std::size_t span() const { return has_gaps ? 2 * block_bytes : block_bytes; }
    std::size_t offset(int block) const { return span() * static_cast<std::size_t>(block); }
    std::size_t floats() const { return block_bytes / sizeof(float); }
    int count() const { return static_cast<int>(has_gaps ? floats() : block_bytes); }
    int right() const { return (rank + 1) % ranks; }
    int left() const { return (rank + ranks - 1) % ranks; }
};

struct operation {
    const char *name;
    bool reduces; // floats, else bytes
    // How many blocks the rank that moves most of them takes or gives over its link.
    double (*blocks_moved)(int ranks);
    void (*by_mpi)(const call &c);
    int (*by_nccl)(const call &c, const nccl &other); // 0, or NCCL's result
    // Which block of which rank block number `block` of `taken` has to be, {-1, 0}: none. Of a
    // reduction the sum of that block of all ranks, whatever the rank.
    struct source {
        int rank;
        int block;
    };
    source (*expected)(const call &c, int block);
};

std::span<const operation> all_operations();
const operation *find_operation(const std::string &name);

// All return an empty string, or one sentence. clear(): nothing of what is to come is there.
[[nodiscard]] std::string fill(const operation &what, const call &c);
[[nodiscard]] std::string clear(const call &c);
[[nodiscard]] std::string check(const operation &what, const call &c);

} // namespace gpusm::bench

#endif
