// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// nccl_peer.h: the same messages by NCCL, to compare with. The library is loaded at run time.
#ifndef GPUSM_PERF_NCCL_PEER_H
#define GPUSM_PERF_NCCL_PEER_H

#include "bench/common/driver_api.h"

#include <cstddef>
#include <memory>
#include <string>

namespace gpusm::bench {

struct nccl_functions;

// One communicator of all ranks, and a stream. NCCL works on a stream, and a message that it has
// taken is over when the stream says so; finish() waits for that. An error of NCCL, whose peers
// could wait for ever, ends the job with one line.
class nccl_peer {
  public:
    // Collective over MPI_COMM_WORLD, between MPI_Init and MPI_Finalize. Null on every rank when
    // one of them cannot, and then *why holds one sentence. `library` as for dlopen; `gpu` outlives
    // the object.
    static std::unique_ptr<nccl_peer> open(const std::string &library, const device &gpu,
                                           std::string *why);
    ~nccl_peer(); // collective
    nccl_peer(const nccl_peer &) = delete;
    nccl_peer &operator=(const nccl_peer &) = delete;

    std::string version() const; // "NCCL 2.28.3"

    // What lies between begin() and end() goes out together, as one group; groups follow each
    // other on the stream. Messages of one pair meet in the order in which they are given.
    void begin();
    void send(const void *from, std::size_t len_bytes, int peer);
    void receive(void *to, std::size_t len_bytes, int peer);
    void end();
    // A sum of floats over all ranks; not within a group.
    void sum(const void *from, void *to, std::size_t floats);
    // Returns when all of this rank's part is over.
    void finish();

  private:
    explicit nccl_peer(const device &gpu);
    std::string start(const std::string &library);
    void must(const char *function, int result) const;
    void must_driver(const char *function, CUresult result) const;

    const device &gpu_;
    std::unique_ptr<nccl_functions> nccl_;
    void *communicator_ = nullptr;
    CUstream stream_ = nullptr;
    CUevent done_ = nullptr;
};

} // namespace gpusm::bench

#endif
