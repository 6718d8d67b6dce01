// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// exchange.h: what the subtests of the program `exchange` share: this process's part, its way to
// report, and one function per subtest. Every subtest is collective over MPI_COMM_WORLD.
#ifndef GPUSM_TESTS_MPI_EXCHANGE_H
#define GPUSM_TESTS_MPI_EXCHANGE_H

#include "bench/common/buffer.h"
#include "bench/common/driver_api.h"
#include "bench/common/path_counters.h"

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpusm::exchange {

using bench::buffer;
using bench::device;
using bench::memory_kind;

// Exit statuses of the program; the shell drivers tell them apart.
inline constexpr int exit_wrong = 1; // wrong data, or a promise that was not kept
inline constexpr int exit_usage = 2;
inline constexpr int exit_deadline = 3; // hung
inline constexpr int exit_error = 4;    // MPI reported an error, and no data was wrong
inline constexpr int exit_skip = 77;

struct context {
    int rank = 0;
    int ranks = 1;
    std::unique_ptr<device> gpu;    // nullptr as long as this process uses no GPU
    std::vector<memory_kind> kinds; // --kinds
    std::vector<std::size_t> sizes; // --sizes
    bool allow_errors = false;      // --allow-errors: MPI errors are not failures
    int rounds = 0;                 // --rounds; 0: as many as the subtest likes
    std::size_t mebibytes = 0;      // --mebibytes, of a buffer; 0: as the subtest likes
    int live = 0;                   // --live, small allocations that are there all the time
    char **argv = nullptr;
    std::atomic<int> failures{0};
    std::atomic<int> mpi_errors{0};
    std::atomic<long> messages{0}; // checked messages
    std::uint64_t next_seed = 1;   // drawn in step by all ranks
    std::string skip_because;      // why this rank cannot run the subtest; then nobody has

    bool on_gpu() const; // some kind in `kinds` needs a GPU
    memory_kind kind_at(std::size_t i) const { return kinds[i % kinds.size()]; }

    // "exchange: rank 1: <what>: <error>" on stderr and one more failure, unless error is empty.
    // Only the first few are printed. Returns whether error was empty.
    bool expect(const std::string &error, const std::string &what);
    bool expect_true(bool condition, const std::string &what);
    // A return code of MPI. Counted apart, because an error that is reported is not wrong data.
    bool mpi(int code, const std::string &what);

    // A buffer or the end of the process: tests cannot go on without memory.
    std::unique_ptr<buffer> make(memory_kind kind, std::size_t len_bytes,
                                 std::size_t offset_bytes = 0);
    // Likewise on a device of the caller's choice.
    std::unique_ptr<buffer> make_on(const device *on, memory_kind kind, std::size_t len_bytes,
                                    std::size_t offset_bytes = 0);
    // A context for this process and the calling thread, or the end of the process.
    void use_gpu();
};

// Where the test is, for the message that the deadline prints. Keeps only the text.
void at_step(const std::string &text);

// Messages both ways between ranks 0 and 1 until they go by get: the handshake goes on in
// progress(), and opening a handle takes its time. False when they still do not after some seconds.
// For these two ranks only. In exchange_paths.cc.
bool until_by_get(context &c, memory_kind kind = memory_kind::device, std::size_t len_bytes = 64);

std::string describe(memory_kind from, memory_kind to, std::size_t len_bytes, const char *how);

void test_pairs(context &c); // exchange_pairs.cc
void test_gather(context &c);
void test_gather_from_host(context &c); // exchange_gather.cc
void test_behind_end(context &c);
void test_alltoall(context &c);   // exchange_groups.cc
void test_any_source(context &c); // exchange_order.cc
void test_unexpected(context &c);
void test_many(context &c);
void test_truncation(context &c);
void test_self(context &c);
void test_datatypes(context &c); // exchange_types.cc
void test_counters(context &c);  // exchange_paths.cc
void test_ways(context &c);
void test_late(context &c);
void test_reallocate(context &c);
void test_persistent(context &c); // exchange_lifetime.cc
void test_context_ends(context &c);
void test_context_lost(context &c);
void test_life(context &c); // exchange_memory.cc
void test_many_small(context &c);
void test_idle_mapping(context &c);
void test_reuse(context &c);  // exchange_reuse.cc
void test_locked(context &c); // exchange_locked.cc
void test_locked_one_way(context &c);
void test_locked_in_part(context &c);
void test_locked_later(context &c);
void test_locked_life(context &c);
void test_threads_without_context(context &c); // exchange_contexts.cc
void test_context_switched(context &c);
void test_host_context_destroyed(context &c);
void test_device_switched(context &c);
void test_two_devices(context &c);
void test_never(context &c);
void test_elsewhere(context &c);
void test_capture(context &c);           // exchange_capture.cc
void test_foreign(context &c);           // exchange_foreign.cc
void test_context_destroyed(context &c); // exchange_shutdown.cc
void test_primary_reset(context &c);
void test_primary_released(context &c);
void test_primary_renewed(context &c);
void test_primary_again(context &c);
void test_finalize_at_exit(context &c);
void finalize_at_exit();                // what the subtest does when exit has begun
void test_cooperative_late(context &c); // exchange_joint.cc
void test_threads(context &c);          // exchange_jobs.cc
void test_spawn(context &c);
void test_killed(context &c);
void spawned_child(context &c);

} // namespace gpusm::exchange

#endif
