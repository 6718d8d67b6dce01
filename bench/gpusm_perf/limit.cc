// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// limit.cc: measurement of the bare copies.
#include "bench/gpusm_perf/limit.h"

#include <cstring>

namespace gpusm::bench {

namespace {

constexpr int handle_tag = 3;
constexpr int latency_samples = 100;
constexpr int window_samples = 20;

CUdeviceptr address_of(const buffer &b)
{
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(b.data()));
}

} // namespace

copy_channel::~copy_channel()
{
    if (nullptr == gpu_) {
        return;
    }
    const driver_api &driver = gpu_->driver();
    if (nullptr != event_) {
        (void)driver.event_destroy(event_);
    }
    if (nullptr != stream_) {
        (void)driver.stream_destroy(stream_);
    }
    if (0 != imported_) {
        (void)driver.ipc_close_mem_handle(imported_);
    }
    if (registered_) {
        (void)driver.mem_host_unregister(host_[1]->data());
    }
}

std::string copy_channel::make_stream()
{
    by_driver_ = true;
    CUresult result = gpu_->driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING);
    if (CUDA_SUCCESS != result) {
        stream_ = nullptr;
        return driver_error(gpu_->driver(), "cuStreamCreate", result);
    }
    result = gpu_->driver().event_create(&event_, CU_EVENT_DISABLE_TIMING);
    if (CUDA_SUCCESS != result) {
        event_ = nullptr;
        return driver_error(gpu_->driver(), "cuEventCreate", result);
    }
    return {};
}

