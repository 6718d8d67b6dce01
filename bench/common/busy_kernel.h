// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// busy_kernel.h: a kernel that keeps a device busy for a given time, as a program's own work does.
#ifndef GPUSM_BENCH_BUSY_KERNEL_H
#define GPUSM_BENCH_BUSY_KERNEL_H

#include "bench/common/driver_api.h"

#include <memory>
#include <string>

namespace gpusm::bench {

// In the primary context of one device, which is current in all threads that call it. Functions
// return an empty string, or what went wrong.
class busy_kernel {
  public:
    // nullptr and a sentence in *why when it fails.
    static std::unique_ptr<busy_kernel> make(const device &gpu, std::string *why);
    ~busy_kernel();
    busy_kernel(const busy_kernel &) = delete;
    busy_kernel &operator=(const busy_kernel &) = delete;

    // 8 blocks of 64 threads, which run for as many microseconds of the device's clock, in that
    // stream.
    [[nodiscard]] std::string launch(int us, CUstream stream) const;
    // In a stream of its own, and waits for it.
    [[nodiscard]] std::string run(int us) const;

  private:
    explicit busy_kernel(const device &gpu) : gpu_(gpu) {}

    const device &gpu_;
    CUmodule module_ = nullptr;
    CUfunction function_ = nullptr;
    CUstream stream_ = nullptr;
};

} // namespace gpusm::bench

#endif
