// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// nccl_by_mpi.cc: a library with the part of NCCL's interface that gpusm_perf uses, made of MPI
// calls, so that gpusm_perf --nccl can be tested where there is neither NCCL nor a GPU. A group is
// over when its last call returns. NCCL_BY_MPI_FAIL=FUNCTION lets that function fail.
#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

MPI_Comm communicator = MPI_COMM_NULL;
bool in_group = false;
std::vector<MPI_Request> requests;

constexpr int failed = 3; // ncclInternalError

bool fails(const char *function)
{
    const char *which = std::getenv("NCCL_BY_MPI_FAIL");
    return which != nullptr && 0 == std::strcmp(which, function);
}

int complete()
{
    const int result =
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    requests.clear();
    return MPI_SUCCESS == result ? 0 : failed;
}

int add(int result)
{
    if (MPI_SUCCESS != result) {
        return failed;
    }
    return in_group ? 0 : complete();
}

struct identity {
    char bytes[128];
};

} // namespace

extern "C" {

int ncclGetVersion(int *version)
{
    *version = 29901;
    return 0;
}

int ncclGetUniqueId(identity *id)
{
    *id = {};
    return 0;
}

int ncclCommInitRank(void **made, int, identity, int)
{
    *made = &communicator;
    if (fails("ncclCommInitRank")) {
        return failed;
    }
    return MPI_SUCCESS == MPI_Comm_dup(MPI_COMM_WORLD, &communicator) ? 0 : failed;
}

int ncclCommDestroy(void *)
{
    return MPI_COMM_NULL == communicator || MPI_SUCCESS == MPI_Comm_free(&communicator) ? 0
                                                                                        : failed;
}

const char *ncclGetErrorString(int)
{
    return "not by MPI";
}

int ncclGroupStart()
{
    in_group = true;
    return 0;
}

int ncclGroupEnd()
{
    in_group = false;
    return complete();
}

int ncclSend(const void *from, std::size_t bytes, int, int peer, void *, void *)
{
    if (fails("ncclSend")) {
        return failed;
    }
    return add(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, 0, communicator,
                         &requests.emplace_back(MPI_REQUEST_NULL)));
}

int ncclRecv(void *to, std::size_t bytes, int, int peer, void *, void *)
{
    return add(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, 0, communicator,
                         &requests.emplace_back(MPI_REQUEST_NULL)));
}

int ncclAllReduce(const void *from, void *to, std::size_t count, int, int, void *, void *)
{
    const int floats = static_cast<int>(count);
    return MPI_SUCCESS == MPI_Allreduce(from, to, floats, MPI_FLOAT, MPI_SUM, communicator)
               ? 0
               : failed;
}

} // extern "C"
