// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm.h"

#include "opal/mca/common/gpusm/base/threads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Its class, without its definition: coll_base_util.h includes headers that are not installed.
struct ompi_coll_base_nbc_request_t;
extern "C" {
OMPI_DECLSPEC OBJ_CLASS_DECLARATION(ompi_coll_base_nbc_request_t);
}

namespace gpusm {

// Open MPI keeps notes of its own behind the request of any non-blocking collective. How much room
// they take is checked when the component is opened.
struct staged_request {
    ompi_request_t request;
    alignas(std::max_align_t) unsigned char notes[256];
    ompi_request_t *inner;
    call_copies *call; // owned; null: nothing is copied
    ompi_op_t *op;     // this and the datatype are retained; nullptr unless persistent
    ompi_datatype_t *type;
    persistent_call *on_devices;                        // owned; null: there is none
    std::function<int(ompi_request_t **)> *start_later; // owned; null: `inner` has been made
    std::int32_t tag;                                   // for that
};

namespace {

OBJ_CLASS_INSTANCE(staged_request, ompi_coll_base_nbc_request_t, nullptr, nullptr);

staged_request *ours(ompi_request_t *request)
{
    return reinterpret_cast<staged_request *>(request);
}

void destroy(staged_request *request)
{
    delete request->call;
    delete request->on_devices;
    delete request->start_later;
    if (nullptr != request->op) {
        OBJ_RELEASE(request->op);
        OBJ_RELEASE(request->type);
    }
    OMPI_REQUEST_FINI(&request->request);
    OBJ_RELEASE(request);
}

// A program finds the error in its status as it stands here, so it has to be one of MPI's, not one
// of Open MPI's own. Afterwards the program may have freed the request.
void complete(staged_request *request, int error)
{
    request->request.req_status.MPI_ERROR = ompi_errcode_get_mpi_code(error);
    (void)ompi_request_complete(&request->request, true);
}

// The inner request is complete.
void finish(staged_request *request)
{
    opal_atomic_rmb();
    ompi_request_t *inner = request->inner;
    int error = inner->req_status.MPI_ERROR;
    if (MPI_SUCCESS == error && request->call != nullptr) {
        request->call->enter_context();
        error = OMPI_SUCCESS == request->call->copy_back() ? MPI_SUCCESS : MPI_ERR_OTHER;
    }
    // Not ompi_request_empty, which all have in common: MPI_Waitall would leave it to the program.
    if (inner->req_persistent) {
        inner->req_state = OMPI_REQUEST_INACTIVE;
    }
    if (!request->request.req_persistent) {
        (void)ompi_request_free(&request->inner);
        delete std::exchange(request->call, nullptr); // its memory is free for the next call
    }
    complete(request, error);
}

// What has been started, and runs, or has ended with that error, as the program's wait will tell.
// Somebody may be waiting for it already.
void run_inner(staged_request *request)
{
    ompi_request_t *inner = request->inner;
    request->call->enter_context();
    int rc = request->call->copy_in();
    if (OMPI_SUCCESS == rc && OMPI_REQUEST_NOOP == inner->req_type) { // of one process, in place
        finish(request);
        return;
    }
    if (OMPI_SUCCESS == rc) {
        rc = inner->req_start(1, &request->inner);
    }
    if (OMPI_SUCCESS == rc) {
        mca_coll_gpusm_component.requests->add(request);
        return;
    }
    end_request(request, MPI_ERR_OTHER);
}

void start(staged_request *request)
{
    request->request.req_status.MPI_ERROR = MPI_SUCCESS;
    request->request.req_complete = REQUEST_PENDING;
    request->request.req_state = OMPI_REQUEST_ACTIVE;
    if (request->on_devices != nullptr) {
        start_persistent(request->on_devices, request);
    } else {
        run_inner(request);
    }
}

// One that fails does not keep the others from being started, nor from being waited for: an error
// of this function would not tell which of them run.
extern "C" int coll_gpusm_start(std::size_t count, ompi_request_t **requests) noexcept
{
    for (std::size_t i = 0; i < count; ++i) {
        start(ours(requests[i]));
    }
    return OMPI_SUCCESS;
}

extern "C" int coll_gpusm_free(ompi_request_t **request) noexcept
{
    if (!REQUEST_COMPLETE(*request)) {
        return MPI_ERR_REQUEST; // as coll/libnbc: the program may not free an active collective
    }
    staged_request *freed = ours(*request);
    if (nullptr != freed->inner && freed->request.req_persistent) {
        (void)ompi_request_free(&freed->inner);
    }
    destroy(freed);
    *request = MPI_REQUEST_NULL;
    return OMPI_SUCCESS;
}

extern "C" int coll_gpusm_cancel(ompi_request_t *, int) noexcept
{
    return MPI_ERR_REQUEST;
}

// Takes the next tag of the communicator, as libnbc does for each of its requests, or gives one.
std::int32_t take_tag(ompi_communicator_t *comm)
{
    const std::int32_t tag = comm->c_nbc_tag - 1 < MCA_COLL_BASE_TAG_NONBLOCKING_END
                                 ? MCA_COLL_BASE_TAG_NONBLOCKING_BASE
                                 : comm->c_nbc_tag;
    comm->c_nbc_tag = tag - 1;
    return tag;
}

// Starts the inner request with the tag that has been taken for it.
void start_now(staged_request *request)
{
    const std::unique_ptr<std::function<int(ompi_request_t **)>> start(
        std::exchange(request->start_later, nullptr));
    ompi_communicator_t *comm = request->request.req_mpi_object.comm;
    const std::int32_t next_tag = comm->c_nbc_tag;
    comm->c_nbc_tag = request->tag;
    const int rc = (*start)(&request->inner);
    comm->c_nbc_tag = next_tag;
    if (OMPI_SUCCESS != rc) {
        request->inner = nullptr;
        end_request(request, MPI_ERR_OTHER);
    } else if (REQUEST_COMPLETE(request->inner)) {
        finish(request);
    } else {
        mca_coll_gpusm_component.requests->add(request);
    }
}

extern "C" int coll_gpusm_progress() noexcept
{
    return mca_coll_gpusm_component.requests->progress();
}

} // namespace

abi_part nbc_request_part()
{
    const std::size_t room = offsetof(staged_request, inner);
    const std::size_t needed = OBJ_CLASS(ompi_coll_base_nbc_request_t)->cls_sizeof;
    return {"ompi_coll_base_nbc_request_t", room, needed <= room ? 0 : needed};
}

staged_request *make_request(std::unique_ptr<call_copies> call, ompi_communicator_t *comm)
{
    staged_request *request = OBJ_NEW(staged_request);
    if (nullptr == request) {
        return nullptr;
    }
    OMPI_REQUEST_INIT(&request->request, false);
    request->request.req_type = OMPI_REQUEST_COLL;
    request->request.req_status = ompi_status_empty;
    request->request.req_start = coll_gpusm_start;
    request->request.req_free = coll_gpusm_free;
    request->request.req_cancel = coll_gpusm_cancel;
    request->request.req_mpi_object.comm = comm;
    request->inner = nullptr;
    request->call = call.release();
    request->op = nullptr;
    request->type = nullptr;
    request->on_devices = nullptr;
    request->start_later = nullptr;
    return request;
}

void drop_request(staged_request *request)
{
    destroy(request);
}

void follow(staged_request *request, ompi_request_t *inner, ompi_request_t **out)
{
    request->inner = inner;
    request->request.req_state = OMPI_REQUEST_ACTIVE;
    *out = &request->request;
    if (REQUEST_COMPLETE(inner)) {
        finish(request);
    } else {
        mca_coll_gpusm_component.requests->add(request);
    }
}

void follow_persistent(staged_request *request, ompi_request_t *inner, ompi_op_t *op,
                       ompi_datatype_t *type, ompi_request_t **out)
{
    OMPI_REQUEST_INIT(&request->request, true);
    request->inner = inner;
    if (nullptr != op) {
        OBJ_RETAIN(op);
        OBJ_RETAIN(type);
    }
    request->op = op;
    request->type = type;
    *out = &request->request;
}

void precede_persistent(staged_request *request, std::unique_ptr<persistent_call> on_devices,
                        ompi_request_t *inner, ompi_op_t *op, ompi_datatype_t *type,
                        ompi_request_t **out)
{
    request->on_devices = on_devices.release();
    follow_persistent(request, inner, op, type, out);
}

void precede(staged_request *request, ompi_request_t *inner, ompi_request_t **out)
{
    request->inner = inner;
    request->request.req_state = OMPI_REQUEST_ACTIVE;
    *out = &request->request;
}

bool can_start_later(const mca_coll_base_module_t *of)
{
    return !has_threads() &&
           std::string_view("ompi_coll_libnbc_module_t") == of->super.obj_class->cls_name;
}

void precede_later(staged_request *request, std::function<int(ompi_request_t **)> start,
                   ompi_request_t **out)
{
    request->start_later = new std::function<int(ompi_request_t **)>(std::move(start));
    request->tag = take_tag(request->request.req_mpi_object.comm);
    precede(request, nullptr, out);
}

void start_inner(staged_request *request)
{
    request->start_later != nullptr ? start_now(request) : run_inner(request);
}

void end_request(staged_request *request, int error)
{
    if (!request->request.req_persistent) {
        if (request->inner != nullptr) {
            (void)ompi_request_free(&request->inner);
        }
        delete std::exchange(request->call, nullptr);
    }
    complete(request, error);
}

request_list::~request_list()
{
    if (is_registered_) {
        (void)opal_progress_unregister(coll_gpusm_progress);
    }
}

void request_list::add(staged_request *request)
{
    const std::lock_guard guard(mutex_);
    if (!std::exchange(is_registered_, true)) {
        (void)opal_progress_register(coll_gpusm_progress);
    }
    active_.push_back(request);
    count_.store(active_.size(), std::memory_order_relaxed);
}

int request_list::progress()
{
    if (0 == count_.load(std::memory_order_relaxed)) {
        return 0;
    }
    std::vector<staged_request *> done;
    {
        const std::unique_lock guard(mutex_, std::try_to_lock);
        if (!guard.owns_lock()) {
            return 0; // another thread looks
        }
        const auto rest = std::partition(active_.begin(), active_.end(), [](const auto *each) {
            return !REQUEST_COMPLETE(each->inner);
        });
        done.assign(rest, active_.end());
        active_.erase(rest, active_.end());
        count_.store(active_.size(), std::memory_order_relaxed);
    }
    for (staged_request *each : done) {
        finish(each);
    }
    return static_cast<int>(done.size());
}

} // namespace gpusm
