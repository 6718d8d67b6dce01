// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// submitter.h: one submission of copies in one of gpusm's ways, and the wait until it is seen to
// be done. The driver calls are those of gpu/copy_engine.cc.
#ifndef GPUSM_COPY_BENCH_SUBMITTER_H
#define GPUSM_COPY_BENCH_SUBMITTER_H

#include "bench/copy_bench/workplace.h"
#include "opal/mca/btl/gpusm/gpu/copy_choice.h"
#include "opal/mca/btl/gpusm/gpu/gather_kernel.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpusm::copy_bench {

inline constexpr std::array<copy_way, 3> all_ways = {copy_way::single, copy_way::batch,
                                                     copy_way::kernel};
static_assert(all_ways.size() == static_cast<std::size_t>(copy_way::count));

// The place of a way in an array of what there is for each.
constexpr std::size_t index_of(copy_way way)
{
    return static_cast<std::size_t>(way);
}

const char *name_of(copy_way way);

// The copies of a cell, in the forms that the driver's functions want; a batch call wants arrays
// that it could write to.
struct copy_list {
    copy_list(const workplace &at, const cell &of);

    std::vector<CUdeviceptr> destinations;
    std::vector<CUdeviceptr> sources;
    std::vector<std::size_t> sizes;
    std::vector<gather_copy> gathered;
};

// Calls `look`, which answers like cuEventQuery, until that is another answer than
// CUDA_ERROR_NOT_READY; CUDA_ERROR_LAUNCH_TIMEOUT when that takes ten seconds.
template <class question> CUresult wait_until(question look)
{
    constexpr unsigned looks_before_clock = 1024;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (unsigned looks = 1;; ++looks) {
        const CUresult answer = look();
        if (answer != CUDA_ERROR_NOT_READY) {
            return answer;
        }
        if (0 == looks % looks_before_clock && std::chrono::steady_clock::now() > late) {
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        }
    }
}

// The same for a word in host memory that work on `stream` sets last; `is_set` looks at it. Asks
// the driver now and then, which knows whether it ever will be: CUDA_ERROR_LAUNCH_FAILED when the
// stream has ended without it.
template <class question>
CUresult wait_for_flag(const driver_api &driver, CUstream stream, question is_set)
{
    constexpr unsigned looks_before_asking = 1024;
    unsigned looks = 0;
    return wait_until([&] {
        if (is_set()) {
            return CUDA_SUCCESS;
        }
        if (++looks % looks_before_asking != 0) {
            return CUDA_ERROR_NOT_READY;
        }
        const CUresult answer = driver.stream_query(stream);
        // The stream may have ended just after the look at the word.
        return CUDA_SUCCESS != answer || is_set() ? answer : CUDA_ERROR_LAUNCH_FAILED;
    });
}

// Functions that return a string return an empty one on success, else a sentence.
class submitter {
  public:
    // `blocks`: of the kernel; 0 for none.
    submitter(const workplace &at, unsigned blocks);
    // Nothing may be in flight.
    ~submitter();
    submitter(const submitter &) = delete;
    submitter &operator=(const submitter &) = delete;

    // Makes the streams and loads the kernel. A driver without batch calls, or one that does not
    // take the kernel, is no error: has() tells.
    std::string open();
    bool has(copy_way way) const;

    // Starts all copies. One submission at a time.
    std::string submit(copy_way way, copy_list &copies);
    // Returns when the processor sees that they are done, or when they will never be.
    std::string wait(copy_way way);

    // For other work in their place: the event, and the stream of single and batch.
    CUevent event() const { return event_; }
    CUstream stream() const { return stream_; }

  private:
    CUresult submit_singly(const copy_list &copies);
    CUresult submit_batch(copy_list &copies);

    const workplace &at_;
    const driver_api &driver_;
    const CUstream stream_; // of single and batch
    CUstream kernel_stream_ = nullptr;
    gather_kernel kernel_;
    const bool wants_kernel_;
    bool has_batch_ = false;
    CUevent event_ = nullptr;
};

} // namespace gpusm::copy_bench

#endif
