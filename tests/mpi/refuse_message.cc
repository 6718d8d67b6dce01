// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// refuse_message.cc: a library for LD_PRELOAD in whose presence Open MPI's messages fail where the
// owner of a window's memory begins to receive what is put there, and to send what is got. Once
// each in a process, after its first MPI_Win_create.
#include <array>
#include <cstddef>

#include <dlfcn.h>
#include <mpi.h>

namespace {

using irecv_function = int (*)(void *, std::size_t, MPI_Datatype, int, int, MPI_Comm,
                               MPI_Request *);
using isend_function = int (*)(const void *, std::size_t, MPI_Datatype, int, int, int, MPI_Comm,
                               MPI_Request *);

// The beginning of mca_pml, as it is in all releases of 5.0.
struct messages {
    std::array<void *, 8> others;
    irecv_function irecv;
    std::array<void *, 2> more;
    isend_function isend;
};
messages before;

// As osc_gpusm_owner.h has them: what is put comes with tags behind those of what is got.
constexpr int first_tag_got = 2;
constexpr int first_tag_put = 2 + 8192;
constexpr std::size_t least_bytes = 1000; // more than an answer
constexpr int failed = -2;                // OMPI_ERR_OUT_OF_RESOURCE

bool has_refused_put = false;
bool has_refused_get = false;

int refuse_receive(void *at, std::size_t count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                   MPI_Request *request)
{
    if (!has_refused_put && tag >= first_tag_put) {
        has_refused_put = true;
        return failed;
    }
    return before.irecv(at, count, type, from, tag, comm, request);
}

int refuse_send(const void *at, std::size_t count, MPI_Datatype type, int to, int tag, int mode,
                MPI_Comm comm, MPI_Request *request)
{
    if (!has_refused_get && tag >= first_tag_got && tag < first_tag_put && count >= least_bytes) {
        has_refused_get = true;
        return failed;
    }
    return before.isend(at, count, type, to, tag, mode, comm, request);
}

} // namespace

extern "C" int MPI_Win_create(void *base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm,
                              MPI_Win *window)
{
    const int result = PMPI_Win_create(base, size, unit, info, comm, window);
    auto *all = static_cast<messages *>(dlsym(RTLD_DEFAULT, "mca_pml"));
    if (all != nullptr && all->irecv != refuse_receive) {
        before = *all;
        all->irecv = refuse_receive;
        all->isend = refuse_send;
    }
    return result;
}
