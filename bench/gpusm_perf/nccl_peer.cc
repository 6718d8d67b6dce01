// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "bench/gpusm_perf/nccl_peer.h"

#include "bench/gpusm_perf/limit.h"
#include "bench/gpusm_perf/run.h"

#include <dlfcn.h>

#include <cstdio>

namespace gpusm::bench {

// NCCL's documented interface, version 2 (docs.nvidia.com/deeplearning/nccl): what does not change
// within it, so that no header of the installed version is needed.
struct nccl_id {
    char bytes[128];
};
struct nccl_functions {
    int (*get_version)(int *) = nullptr;
    int (*get_unique_id)(nccl_id *) = nullptr;
    int (*comm_init_rank)(void **, int, nccl_id, int) = nullptr;
    int (*comm_destroy)(void *) = nullptr;
    const char *(*get_error_string)(int) = nullptr;
    int (*group_start)() = nullptr;
    int (*group_end)() = nullptr;
    int (*send)(const void *, std::size_t, int, int, void *, CUstream) = nullptr;
    int (*receive)(void *, std::size_t, int, int, void *, CUstream) = nullptr;
    int (*all_reduce)(const void *, void *, std::size_t, int, int, void *, CUstream) = nullptr;
};

namespace {

constexpr int bytes_type = 1;  // ncclUint8
constexpr int floats_type = 7; // ncclFloat32
constexpr int sum_operation = 0;

template <typename Function>
bool find(void *library, const char *name, Function *out, std::string *why)
{
    *out = reinterpret_cast<Function>(dlsym(library, name));
    if (nullptr == *out) {
        *why = std::string("NCCL without ") + name;
    }
    return nullptr != *out;
}

} // namespace

nccl_peer::nccl_peer(const device &gpu) : gpu_(gpu)
{
}

// Not collective: what one rank can find out alone.
std::string nccl_peer::start(const std::string &library)
{
    // Stays loaded: NCCL's threads may outlive the communicator.
    void *loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (nullptr == loaded) {
        const char *text = dlerror();
        return "cannot load NCCL: " + std::string(nullptr == text ? library : text);
    }
    nccl_ = std::make_unique<nccl_functions>();
    std::string why;
    if (!find(loaded, "ncclGetVersion", &nccl_->get_version, &why) ||
        !find(loaded, "ncclGetUniqueId", &nccl_->get_unique_id, &why) ||
        !find(loaded, "ncclCommInitRank", &nccl_->comm_init_rank, &why) ||
        !find(loaded, "ncclCommDestroy", &nccl_->comm_destroy, &why) ||
        !find(loaded, "ncclGetErrorString", &nccl_->get_error_string, &why) ||
        !find(loaded, "ncclGroupStart", &nccl_->group_start, &why) ||
        !find(loaded, "ncclGroupEnd", &nccl_->group_end, &why) ||
        !find(loaded, "ncclSend", &nccl_->send, &why) ||
        !find(loaded, "ncclRecv", &nccl_->receive, &why) ||
        !find(loaded, "ncclAllReduce", &nccl_->all_reduce, &why)) {
        return why;
    }
    const driver_api &driver = gpu_.driver();
    if (const CUresult made = driver.stream_create(&stream_, CU_STREAM_NON_BLOCKING);
        CUDA_SUCCESS != made) {
        return driver_error(driver, "cuStreamCreate", made);
    }
    if (const CUresult made = driver.event_create(&done_, CU_EVENT_DISABLE_TIMING);
        CUDA_SUCCESS != made) {
        return driver_error(driver, "cuEventCreate", made);
    }
    return {};
}

std::unique_ptr<nccl_peer> nccl_peer::open(const std::string &library, const device &gpu,
                                           std::string *why)
{
    std::unique_ptr<nccl_peer> made(new nccl_peer(gpu));
    *why = agree_on_error(made->start(library), MPI_COMM_WORLD);
    if (!why->empty()) {
        return nullptr;
    }
    int rank = 0;
    int ranks = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    nccl_id id = {};
    if (0 == rank) {
        made->must("ncclGetUniqueId", made->nccl_->get_unique_id(&id));
    }
    (void)MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
    const int result = made->nccl_->comm_init_rank(&made->communicator_, ranks, id, rank);
    *why = agree_on_error(0 == result ? std::string()
                                      : "ncclCommInitRank: " +
                                            std::string(made->nccl_->get_error_string(result)),
                          MPI_COMM_WORLD);
    return why->empty() ? std::move(made) : nullptr;
}

nccl_peer::~nccl_peer()
{
    if (nullptr != communicator_) {
        (void)nccl_->comm_destroy(communicator_);
    }
    if (nullptr != done_) {
        (void)gpu_.driver().event_destroy(done_);
    }
    if (nullptr != stream_) {
        (void)gpu_.driver().stream_destroy(stream_);
    }
}

std::string nccl_peer::version() const
{
    int version = 0;
    must("ncclGetVersion", nccl_->get_version(&version));
    return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
           "." + std::to_string(version % 100);
}

void nccl_peer::must(const char *function, int result) const
{
    if (0 != result) {
        std::fprintf(stderr, "gpusm_perf: %s: %s\n", function, nccl_->get_error_string(result));
        (void)MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

void nccl_peer::must_driver(const char *function, CUresult result) const
{
    if (CUDA_SUCCESS != result) {
        std::fprintf(stderr, "gpusm_perf: %s\n",
                     driver_error(gpu_.driver(), function, result).c_str());
        (void)MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

void nccl_peer::begin()
{
    must("ncclGroupStart", nccl_->group_start());
}

void nccl_peer::send(const void *from, std::size_t len_bytes, int peer)
{
    must("ncclSend", nccl_->send(from, len_bytes, bytes_type, peer, communicator_, stream_));
}

void nccl_peer::receive(void *to, std::size_t len_bytes, int peer)
{
    must("ncclRecv", nccl_->receive(to, len_bytes, bytes_type, peer, communicator_, stream_));
}

void nccl_peer::end()
{
    must("ncclGroupEnd", nccl_->group_end());
}

void nccl_peer::sum(const void *from, void *to, std::size_t floats)
{
    must("ncclAllReduce",
         nccl_->all_reduce(from, to, floats, floats_type, sum_operation, communicator_, stream_));
}

void nccl_peer::finish()
{
    const driver_api &driver = gpu_.driver();
    must_driver("cuEventRecord", driver.event_record(done_, stream_));
    CUresult result = CUDA_ERROR_NOT_READY;
    while (CUDA_ERROR_NOT_READY == result) {
        result = driver.event_query(done_);
    }
    must_driver("cuEventQuery", result);
}

} // namespace gpusm::bench
