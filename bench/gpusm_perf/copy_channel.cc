// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// copy_channel.cc: the driver calls behind copy_channel.h.
#include "bench/gpusm_perf/copy_channel.h"

#include <algorithm>
#include <cstring>

namespace gpusm::bench {

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
    for (CUdeviceptr mapping : imported_) {
        (void)driver.ipc_close_mem_handle(mapping);
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

std::string copy_channel::open_sources(std::span<const copy_source> sources, std::size_t len_bytes)
{
    std::string why;
    near_ = buffer::make(memory_kind::device, len_bytes, gpu_, &why);
    if (nullptr == near_) {
        return why;
    }
    for (const copy_source &source : sources) {
        CUdeviceptr address = source.mine;
        if (0 == address) {
            CUresult result = gpu_->driver().ipc_open_mem_handle(
                &address, source.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
            if (CUDA_SUCCESS != result) {
                return driver_error(gpu_->driver(), "cuIpcOpenMemHandle", result);
            }
            imported_.push_back(address);
        }
        from_[0].push_back(address);
    }
    to_[0] = address_of(*near_);
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
        from_[0].push_back(address_of(*host_[0]));
        to_[0] = address_of(*host_[1]);
        return {};
    }
    near_ = buffer::make(memory_kind::device, len_bytes, gpu_, &why);
    if (nullptr == near_) {
        return why;
    }
    registered_ = CUDA_SUCCESS == gpu_->driver().mem_host_register(host_[1]->data(), len_bytes, 0);
    const bool locked = memory_kind::page_locked == from || memory_kind::page_locked == to;
    if (locked && !registered_) {
        return "host memory cannot be registered";
    }
    variants_ = registered_ && !locked ? 2 : 1;
    for (int v = 0; v < variants_; ++v) {
        const CUdeviceptr host = address_of(*host_[locked ? 1 : v]);
        from_[v].push_back(is_gpu(from) ? address_of(*near_) : host);
        to_[v] = is_gpu(to) ? address_of(*near_) : host;
    }
    return make_stream();
}

std::string copy_channel::start(int variant, std::span<const copy_piece> pieces,
                                std::size_t len_bytes)
{
    const int v = std::min(variant, variants_ - 1);
    if (!by_driver_) {
        for (const copy_piece &piece : pieces) {
            std::memcpy(reinterpret_cast<void *>(to_[v] + piece.to_offset),
                        reinterpret_cast<const void *>(from_[v][piece.source] + piece.from_offset),
                        len_bytes);
            // Each copy must really happen, although nobody looks between two of them.
            asm volatile("" ::: "memory");
        }
        return {};
    }
    for (const copy_piece &piece : pieces) {
        CUresult result = gpu_->driver().memcpy_async(to_[v] + piece.to_offset,
                                                      from_[v][piece.source] + piece.from_offset,
                                                      len_bytes, stream_);
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

} // namespace gpusm::bench
