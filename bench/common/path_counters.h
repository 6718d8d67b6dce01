// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// path_counters.h: which way messages went, read from the MPI_T performance variables of btl/gpusm,
// or of another component of gpusm's.
#ifndef GPUSM_BENCH_PATH_COUNTERS_H
#define GPUSM_BENCH_PATH_COUNTERS_H

#include <mpi.h>

#include <map>
#include <string>

namespace gpusm::bench {

// MPI_T_init_thread for a program that may call MPI from several threads. Every true needs an
// MPI_T_finalize.
//
// Open MPI (5.0.7 for one) takes the level of threads that the first such call names for that of
// MPI itself, also when MPI_Init_thread has been called with a higher one; ob1 then lets threads
// share a request, and messages are lost. So this one names the level that MPI has.
bool init_tools();

// By the names of the variables, without their prefix; 0 for one that there is not.
using path_counts = std::map<std::string, unsigned long long>;

// What has been counted in between.
path_counts since(const path_counts &earlier, path_counts later);

// The counters of this process. Between MPI_Init and MPI_Finalize only.
class path_counters {
  public:
    explicit path_counters(const std::string &prefix = "btl_gpusm_");
    ~path_counters();
    path_counters(const path_counters &) = delete;
    path_counters &operator=(const path_counters &) = delete;

    // False when the transport in use has no such variables.
    bool available() const { return !variables_.empty(); }
    path_counts read() const;

  private:
    bool initialized_ = false;
    MPI_T_pvar_session session_ = MPI_T_PVAR_SESSION_NULL;
    std::map<std::string, MPI_T_pvar_handle> variables_;
};

} // namespace gpusm::bench

#endif
