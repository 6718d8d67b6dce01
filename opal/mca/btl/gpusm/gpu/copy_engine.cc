// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/gpu/copy_engine.h"

#include <utility>

namespace gpusm {

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

copy_engine::copy_engine(const driver_api &driver, copy_limits limits)
    : driver_(driver), limits_(limits)
{
    destinations_.reserve(limits.batch_copies);
    sources_.reserve(limits.batch_copies);
    sizes_.reserve(limits.batch_copies);
}

copy_engine::~copy_engine()
{
    for (lane &each : lanes_) {
        if (nullptr == each.on) {
            continue;
        }
        const driver_scope scope(driver_, each.on->context);
        for (submission &slot : each.ring) {
            if (slot.done != nullptr && scope.entered()) {
                (void)driver_.event_destroy(slot.done);
            }
        }
    }
}

copy_engine::lane *copy_engine::lane_of(device &on)
{
    while (lanes_.size() <= on.index) {
        lanes_.emplace_back();
    }
    lane &found = lanes_[on.index];
    if (nullptr == found.on) {
        found.on = &on;
        found.ring.resize(limits_.depth);
    }
    return &found;
}

void copy_engine::submit(device &on, copy_request *request)
{
    lane &to = *lane_of(on);
    request->outcome = status::ok;
    to.gathered.append(request);
    ++pending_;
    launch(to);
}

void copy_engine::launch(lane &of)
{
    while (of.gathered.first != nullptr && of.in_flight < limits_.depth) {
        submission &slot = of.ring[(of.first + of.in_flight) % limits_.depth];
        std::uint32_t copies = 0;
        std::size_t bytes = 0;
        do {
            copy_request *request = std::exchange(of.gathered.first, of.gathered.first->next);
            bytes += request->len_bytes;
            slot.requests.append(request);
        } while (++copies < limits_.batch_copies && bytes < limits_.batch_bytes &&
                 of.gathered.first != nullptr);
        start(of, slot);
    }
}

void copy_engine::start(lane &of, submission &in)
{
    const driver_scope scope(driver_, of.on->context);
    if (!scope.entered()) {
        fail(in.requests);
        return;
    }
    if (nullptr == in.done) {
        const CUresult made = driver_.event_create(&in.done, CU_EVENT_DISABLE_TIMING);
        if (CUDA_SUCCESS != made) {
            in.done = nullptr;
            (void)driver_.report("cuEventCreate", made);
            fail(in.requests);
            return;
        }
    }
    const CUstream stream = of.on->stream;
    chain started = std::exchange(in.requests, {});
    chain refused;
    if (!start_as_batch(stream, started)) {
        for (copy_request *each = std::exchange(started, {}).first; each != nullptr;) {
            copy_request *request = std::exchange(each, each->next);
            (start_alone(stream, *request) ? started : refused).append(request);
        }
    }
    fail(refused);
    if (nullptr == started.first) {
        return;
    }
    const CUresult recorded = driver_.event_record(in.done, stream);
    if (CUDA_SUCCESS != recorded) {
        (void)driver_.report("cuEventRecord", recorded);
        // Their end cannot be seen otherwise, and they must not run when they are handed back.
        (void)driver_.stream_synchronize(stream);
        fail(started);
        return;
    }
    in.requests = started;
    ++of.in_flight;
}

// True: all of them are started. False: none that would not bear being started again.
bool copy_engine::start_as_batch(CUstream stream, const chain &requests)
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

void copy_engine::fail(chain &requests)
{
    for (copy_request *each = requests.first; each != nullptr; each = each->next) {
        each->outcome = status::driver_failed;
        --pending_;
    }
    finished_.append(requests);
}

copy_request *copy_engine::collect()
{
    for (lane &each : lanes_) {
        if (0 == each.in_flight) {
            continue;
        }
        submission &oldest = each.ring[each.first];
        CUresult result = CUDA_ERROR_INVALID_CONTEXT;
        {
            const driver_scope scope(driver_, each.on->context);
            if (scope.entered()) {
                result = driver_.event_query(oldest.done);
            }
        }
        if (CUDA_ERROR_NOT_READY == result) {
            continue;
        }
        each.first = (each.first + 1) % limits_.depth;
        --each.in_flight;
        if (CUDA_SUCCESS == result) {
            for (copy_request *done = oldest.requests.first; done != nullptr; done = done->next) {
                --pending_;
            }
            finished_.append(oldest.requests);
        } else {
            (void)driver_.report("a copy from a peer's device memory", result);
            fail(oldest.requests);
        }
        launch(each);
    }
    return std::exchange(finished_, {}).first;
}

copy_request *copy_engine::cancel_all()
{
    for (lane &each : lanes_) {
        fail(each.gathered);
        for (; each.in_flight > 0; --each.in_flight) {
            fail(each.ring[each.first].requests);
            each.first = (each.first + 1) % limits_.depth;
        }
    }
    return std::exchange(finished_, {}).first;
}

} // namespace gpusm
