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
#include "bench/common/placed.h"

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
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
    bool views = false;             // --views: what takes views to be right is tried, too
    int rounds = 0;                 // --rounds; 0: as many as the subtest likes
    int seconds = 0;                // --seconds; 0: by rounds
    long killed_after_ms = 0;       // --killed-after, of `stress`; 0: nobody dies
    std::size_t mebibytes = 0;      // --mebibytes, of a buffer; 0: as the subtest likes
    int live = 0;                   // --live, small allocations that are there all the time
    std::string fill;               // --fill, a folder of a file system that becomes full
    char **argv = nullptr;
    std::atomic<int> failures{0};
    std::atomic<int> mpi_errors{0};
    std::atomic<long> messages{0}; // checked messages
    std::uint64_t next_seed = 1;   // --seed, and then drawn in step by all ranks
    std::string skip_because;      // why this rank cannot run the subtest; then nobody has

    std::uint64_t draw_seeds(std::size_t count) // the first of them
    {
        next_seed += count;
        return next_seed - count;
    }

    bool on_gpu() const; // some kind in `kinds` needs a GPU
    memory_kind kind_at(std::size_t i) const { return kinds[i % kinds.size()]; }

    // "exchange: rank 1: <what>: <error>" on stderr and one more failure, unless error is empty.
    // Only the first few are printed. Returns whether error was empty.
    bool expect(const std::string &error, const std::string &what);
    bool expect_true(bool condition, const std::string &what);
    // A return code of MPI. Counted apart, because an error that is reported is not wrong data.
    bool mpi(int code, const std::string &what);

    // Bytes over MPI_COMM_WORLD, one blocking call; false, and counted, when MPI reports an error.
    bool send(const void *at, std::size_t len_bytes, int to, int tag);
    bool receive(void *at, std::size_t len_bytes, int from, int tag);
    bool send_receive(const void *out, std::size_t out_bytes, void *in, std::size_t in_bytes,
                      int peer, int tag);

    // A buffer or the end of the process: tests cannot go on without memory.
    std::unique_ptr<buffer> make(memory_kind kind, std::size_t len_bytes,
                                 std::size_t offset_bytes = 0);
    // Likewise on a device of the caller's choice.
    std::unique_ptr<buffer> make_on(const device *on, memory_kind kind, std::size_t len_bytes,
                                    std::size_t offset_bytes = 0);
    // A context for this process and the calling thread, or the end of the process.
    void use_gpu();
};

// Messages that are under way at once; MPI errors are counted.
class requests {
  public:
    explicit requests(context &c) : c_(c) {}
    void send(const void *at, std::size_t len_bytes, int to, int tag);
    void receive(void *at, std::size_t len_bytes, int from, int tag);
    bool wait(); // for all of them
    std::vector<MPI_Request> &all() { return all_; }

  private:
    context &c_;
    std::vector<MPI_Request> all_;
};

// Messages between ranks 0 and 1 at once, each in a place of its own.
using window = std::vector<bench::placed_message>;
window side_by_side(std::size_t messages, std::size_t len_bytes, std::uint64_t first_seed);
std::size_t end_of(const window &messages); // behind the guard bytes of the last one
// All that this rank sends and receives, all with one tag. A side that only sends has nothing in
// its other window. What comes is compared, and what lies between, too.
void swap_windows(context &c, buffer &out, const window &to_send, buffer &in,
                  const window &to_receive, int tag, const std::string &what);
// So many of one length each way, with new content.
void swap_side_by_side(context &c, buffer &out, buffer &in, std::size_t len_bytes,
                       std::size_t messages, int tag, const std::string &what);

// What is left of the file system under --fill, as a file of this rank while there is one; nothing
// without --fill.
class filler {
  public:
    explicit filler(const context &c);
    ~filler() { make_room(); }
    filler(const filler &) = delete;
    filler &operator=(const filler &) = delete;
    void fill() const;
    void make_room() const;

  private:
    std::string path_;
};

// Where the test is, for the message that the deadline prints. Keeps only the text.
void at_step(const std::string &text);