std::string copy_channel::open_imported(const CUipcMemHandle &handle, std::size_t len_bytes)
{
    std::string why;
    near_[0] = buffer::make(memory_kind::device, len_bytes, gpu_, &why);
    if (nullptr == near_[0]) {
        return why;
    }
    CUresult result =
        gpu_->driver().ipc_open_mem_handle(&imported_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (CUDA_SUCCESS != result) {
        imported_ = 0;
        return driver_error(gpu_->driver(), "cuIpcOpenMemHandle", result);
    }
    from_[0] = imported_;
    to_[0] = address_of(*near_[0]);
    return make_stream();
}

std::string copy_channel::open_local(memory_kind from, memory_kind to, std::size_t len_bytes)
{
    std::string why;
    for (std::unique_ptr<buffer> &host : host_) {
        host = buffer::make(memory_kind::host, len_bytes, nullptr, &why);
        if (nullptr == host) {
            return why;
        }
        (void)host->poison(); // host memory: cannot fail, and the pages are there afterwards
    }
    if (!is_gpu(from) && !is_gpu(to)) {
        from_[0] = address_of(*host_[0]);
        to_[0] = address_of(*host_[1]);
        return {};
    }
    near_[0] = buffer::make(memory_kind::device, len_bytes, gpu_, &why);
    if (nullptr == near_[0]) {
        return why;
    }
    registered_ = CUDA_SUCCESS == gpu_->driver().mem_host_register(host_[1]->data(), len_bytes, 0);
    variants_ = registered_ ? 2 : 1;
    for (int v = 0; v < variants_; ++v) {
        from_[v] = is_gpu(from) ? address_of(*near_[0]) : address_of(*host_[v]);
        to_[v] = is_gpu(to) ? address_of(*near_[0]) : address_of(*host_[v]);
    }
    return make_stream();
}

std::string copy_channel::start(int variant, std::size_t len_bytes, int copies)
{
    const int v = std::min(variant, variants_ - 1);
    if (!by_driver_) {
        for (int i = 0; i < copies; ++i) {
            std::memcpy(reinterpret_cast<void *>(to_[v]), reinterpret_cast<const void *>(from_[v]),
                        len_bytes);
            // Each copy must really happen, although nobody looks between two of them.
            asm volatile("" ::: "memory");
        }
        return {};
    }
    for (int i = 0; i < copies; ++i) {
        CUresult result = gpu_->driver().memcpy_async(to_[v], from_[v], len_bytes, stream_);
        if (CUDA_SUCCESS != result) {
            return driver_error(gpu_->driver(), "cuMemcpyAsync", result);
        }
    }
    CUresult result = gpu_->driver().event_record(event_, stream_);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(gpu_->driver(), "cuEventRecord", result);
}

std::string copy_channel::finish()
{
    if (!by_driver_) {
        return {};
    }
    CUresult result = CUDA_ERROR_NOT_READY;
    while (CUDA_ERROR_NOT_READY == result) {
        result = gpu_->driver().event_query(event_);
    }
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(gpu_->driver(), "cuEventQuery", result);
}

limit_probe::limit_probe(run &r) : r_(r)
{
    std::string mine = open_channel(true);
    error_ = agree_on_error(mine, MPI_COMM_WORLD);
    if (error_.empty() && (perf_mode::latency == r.opt.mode || perf_mode::bibw == r.opt.mode)) {
        mine = open_channel(false);
        error_ = agree_on_error(mine, MPI_COMM_WORLD);
    }
    int mine_variants = 1;
    for (const auto *channel : {from_first_.get(), from_second_.get()}) {
        mine_variants =
            nullptr == channel ? mine_variants : std::max(mine_variants, channel->variants());
    }
    (void)MPI_Allreduce(&mine_variants, &variants_, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
}

// The rank that copies is the receiver, unless only the sender has device memory.
std::string limit_probe::open_channel(bool from_first)
{
    const memory_kind from = from_first ? r_.opt.source : r_.opt.destination;
    const memory_kind to = from_first ? r_.opt.destination : r_.opt.source;
    const std::size_t len_bytes = *std::max_element(r_.opt.sizes.begin(), r_.opt.sizes.end()) + 1;
    const bool sender = r_.first == from_first;
    const bool across = is_gpu(from) && is_gpu(to);
    const bool receiver_copies = is_gpu(to) || !is_gpu(from);
    std::string error;
    auto &channel = from_first ? from_first_ : from_second_;
    if (sender != receiver_copies) {
        channel = std::make_unique<copy_channel>(r_.gpu);
    }
    if (!across) {
        return nullptr == channel ? error : channel->open_local(from, to, len_bytes);
    }
    // The handle crosses as bytes, with a leading one that says whether there is a handle.
    unsigned char message[1 + sizeof(CUipcMemHandle)] = {};
    CUipcMemHandle handle = {};
    if (sender) {
        if (nullptr == exported_) {
            exported_ = buffer::make(memory_kind::device, len_bytes, r_.gpu, &error);
        }
        if (nullptr != exported_) {
            CUresult result = r_.gpu->driver().ipc_get_mem_handle(&handle, address_of(*exported_));
            if (CUDA_SUCCESS != result) {
                error = driver_error(r_.gpu->driver(), "cuIpcGetMemHandle", result);
            }
        }
        message[0] = error.empty() ? 1 : 0;
        std::memcpy(message + 1, &handle, sizeof(handle));
        (void)MPI_Send(message, sizeof(message), MPI_BYTE, r_.peer, handle_tag, MPI_COMM_WORLD);
        return error;
    }
    (void)MPI_Recv(message, sizeof(message), MPI_BYTE, r_.peer, handle_tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    std::memcpy(&handle, message + 1, sizeof(handle));
    return 1 == message[0] ? channel->open_imported(handle, len_bytes) : error;
}

void limit_probe::close()
{
    from_first_.reset();
    from_second_.reset();
    (void)MPI_Barrier(MPI_COMM_WORLD);
    exported_.reset();
}

double limit_probe::latency_one_way_us(bool from_first, std::size_t len_bytes)
{
    copy_channel *channel = from_first ? from_first_.get() : from_second_.get();
    double best_us = 0;
    (void)MPI_Barrier(MPI_COMM_WORLD);
    for (int v = 0; nullptr != channel && v < channel->variants() && error_.empty(); ++v) {
        std::vector<double> samples;
        for (int i = 0; i < std::min(r_.opt.iterations_for(len_bytes), latency_samples); ++i) {
            const auto start = clock_type::now();
            std::string error = channel->start(v, len_bytes, 1);
            if (error.empty()) {
                error = channel->finish();
            }
            if (!error.empty()) {
                error_ = error; // agreed on by latency_us
                break;
            }
            samples.push_back(seconds_since(start) * 1e6);
        }
        const double us = median_of(samples);
        best_us = 0 == v ? us : std::min(best_us, us);
    }
    double result = 0;
    (void)MPI_Allreduce(&best_us, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return result;
}

double limit_probe::latency_us(std::size_t len_bytes)
{
    if (!error_.empty() || 0 == len_bytes) {
        return 0;
    }
    const double there_us = latency_one_way_us(true, len_bytes);
    const double back_us = latency_one_way_us(false, len_bytes);
    error_ = agree_on_error(error_, MPI_COMM_WORLD);
    return error_.empty() ? (there_us + back_us) / 2 : 0;
}

double limit_probe::bytes_per_s(std::size_t len_bytes)
{
    if (!error_.empty() || 0 == len_bytes) {
        return 0;
    }
    const int windows = std::min(r_.opt.iterations_for(len_bytes), window_samples);
    double best = 0;
    std::string failure;
    for (int v = 0; v < variants_; ++v) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        const auto start = clock_type::now();
        for (int i = 0; i < windows && failure.empty(); ++i) {
            for (copy_channel *channel : {from_first_.get(), from_second_.get()}) {
                if (nullptr != channel && failure.empty()) {
                    failure = channel->start(v, len_bytes, r_.opt.window);
                }
            }
            for (copy_channel *channel : {from_first_.get(), from_second_.get()}) {
                if (nullptr != channel && failure.empty()) {
                    failure = channel->finish();
                }
            }
        }
        const double mine_s = seconds_since(start);
        double slowest_s = 0;
        (void)MPI_Allreduce(&mine_s, &slowest_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        const double bytes = static_cast<double>(len_bytes) * windows * r_.opt.window * r_.pairs() *
                             (perf_mode::bibw == r_.opt.mode ? 2 : 1);
        best = slowest_s > 0 ? std::max(best, bytes / slowest_s) : best;
    }
    error_ = agree_on_error(failure, MPI_COMM_WORLD);
    return error_.empty() ? best : 0;
}

std::string describe_limit(const options &opt)
{
    if (!opt.limit) {
        return "not measured";
    }
    std::string text;
    if (is_gpu(opt.source) && is_gpu(opt.destination)) {
        text = "cuMemcpyAsync from the peer's memory opened by CUDA IPC";
    } else if (opt.uses_gpu()) {
        text = "cuMemcpyAsync between device and host memory of one process";
    } else {
        return "memcpy in the receiver";
    }
    for (memory_kind kind : {opt.source, opt.destination}) {
        if (is_gpu(kind) && !is_legacy_ipc_capable(kind)) {
            return text + "; a D buffer stands in for " + describe(kind) + " memory";
        }
    }
    return text;
}

std::string agree_on_error(const std::string &mine, MPI_Comm communicator)
{
    int rank = 0;
    int ranks = 0;
    (void)MPI_Comm_rank(communicator, &rank);
    (void)MPI_Comm_size(communicator, &ranks);
    const int candidate = mine.empty() ? ranks : rank;
    int chosen = ranks;
    (void)MPI_Allreduce(&candidate, &chosen, 1, MPI_INT, MPI_MIN, communicator);
    if (ranks == chosen) {
        return {};
    }
    char text[512] = "";
    if (rank == chosen) {
        std::strncpy(text, mine.c_str(), sizeof(text) - 1);
    }
    (void)MPI_Bcast(text, sizeof(text), MPI_CHAR, chosen, communicator);
    return text;
}

} // namespace gpusm::bench
