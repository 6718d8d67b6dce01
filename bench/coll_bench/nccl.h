// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// nccl.h: NCCL as a peer to measure beside. Loaded by name, never linked: a machine without it
// measures MPI alone.
#ifndef GPUSM_BENCH_NCCL_H
#define GPUSM_BENCH_NCCL_H

#include "bench/common/driver_api.h"

#include <cuda.h>
#include <mpi.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace gpusm::bench {

// The declarations of nccl.h that are used here, so that building needs no NCCL. The ABI of NCCL 2.
struct nccl_unique_id {
    std::array<char, 128> bytes;
};
enum nccl_type : int { nccl_int8 = 0, nccl_float = 7 };
enum nccl_operation : int { nccl_sum = 0 };

// One communicator of all ranks of a communicator of MPI, and one stream. Functions that return a
// string return an empty one on success and one sentence otherwise.
class nccl {
  public:
    // Collective. nullptr on all ranks, and a sentence in *why, if it cannot be used on any: it
    // refuses two ranks on a device.
    static std::unique_ptr<nccl> make(MPI_Comm comm, const device &gpu, std::string *why);
    ~nccl();
    nccl(const nccl &) = delete;
    nccl &operator=(const nccl &) = delete;

    int version() const { return version_; } // 22809: 2.28.9

    // Each submits and returns the library's result, 0 for success. Calls between group_start()
    // and group_end() are one operation. Counts are in elements.
    int group_start() const { return group_start_(); }
    int group_end() const { return group_end_(); }
    int send(const void *from, std::size_t bytes, int rank) const
    {
        return send_(from, bytes, nccl_int8, rank, comm_, stream_);
    }
    int receive(void *to, std::size_t bytes, int rank) const
    {
        return receive_(to, bytes, nccl_int8, rank, comm_, stream_);
    }
    int all_reduce(const void *from, void *to, std::size_t count) const
    {
        return all_reduce_(from, to, count, nccl_float, nccl_sum, comm_, stream_);
    }
    int reduce(const void *from, void *to, std::size_t count, int root) const
    {
        return reduce_(from, to, count, nccl_float, nccl_sum, root, comm_, stream_);
    }
    int reduce_scatter(const void *from, void *to, std::size_t count) const
    {
        return reduce_scatter_(from, to, count, nccl_float, nccl_sum, comm_, stream_);
    }
    int all_gather(const void *from, void *to, std::size_t bytes) const
    {
        return all_gather_(from, to, bytes, nccl_int8, comm_, stream_);
    }
    int broadcast(const void *from, void *to, std::size_t bytes, int root) const
    {
        return broadcast_(from, to, bytes, nccl_int8, root, comm_, stream_);
    }
    // Until all that was submitted is done.
    [[nodiscard]] std::string wait() const
    {
        return gpu_.judge("cuStreamSynchronize", gpu_.driver().stream_synchronize(stream_));
    }

  private:
    explicit nccl(const device &gpu) : gpu_(gpu) {}
    std::string load();

    using comm_handle = void *;
    int (*get_version_)(int *) = nullptr;
    int (*get_unique_id_)(nccl_unique_id *) = nullptr;
    int (*comm_init_rank_)(comm_handle *, int, nccl_unique_id, int) = nullptr;
    int (*comm_destroy_)(comm_handle) = nullptr;
    int (*group_start_)() = nullptr;
    int (*group_end_)() = nullptr;
    int (*send_)(const void *, std::size_t, int, int, comm_handle, CUstream) = nullptr;
    int (*receive_)(void *, std::size_t, int, int, comm_handle, CUstream) = nullptr;
    int (*all_reduce_)(const void *, void *, std::size_t, int, int, comm_handle,
                       CUstream) = nullptr;
    int (*reduce_)(const void *, void *, std::size_t, int, int, int, comm_handle,
                   CUstream) = nullptr;
    int (*reduce_scatter_)(const void *, void *, std::size_t, int, int, comm_handle,
                           CUstream) = nullptr;
    int (*all_gather_)(const void *, void *, std::size_t, int, comm_handle, CUstream) = nullptr;
    int (*broadcast_)(const void *, void *, std::size_t, int, int, comm_handle, CUstream) = nullptr;
    const device &gpu_;
    comm_handle comm_ = nullptr;
    CUstream stream_ = nullptr;
    int version_ = 0;
};

} // namespace gpusm::bench

#endif