// Messages both ways between ranks 0 and 1 until they go by get: the handshake goes on in
// progress(), and opening a handle takes its time. False when they still do not after some seconds.
// For these two ranks only. Under --fill the file system is full meanwhile. In exchange_paths.cc.
bool until_by_get(context &c, memory_kind kind = memory_kind::device, std::size_t len_bytes = 64);

// Counters of the transport's, by their names without "btl_gpusm_".
using counter_names = std::vector<std::string>;
unsigned long long sum_of(const bench::path_counts &counts, const counter_names &names);
// The counters of messages from or to device memory that this rank has fetched, by their modes:
// "messages" or "bytes".
counter_names fetched(const char *what);
// `send` sends both ways between these two until both have counted something by these counters:
// true.
bool until_counted(context &c, const counter_names &names, int most_rounds,
                   const std::function<void()> &send);

std::string describe(memory_kind from, memory_kind to, std::size_t len_bytes, const char *how);

// This process dies of SIGKILL then, whatever it does. In exchange_soak.cc.
void die_after(context &c, long microseconds);

// pml/ob1 of Open MPI 5.0 fetches all of a message whose sender's memory can be read, also into a
// receive that is too short for it. quickstart mends that and has the build say so. In
// exchange_truncation.cc.
bool open_mpi_keeps_within();

// One per subtest, by the file that has it; exchange.cc has the table.
using test_function = void(context &);
test_function test_pairs, test_datatypes;
test_function test_random_types, test_random_types_threads;
test_function test_views, test_views_threads, test_packing;
test_function test_alltoall, test_random;
test_function test_any_source, test_unexpected, test_many;
test_function test_truncation, test_truncation_at_end;
test_function test_recovery, test_told, test_ways, test_late, test_gather, test_gather_from_host,
    test_behind_end, test_cooperative_late;
test_function test_persistent, test_context_lost, test_closed;
test_function test_context_destroyed, test_primary_reset, test_primary_released,
    test_primary_renewed, test_primary_again, test_finalize_at_exit;
void finalize_at_exit(); // what the subtest does when exit has begun
test_function test_life, test_many_small, test_idle_mapping;
test_function test_reuse;
test_function test_locked, test_locked_one_way, test_locked_in_part, test_locked_later,
    test_locked_life;
test_function test_threads_without_context, test_context_switched, test_host_context_destroyed,
    test_context_of_two_destroyed, test_device_switched, test_two_devices, test_never,
    test_elsewhere;
test_function test_stress, test_capture, test_capture_first, test_foreign;
test_function test_idup, test_rooted_between_groups;
test_function test_work_waits, test_work_waits_first, test_work_waits_window,
    test_work_waits_collective, test_work_waits_child_ends, streamed_child;
test_function test_collectives, test_collectives_content, test_reductions, test_reductions_long,
    test_reductions_inter, test_reductions_threads, test_reductions_startall, test_reductions_types,
    test_blocking_behind_started, test_started_otherwise;
test_function test_collective_stream, test_collectives_killed, test_collectives_survive,
    test_collectives_revoked, test_collectives_recover, test_collectives_alone;
test_function test_absolute_reductions, test_many_types, test_other_device, test_type_handles;
test_function test_calls, test_silent_senders, test_first, test_self, test_self_short,
    test_shared_device, test_shared_device_away, test_shared_device_contexts;
test_function test_written_late, test_written_in_time;
test_function test_windows, test_windows_types, test_windows_flavours, test_windows_atomics,
    test_windows_epochs, test_windows_ends, test_windows_errors, test_windows_survive,
    test_windows_threads;
test_function test_soak, test_soak_threads, test_survive;
test_function test_out_of_reach, test_children, ending_child, test_lost_child, dying_child,
    test_left_child, leaving_child;
test_function test_early_children, early_child, test_early_session, test_early_receiver,
    test_unread, test_left_session, test_unread_by_the_dead, deaf_child, test_lost_segment,
    child_without_segment;
test_function test_session_threads, test_session_threads_later, test_two_session_threads;
test_function test_threads, test_spawn, test_connect, test_sessions, test_forks, test_killed,
    spawned_child;

} // namespace gpusm::exchange

#endif
