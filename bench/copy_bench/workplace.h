// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// workplace.h: the device that copies, the peer's memory as it sees it, a destination of its own,
// and what the bytes have to be.
#ifndef GPUSM_COPY_BENCH_WORKPLACE_H
#define GPUSM_COPY_BENCH_WORKPLACE_H

#include "bench/common/driver_api.h"
#include "bench/copy_bench/lender.h"
#include "opal/mca/btl/gpusm/gpu/device.h"
#include "opal/mca/btl/gpusm/gpu/driver.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gpusm::copy_bench {

// Copies of one size. Each has a place of its own, the same in source and destination, and bytes
// behind it that nobody may touch.
struct cell {
    std::uint32_t copies = 0;
    std::size_t len_bytes = 0;

    static constexpr std::size_t alignment = 256; // of the first byte of a copy
    static constexpr std::size_t guard_bytes = 64;

    std::size_t bytes() const { return copies * len_bytes; }
    std::size_t stride() const
    {
        return (len_bytes + guard_bytes + alignment - 1) / alignment * alignment;
    }
    std::size_t room_bytes() const { return copies * stride(); }
};

// Memory of this process that device and processor share.
class pinned_memory {
  public:
    // The context of the device is current, here and in the destructor.
    pinned_memory(const driver_api &driver, std::size_t len_bytes);
    ~pinned_memory();
    pinned_memory(const pinned_memory &) = delete;
    pinned_memory &operator=(const pinned_memory &) = delete;

    void *data() const { return data_; } // null: there is none
    CUdeviceptr on_device() const { return on_device_; }

  private:
    const driver_api &driver_;
    void *data_ = nullptr;
    CUdeviceptr on_device_ = 0;
};

// Everything is used by one thread, in which the context of the device stays current.
class workplace {
  public:
    // Room for `room_bytes` on both sides; starts the lender, so no driver call may have been made.
    // The source holds its pattern: no 8 bytes of it are the same as another 8 at a multiple of 8.
    // nullptr and one sentence in *why on failure.
    static std::unique_ptr<workplace> open(bool same_gpu, std::size_t room_bytes, std::string *why);
    ~workplace();
    workplace(const workplace &) = delete;
    workplace &operator=(const workplace &) = delete;

    const driver_api &driver() const { return *driver_; }
    const bench::device &gpu() const { return *gpu_; }
    const device &on() const { return *on_; }
    bool is_same_gpu() const { return gpu_->ordinal() == lender_->offer().ordinal; }
    CUdeviceptr source() const { return source_; }
    CUdeviceptr destination() const { return destination_; }

    // Who copies, and from where: two lines without a newline at the end.
    std::string describe() const;

    // "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"
    std::string sentence(const std::string &what, CUresult result) const
    {
        return bench::driver_error(gpu_->driver(), what.c_str(), result);
    }

    // Makes every byte of the cell's destination wrong. Finished when it returns. Empty, or what
    // went wrong.
    std::string poison(const cell &of);
    // Compares the destination, and the bytes behind each copy. Empty, or one sentence about the
    // first wrong byte, or about a driver call that failed.
    std::string compare(const cell &of);

  private:
    workplace() = default;
    std::string make_room(std::size_t room_bytes);
    std::string transfer(CUdeviceptr to, CUdeviceptr from, std::size_t len_bytes);
    std::string upload(CUdeviceptr to, std::size_t room_bytes, bool right);
    CUdeviceptr staging() const;

    // Destroyed in the reverse order: the lender last but one, when nothing of its memory is
    // mapped any more.
    std::unique_ptr<bench::device> gpu_;
    std::unique_ptr<lender> lender_;
    const driver_api *driver_ = nullptr;
    std::unique_ptr<device_table> devices_;
    device *on_ = nullptr;
    CUdeviceptr source_ = 0;
    CUdeviceptr destination_ = 0;
    CUstream stream_ = nullptr; // of transfers only: not in order with what is measured
    std::unique_ptr<pinned_memory> staging_;
    std::unique_ptr<std::uint64_t[]> expected_;
};

} // namespace gpusm::copy_bench

#endif
