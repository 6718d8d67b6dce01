// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// lender.h: the peer. A child process that allocates memory on its device, lends it through CUDA
// IPC and sleeps until the loan is over.
#ifndef GPUSM_COPY_BENCH_LENDER_H
#define GPUSM_COPY_BENCH_LENDER_H

#include <cuda.h>

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gpusm::copy_bench {

// What the child writes into the socket, once.
struct loan {
    char error[256]; // empty: the rest is valid
    char device[96]; // number, name and UUID
    CUipcMemHandle handle;
    std::int32_t ordinal;
    std::uint32_t unused;
};

class lender {
  public:
    // Forks, so no driver call may have been made in this process. The memory is on device 1, or
    // 0 for `same_gpu` or where there is no other. nullptr and one sentence in *why on failure.
    static std::unique_ptr<lender> start(bool same_gpu, std::size_t len_bytes, std::string *why);
    // Ends the child. Mappings of its memory have to be closed by then.
    ~lender();
    lender(const lender &) = delete;
    lender &operator=(const lender &) = delete;

    const loan &offer() const { return offer_; }

  private:
    lender(pid_t child, int talk) : child_(child), talk_(talk) {}

    pid_t child_;
    int talk_; // a socket; the child ends when this end is closed
    loan offer_{};
};

} // namespace gpusm::copy_bench

#endif
