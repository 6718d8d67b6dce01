// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/copy_start.cc: the copy engine's submissions: the three ways in which copies are started.
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <cstdint>
#include <utility>

namespace gpusm {

namespace {

// After so many refusals one behind the other the kernel is not tried again.
constexpr std::uint32_t refusals_in_a_row = 8;

} // namespace

void copy_engine::chain::append(copy_request *request)
{
    request->next = nullptr;
    (nullptr == first ? first : last->next) = request;
    last = request;
}

void copy_engine::chain::append(chain &other)
{
    if (other.first != nullptr) {
        (nullptr == first ? first : last->next) = other.first;
        last = other.last;
        other = {};
    }
}

bool copy_engine::start_by_kernel(lane &of, std::uint32_t slot)
{
    submission &in = of.slots[slot];
    copies_.clear();
    for (const copy_request *each = in.requests.first; each != nullptr; each = each->next) {
        copies_.push_back(
            {each->destination, each->source, static_cast<std::uint32_t>(each->len_bytes), 0});
    }
    in.stream = of.kernel_streams[++of.turn % of.kernel_streams.size()];
    const CUresult result = of.kernel.launch(in.stream, slot, copies_.data(),
                                             static_cast<std::uint32_t>(copies_.size()));
    if (CUDA_SUCCESS == result) {
        of.refused_launches = 0;
        return true;
    }
    (void)driver_.report("cuLaunchKernel", result);
    if (++of.refused_launches >= refusals_in_a_row) {
        log_line(log_level::warn, "no further copies by kernel on device %d", of.on->ordinal);
        of.gives_up_kernel = true;
    }
    return false;
}

// True: something is in flight. What the driver refuses has failed.
bool copy_engine::start_by_driver(lane &of, submission &in)
{
    if (nullptr == in.done) {
        const CUresult made = driver_.event_create(&in.done, CU_EVENT_DISABLE_TIMING);
        if (CUDA_SUCCESS != made) {
            in.done = nullptr;
            (void)driver_.report("cuEventCreate", made);
            fail(in.requests);
            return false;
        }
    }
    // A lone copy takes the device's own stream.
    of.next_stream = 0 == of.large.in_flight.copies
                         ? 0
                         : (of.next_stream + 1) % static_cast<std::uint32_t>(of.streams.size());
    in.turn = of.next_stream;
    const CUstream stream = in.stream = of.streams[in.turn];
    chain started = std::exchange(in.requests, {});
    chain refused;
    bool in_doubt = false;
    in.way = start_as_batch(stream, started, &in_doubt) ? copy_way::batch : copy_way::single;
    if (copy_way::single == in.way) {
        in.load = {};
        for (copy_request *each = std::exchange(started, {}).first; each != nullptr;) {
            copy_request *request = std::exchange(each, each->next);
            if (start_alone(stream, *request)) {
                in.load.copies += 1;
                in.load.bytes += request->len_bytes;
                started.append(request);
            } else {
                refused.append(request);
            }
        }
    }
    if (in_doubt && refused.first != nullptr) {
        (void)driver_.stream_synchronize(stream); // they must not run when they are handed back
    }
    fail(refused);
    if (nullptr == started.first) {
        return false;
    }
    const CUresult recorded = driver_.event_record(in.done, stream);
    if (CUDA_SUCCESS != recorded) {
        (void)driver_.report("cuEventRecord", recorded);
        // Their end cannot be seen otherwise, and they must not run when they are handed back.
        (void)driver_.stream_synchronize(stream);
        fail(started);
        return false;
    }
    in.requests = started;
    return true;
}

// True: all of them are started. False: none that would not bear being started again; *in_doubt
// when some may be.
bool copy_engine::start_as_batch(CUstream stream, const chain &requests, bool *in_doubt)
{
    if (!batches_ || requests.first == requests.last) {
        return false;
    }
    destinations_.clear();
    sources_.clear();
    sizes_.clear();
    for (const copy_request *each = requests.first; each != nullptr; each = each->next) {
        // The driver takes neither an event to wait for nor an empty copy into a batch.
        if (each->wait_for != nullptr || 0 == each->len_bytes) {
            return false;
        }
        destinations_.push_back(each->destination);
        sources_.push_back(each->source);
        sizes_.push_back(each->len_bytes);
    }
    const CUresult result = driver_.copy_batch(destinations_.data(), sources_.data(), sizes_.data(),
                                               sizes_.size(), stream);
    if (CUDA_ERROR_NOT_SUPPORTED == result) {
        batches_ = false;
    } else {
        *in_doubt = CUDA_SUCCESS != result;
    }
    return CUDA_SUCCESS == result; // after any other error the single copies say which one it was
}

bool copy_engine::start_alone(CUstream stream, const copy_request &request)
{
    CUresult result = CUDA_SUCCESS;
    const char *what = "cuStreamWaitEvent";
    if (request.wait_for != nullptr) {
        result = driver_.stream_wait_event(stream, request.wait_for, 0);
    }
    if (CUDA_SUCCESS == result) {
        what = "cuMemcpyAsync";
        result =
            driver_.memcpy_async(request.destination, request.source, request.len_bytes, stream);
    }
    if (CUDA_SUCCESS != result) {
        (void)driver_.report(what, result);
    }
    return CUDA_SUCCESS == result;
}

} // namespace gpusm
