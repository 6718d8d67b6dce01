// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// limit.cc: the bare copies.
#include "bench/gpusm_perf/gpusm_perf.h"

#include <algorithm>
#include <cstring>

namespace gpusm::bench {

namespace {

constexpr int latency_samples = 100;
constexpr int window_samples = 20;
constexpr int link_samples = 5;
constexpr int link_copies = 8;

bool across(const options &opt)
{
    return is_gpu(opt.source) && is_gpu(opt.destination);
}

// Large copies that show what the link carries. A software driver only has to show that it works.
placement link_places(const run &r)
{
    const std::size_t len_bytes = std::size_t{nullptr != r.gpu && r.gpu->is_software() ? 1u : 64u}
                                  << 20;
    return placement::spaced(len_bytes, link_copies, len_bytes * link_copies);
}

} // namespace

bare_copies::bare_copies(run &r) : r_(r)
{
    std::size_t bytes = r.opt.uses_gpu() ? link_places(r).end() : 0;
    for (const std::size_t size : r.opt.sizes) {
        bytes = std::max(bytes, r.places_for(size).end());
    }
    error_ = agree_on_error(open(bytes + std::max(r.opt.source_offset, r.opt.destination_offset)));
}

std::string bare_copies::open(std::size_t len_bytes)
{
    std::string why;
    if (across(r_.opt)) {
        why = exchange_memory(len_bytes);
    }
    const memory_kind host = r_.opt.uses_gpu() ? memory_kind::page_locked : memory_kind::host;
    const auto make = [&](std::unique_ptr<buffer> *made, memory_kind like) {
        const memory_kind kind = is_gpu(like) ? memory_kind::device : host;
        *made = why.empty() ? buffer::make(kind, len_bytes, r_.gpu, &why) : nullptr;
        why = nullptr != *made ? (*made)->poison() : why; // touches every page
        return nullptr == *made ? 0 : address_of(**made);
    };
    to_ = make(&destination_, r_.kind());
    from_ = across(r_.opt) ? imported_ : make(&source_, r_.peer_kind());
    by_driver_ = r_.opt.uses_gpu();
    if (by_driver_ && why.empty()) {
        const driver_api &driver = r_.gpu->driver();
        why =
            r_.gpu->judge("cuStreamCreate", driver.stream_create(&stream_, CU_STREAM_NON_BLOCKING));
        why +=
            r_.gpu->judge("cuEventCreate", driver.event_create(&event_, CU_EVENT_DISABLE_TIMING));
    }
    return why;
}

// Device memory for the peer to copy from, and that of the peer.
std::string bare_copies::exchange_memory(std::size_t len_bytes)
{
    struct {
        CUipcMemHandle handle;
        char device[40];
    } mine = {}, its = {};
    std::string why;
    exported_ = buffer::make(memory_kind::device, len_bytes, r_.gpu, &why);
    if (nullptr != exported_) {
        why = r_.gpu->judge("cuIpcGetMemHandle", r_.gpu->driver().ipc_get_mem_handle(
                                                     &mine.handle, address_of(*exported_)));
    }
    std::strncpy(mine.device, r_.gpu->uuid().c_str(), sizeof(mine.device) - 1);
    (void)MPI_Sendrecv(&mine, sizeof(mine), MPI_BYTE, r_.peer, 0, &its, sizeof(its), MPI_BYTE,
                       r_.peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const double alike = 0 == std::strcmp(mine.device, its.device) ? 1 : 0;
    within_device_ = over_ranks(alike, MPI_MAX) > 0;
    return why.empty()
               ? r_.gpu->judge("cuIpcOpenMemHandle",
                               r_.gpu->driver().ipc_open_mem_handle(
                                   &imported_, its.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
               : why;
}

void bare_copies::close()
{
    if (0 != imported_) {
        (void)r_.gpu->driver().ipc_close_mem_handle(imported_);
    }
    (void)MPI_Barrier(MPI_COMM_WORLD);
    exported_.reset();
}

// Until all are seen to be done. Does nothing once this rank has failed.
double bare_copies::copy_us(const placement &places, int copies)
{
    const auto start = clock_type::now();
    for (int i = 0; i < copies && failure_.empty(); ++i) {
        const std::size_t at = places.at(static_cast<std::size_t>(i));
        const CUdeviceptr to = to_ + r_.opt.destination_offset + at;
        const CUdeviceptr from = from_ + r_.opt.source_offset + at;
        if (by_driver_) {
            failure_ =
                r_.gpu->judge("cuMemcpyAsync",
                              r_.gpu->driver().memcpy_async(to, from, places.len_bytes, stream_));
        } else {
            std::memcpy(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from),
                        places.len_bytes);
            // Each copy must really happen, although nobody looks between two of them.
            asm volatile("" ::: "memory");
        }
    }
    if (by_driver_ && failure_.empty()) {
        CUresult result = r_.gpu->driver().event_record(event_, stream_);
        while (CUDA_SUCCESS == result &&
               CUDA_ERROR_NOT_READY == (result = r_.gpu->driver().event_query(event_))) {
            result = CUDA_SUCCESS;
        }
        failure_ = r_.gpu->judge("cuEventQuery", result);
    }
    return us_between(start, clock_type::now());
}

// The median of the samples, per message. A ping-pong's two ways are copied one after the other,
// those of bibw at the same time.
double bare_copies::message_us(const placement &places, int copies, int samples)
{
    std::vector<double> mine_us;
    const bool in_turns = perf_mode::latency == r_.opt.mode;
    for (const bool first_copies : {true, false}) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        if (!r_.receives() || (in_turns ? first_copies != r_.first : !first_copies)) {
            continue;
        }
        (void)copy_us(places, copies); // not timed: first touch
        for (int i = 0; i < samples; ++i) {
            mine_us.push_back(copy_us(places, copies));
        }
    }
    error_ = agree_on_error(failure_);
    const double us = median_of(mine_us) / copies;
    return !error_.empty() ? 0
           : in_turns      ? over_ranks(us, MPI_SUM) / r_.ranks
                           : over_ranks(us, MPI_MAX) / (perf_mode::bibw == r_.opt.mode ? 2 : 1);
}

double bare_copies::limit_us(std::size_t len_bytes)
{
    if (!error_.empty() || 0 == len_bytes) {
        return 0;
    }
    const bool alone = perf_mode::latency == r_.opt.mode;
    return message_us(
        r_.places_for(len_bytes), alone ? 1 : r_.opt.window,
        std::min(r_.opt.iterations_for(len_bytes), alone ? latency_samples : window_samples));
}

double bare_copies::link_gb_per_s()
{
    const bool managed =
        memory_kind::managed == r_.opt.source || memory_kind::managed == r_.opt.destination;
    if (!error_.empty() || managed || !r_.opt.uses_gpu()) {
        return 0;
    }
    const placement places = link_places(r_);
    const double us = message_us(places, link_copies, link_samples);
    return us > 0 ? static_cast<double>(places.len_bytes) * r_.pairs() / us / 1e3 : 0;
}

bool bare_copies::fit_into_cache(std::size_t len_bytes) const
{
    constexpr std::size_t cache_multiple = 4; // it may still hold a part of what is larger
    const std::size_t touched = 2 * r_.places_for(len_bytes).places * len_bytes;
    return within_device_ && touched < cache_multiple * r_.gpu->l2_cache_bytes();
}

const char *describe_limit(const options &opt)
{
    return !opt.limit                       ? "not measured"
           : perf_mode::kernels == opt.mode ? "the same without messages"
           : across(opt)    ? "cuMemcpyAsync from D memory of the peer opened by CUDA IPC"
           : opt.uses_gpu() ? "cuMemcpyAsync between D and R memory of one process"
                            : "memcpy in the receiver";
}

} // namespace gpusm::bench
