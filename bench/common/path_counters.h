// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// path_counters.h: which way messages went, read from the MPI_T performance variables of
// btl/gpusm.
#ifndef GPUSM_BENCH_PATH_COUNTERS_H
#define GPUSM_BENCH_PATH_COUNTERS_H

#include <mpi.h>

#include <array>
#include <string>

namespace gpusm::bench {

// MPI_T_init_thread for a program that may call MPI from several threads. Every true needs an
// MPI_T_finalize.
//
// Open MPI (5.0.7 for one) takes the level of threads that the first such call names for that of
// MPI itself, also when MPI_Init_thread has been called with a higher one; ob1 then lets threads
// share a request, and messages are lost. So this one names the level that MPI has.
bool init_tools();

struct path_counts {
    unsigned long long get_messages = 0;    // fetched from a peer's device memory
    unsigned long long staged_messages = 0; // device memory sent through host fragments
    unsigned long long host_messages = 0;   // host memory sent through fragments or mailboxes
    unsigned long long get_bytes = 0;
    unsigned long long staged_bytes = 0;
    unsigned long long host_bytes = 0;
    unsigned long long single_copy_messages = 0; // read from a peer's host memory
    // Of get_messages, those that the sender wrote here, out of host memory.
    unsigned long long direct_host_messages = 0;
    unsigned long long pulled_host_bytes = 0; // read for a device out of a peer's host memory
    unsigned long long pushed_host_bytes = 0; // of a peer's device memory, written by that peer
    // Of what went in single copies, bytes that the sender wrote here.
    unsigned long long joint_copy_bytes = 0;
    unsigned long long stream_messages = 0; // from a peer's host memory
};

path_counts operator-(const path_counts &later, const path_counts &earlier);

// The counters of this process. Between MPI_Init and MPI_Finalize only.
class path_counters {
  public:
    path_counters();
    ~path_counters();
    path_counters(const path_counters &) = delete;
    path_counters &operator=(const path_counters &) = delete;

    // False when the transport in use does not have the variables; read() then gives zeros.
    bool available() const { return available_; }
    path_counts read() const;

  private:
    static constexpr std::size_t count = 12;

    bool initialized_ = false;
    bool available_ = false;
    MPI_T_pvar_session session_ = MPI_T_PVAR_SESSION_NULL;
    std::array<MPI_T_pvar_handle, count> handles_ = {};
};

// Sum over all ranks of `communicator`, the result on rank 0. Collective.
path_counts sum_over_ranks(const path_counts &mine, MPI_Comm communicator);

} // namespace gpusm::bench

#endif
