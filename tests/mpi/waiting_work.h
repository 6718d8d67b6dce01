// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// waiting_work.h: work of the program that does not end before the test wants it to.
#ifndef GPUSM_TESTS_MPI_WAITING_WORK_H
#define GPUSM_TESTS_MPI_WAITING_WORK_H

#include "tests/mpi/exchange_tools.h"

#include <atomic>

namespace gpusm::exchange {

// Keeps a stream of this context busy until it is opened, as a kernel does that looks for a flag.
class waiting_work {
  public:
    waiting_work(context &c, unsigned stream_flags) : c_(c)
    {
        void *at = nullptr;
        good(CU(cuMemHostAlloc)(&at, sizeof(*flag_), 0), "cuMemHostAlloc");
        flag_ = static_cast<std::atomic<unsigned> *>(at);
        flag_->store(0);
        good(CU(cuStreamCreate)(&stream_, stream_flags), "cuStreamCreate");
        good(CU(cuStreamWaitValue32)(stream_, reinterpret_cast<CUdeviceptr>(at), 1,
                                     CU_STREAM_WAIT_VALUE_EQ),
             "cuStreamWaitValue32");
    }
    ~waiting_work()
    {
        flag_->store(1);
        good(CU(cuStreamSynchronize)(stream_), "cuStreamSynchronize");
        good(CU(cuStreamDestroy)(stream_), "cuStreamDestroy");
        good(CU(cuMemFreeHost)(flag_), "cuMemFreeHost");
    }
    waiting_work(const waiting_work &) = delete;
    waiting_work &operator=(const waiting_work &) = delete;

  private:
    void good(CUresult result, const char *what)
    {
        c_.expect(CUDA_SUCCESS == result ? "" : bench::driver_error(c_.gpu->driver(), what, result),
                  "work that waits");
    }

    context &c_;
    std::atomic<unsigned> *flag_ = nullptr;
    CUstream stream_ = nullptr;
};

} // namespace gpusm::exchange

#endif
