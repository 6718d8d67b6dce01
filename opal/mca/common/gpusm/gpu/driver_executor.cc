// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/driver_executor.h"

namespace gpusm {

driver_executor::driver_executor(const driver_api &driver, const device &on,
                                 std::size_t most_copies, copy_ways *usable)
    : driver_(driver), on_(on), usable_(*usable), streams_{on.stream}
{
    destinations_.reserve(most_copies);
    sources_.reserve(most_copies);
    sizes_.reserve(most_copies);
}

void driver_executor::open(std::size_t most)
{
    CUstream made = nullptr;
    while (streams_.size() < most && status::ok == make_stream(driver_, &made)) {
        streams_.push_back(made);
    }
}

void driver_executor::close()
{
    for (; streams_.size() > 1; streams_.pop_back()) {
        (void)driver_.stream_destroy(streams_.back());
    }
}

void driver_executor::forget(completion *end)
{
    if (end->event != nullptr) {
        (void)driver_.event_destroy(end->event);
        end->event = nullptr;
    }
}

start_answer driver_executor::start(bool as_batch, std::uint32_t turn, copy_list *list,
                                    copy_list *failed, completion *end)
{
    if (nullptr == end->event &&
        status::ok != driver_.report("cuEventCreate",
                                     driver_.event_create(&end->event, CU_EVENT_DISABLE_TIMING))) {
        end->event = nullptr;
        return start_answer::failed;
    }
    turn_ = turn;
    end->turn = turn;
    end->stream = streams_[turn];
    const CUresult batch = as_batch ? start_as_batch(end->stream, *list) : CUDA_ERROR_NOT_SUPPORTED;
    end->way = CUDA_SUCCESS == batch ? copy_way::batch : copy_way::single;
    if (copy_way::single == end->way) {
        copy_list all = list->take_all();
        while (copy_request *each = all.take_first()) {
            (start_alone(end->stream, *each) ? list : failed)->append(each);
        }
        if (!failed->empty() && batch != CUDA_ERROR_NOT_SUPPORTED) {
            // The batch may have started them, and they must not run when they are handed back.
            (void)driver_.stream_synchronize(end->stream);
        }
    }
    if (list->empty()) {
        return start_answer::failed;
    }
    if (status::ok !=
        driver_.report("cuEventRecord", driver_.event_record(end->event, end->stream))) {
        (void)driver_.stream_synchronize(end->stream); // their end cannot be seen otherwise
        return start_answer::failed;
    }
    return start_answer::started;
}

// CUDA_ERROR_NOT_SUPPORTED: nothing has been started. After any other error something may be; all
// of it bears being started again, and the single copies say which one it was.
CUresult driver_executor::start_as_batch(CUstream stream, const copy_list &list)
{
    destinations_.clear();
    sources_.clear();
    sizes_.clear();
    for (const copy_request *each = list.first; each != nullptr; each = each->next) {
        // The driver takes neither an event to wait for nor an empty copy into a batch.
        if (each->wait_for != nullptr || 0 == each->len_bytes) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        destinations_.push_back(each->destination);
        sources_.push_back(each->source);
        sizes_.push_back(each->len_bytes);
    }
    const CUresult result = driver_.copy_batch(destinations_.data(), sources_.data(), sizes_.data(),
                                               sizes_.size(), stream);
    if (CUDA_ERROR_NOT_SUPPORTED == result) {
        usable_ = usable_.without(copy_way::batch);
    }
    return result;
}

bool driver_executor::start_alone(CUstream stream, const copy_request &request)
{
    return (nullptr == request.wait_for ||
            status::ok == driver_.report("cuStreamWaitEvent",
                                         driver_.stream_wait_event(stream, request.wait_for, 0))) &&
           status::ok == driver_.report("cuMemcpyAsync",
                                        driver_.memcpy_async(request.destination, request.source,
                                                             request.len_bytes, stream));
}

status driver_executor::ask_now(const completion &end)
{
    const CUresult result = ask_driver(driver_, on_, end);
    return CUDA_ERROR_NOT_READY == result ? status::busy : report_end(driver_, result);
}

} // namespace gpusm
