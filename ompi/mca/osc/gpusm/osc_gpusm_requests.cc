// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm_requests.h"

#include <algorithm>
#include <new>
#include <utility>

namespace gpusm {

namespace {

extern "C" int osc_gpusm_request_free(ompi_request_t **given) noexcept
{
    if (!REQUEST_COMPLETE(*given)) {
        return MPI_ERR_REQUEST;
    }
    auto *request = static_cast<window_request *>(*given);
    OMPI_REQUEST_FINI(request);
    delete std::exchange(request->pending, nullptr);
    OBJ_RELEASE(request);
    *given = MPI_REQUEST_NULL;
    return OMPI_SUCCESS;
}

extern "C" int osc_gpusm_request_cancel(ompi_request_t *, int) noexcept
{
    return MPI_ERR_REQUEST;
}

extern "C" void osc_gpusm_request_construct(window_request *request) noexcept
{
    request->req_type = OMPI_REQUEST_WIN;
    request->req_free = osc_gpusm_request_free;
    request->req_cancel = osc_gpusm_request_cancel;
    request->req_status._cancelled = 0;
    request->pending = nullptr;
}

OBJ_CLASS_INSTANCE(window_request, ompi_request_t, osc_gpusm_request_construct, nullptr);

} // namespace

window_request *window_requests::make()
{
    window_request *request = OBJ_NEW(window_request);
    if (request != nullptr) {
        OMPI_REQUEST_INIT(request, false);
        request->pending = new window_pending();
    }
    return request;
}

void window_requests::drop(window_request *request)
{
    request->req_complete = REQUEST_COMPLETED;
    ompi_request_t *its = request;
    (void)osc_gpusm_request_free(&its);
}

void window_requests::start(window_request *request, ompi_win_t *win, ompi_request_t **out)
{
    request->req_mpi_object.win = win;
    request->req_state = OMPI_REQUEST_ACTIVE;
    request->req_status.MPI_ERROR = MPI_SUCCESS;
    *out = request;
    const std::lock_guard guard(mutex_);
    active_.push_back(request);
    count_.store(active_.size(), std::memory_order_relaxed);
}

bool window_requests::progress()
{
    if (0 == count_.load(std::memory_order_relaxed)) {
        return false;
    }
    std::vector<window_request *> over;
    {
        const std::unique_lock guard(mutex_, std::try_to_lock);
        if (!guard.owns_lock()) {
            return false;
        }
        const auto first_over =
            std::partition(active_.begin(), active_.end(), [](const window_request *each) {
                return 0 != each->pending->copies.load(std::memory_order_acquire);
            });
        over.assign(first_over, active_.end());
        active_.erase(first_over, active_.end());
        count_.store(active_.size(), std::memory_order_relaxed);
    }
    for (window_request *each : over) {
        if (each->pending->has_failed.load(std::memory_order_relaxed)) {
            each->req_status.MPI_ERROR = MPI_ERR_OTHER;
        }
        (void)ompi_request_complete(each, true); // the program may free it at once
    }
    return !over.empty();
}

void window_requests::finish()
{
    while (0 != count_.load(std::memory_order_acquire)) {
        (void)progress();
    }
}

} // namespace gpusm
