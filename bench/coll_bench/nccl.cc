// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "bench/coll_bench/nccl.h"

#include <dlfcn.h>

namespace gpusm::bench {

namespace {

template <typename function> bool find(void *library, const char *name, function *result)
{
    *result = reinterpret_cast<function>(dlsym(library, name));
    return nullptr != *result;
}

bool true_on_all(MPI_Comm comm, bool mine)
{
    int all = mine ? 1 : 0;
    (void)MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm);
    return 1 == all;
}

} // namespace

std::string nccl::load()
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (nullptr == library) {
        return dlerror();
    }
    const bool complete =
        find(library, "ncclGetVersion", &get_version_) &&
        find(library, "ncclGetUniqueId", &get_unique_id_) &&
        find(library, "ncclCommInitRank", &comm_init_rank_) &&
        find(library, "ncclCommDestroy", &comm_destroy_) &&
        find(library, "ncclGroupStart", &group_start_) &&
        find(library, "ncclGroupEnd", &group_end_) && find(library, "ncclSend", &send_) &&
        find(library, "ncclRecv", &receive_) && find(library, "ncclAllReduce", &all_reduce_) &&
        find(library, "ncclReduce", &reduce_) &&
        find(library, "ncclReduceScatter", &reduce_scatter_) &&
        find(library, "ncclAllGather", &all_gather_) && find(library, "ncclBroadcast", &broadcast_);
    if (!complete) {
        return "libnccl.so.2 lacks a function";
    }
    if (0 != get_version_(&version_)) {
        return "ncclGetVersion fails";
    }
    return gpu_.judge("cuStreamCreate",
                      gpu_.driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING));
}

std::unique_ptr<nccl> nccl::make(MPI_Comm comm, const device &gpu, std::string *why)
{
    int rank = 0;
    int ranks = 0;
    (void)MPI_Comm_rank(comm, &rank);
    (void)MPI_Comm_size(comm, &ranks);
    // Asked here, as NCCL tells it by an error on some ranks only.
    std::array<char, 64> name{};
    (void)gpu.uuid().copy(name.data(), name.size() - 1);
    std::string names(name.size() * static_cast<std::size_t>(ranks), '\0');
    (void)MPI_Allgather(name.data(), static_cast<int>(name.size()), MPI_CHAR, names.data(),
                        static_cast<int>(name.size()), MPI_CHAR, comm);
    for (int one = 0; one < ranks; one++) {
        for (int other = 0; other < one; other++) {
            if (0 == names.compare(name.size() * static_cast<std::size_t>(one), name.size(), names,
                                   name.size() * static_cast<std::size_t>(other), name.size())) {
                *why = "it refuses two ranks on a device";
                return nullptr;
            }
        }
    }
    std::unique_ptr<nccl> made(new nccl(gpu));
    *why = made->load();
    if (!true_on_all(comm, why->empty())) {
        *why = why->empty() ? "another rank cannot load it" : *why;
        return nullptr;
    }
    nccl_unique_id id{};
    int result = 0 == rank ? made->get_unique_id_(&id) : 0;
    (void)MPI_Bcast(id.bytes.data(), static_cast<int>(id.bytes.size()), MPI_BYTE, 0, comm);
    if (!true_on_all(comm, 0 == result)) {
        *why = "ncclGetUniqueId fails on rank 0";
        return nullptr;
    }
    result = made->comm_init_rank_(&made->comm_, ranks, id, rank);
    if (!true_on_all(comm, 0 == result)) {
        *why = "ncclCommInitRank fails";
        return nullptr;
    }
    return made;
}

nccl::~nccl()
{
    if (nullptr != comm_) {
        (void)comm_destroy_(comm_);
    }
    if (nullptr != stream_) {
        (void)gpu_.driver().stream_destroy(stream_);
    }
}

} // namespace gpusm::bench
