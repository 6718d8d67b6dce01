// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// limit.h: the bare copy that messages are compared with.
#ifndef GPUSM_PERF_LIMIT_H
#define GPUSM_PERF_LIMIT_H

#include "bench/gpusm_perf/run.h"

#include <optional>

namespace gpusm::bench {

// Copies in one direction that this process makes, the whole window on one stream. A direction has
// one or two ways to be copied (variants); the limit is the better one.
class copy_channel {
  public:
    explicit copy_channel(const device *gpu) : gpu_(gpu) {}
    ~copy_channel();
    copy_channel(const copy_channel &) = delete;
    copy_channel &operator=(const copy_channel &) = delete;

    // Each returns an empty string or a sentence.
    std::string open_imported(const CUipcMemHandle &handle, std::size_t len_bytes);
    std::string open_local(memory_kind from, memory_kind to, std::size_t len_bytes);

    int variants() const { return variants_; }
    std::string start(int variant, std::size_t len_bytes, int copies);
    std::string finish(); // polls until the copies of start() are done

  private:
    std::string make_stream();

    const device *gpu_;
    int variants_ = 1;
    bool by_driver_ = false;
    bool registered_ = false; // host_[1] is registered with the driver
    CUdeviceptr imported_ = 0;
    std::unique_ptr<buffer> near_[2]; // [0] source or destination on the device
    std::unique_ptr<buffer> host_[2]; // pageable, registered
    CUdeviceptr from_[2] = {};
    CUdeviceptr to_[2] = {};
    CUstream stream_ = nullptr;
    CUevent event_ = nullptr;
};

class limit_probe {
  public:
    // Collective. error() is the same on all ranks afterwards; when it is not empty there is no
    // limit in this run.
    explicit limit_probe(run &r);
    const std::string &error() const { return error_; }

    // Collective: gives everything back, mappings first and what they map only when all ranks have
    // closed theirs. Nothing may be measured afterwards.
    void close();

    // Collective; the result is meant for rank 0. Zero when the size is zero.
    double latency_us(std::size_t len_bytes);
    double bytes_per_s(std::size_t len_bytes);

  private:
    std::string open_channel(bool from_first);
    double latency_one_way_us(bool from_first, std::size_t len_bytes);

    run &r_;
    std::string error_;
    int variants_ = 1;                         // the most that any rank has
    std::unique_ptr<buffer> exported_;         // what the peer copies from
    std::unique_ptr<copy_channel> from_first_; // nullptr: not copied by this rank
    std::unique_ptr<copy_channel> from_second_;
};

// What the header says about the limit for these kinds.
std::string describe_limit(const options &opt);

// Makes a rank's sentence known to all: empty when every rank's is empty, else that of the lowest
// rank that has one. Collective.
std::string agree_on_error(const std::string &mine, MPI_Comm communicator);

} // namespace gpusm::bench

#endif
