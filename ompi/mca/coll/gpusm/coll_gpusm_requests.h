// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_requests.h: requests of collectives for whose buffers others stand in. The request of
// the call with those stays inside; when that one has completed, progress copies the result to the
// program's buffer and completes ours.
#ifndef GPUSM_COLL_REQUESTS_H
#define GPUSM_COLL_REQUESTS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_staging.h"

#include "opal/mca/common/gpusm/base/abi.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace gpusm {

struct persistent_call;
struct staged_request;

// Started requests. Polled, because a callback on the inner request can be lost when another thread
// completes it at that moment. For any thread.
class request_list {
  public:
    request_list() = default;
    ~request_list();
    request_list(const request_list &) = delete;
    request_list &operator=(const request_list &) = delete;

    void add(staged_request *request);
    // Completes those whose inner request is complete; how many there were.
    int progress();

  private:
    std::mutex mutex_;
    std::vector<staged_request *> active_;
    std::atomic<std::size_t> count_{0}; // of active_, to look at without the lock
    bool is_registered_ = false;        // with opal_progress
};

// Whether there is room for what this Open MPI keeps in requests of such calls, whose header is not
// installed.
abi_part nbc_request_part();

// Request for the call, with nothing inside yet; nullptr when there is no memory. Without a call
// nothing is copied.
staged_request *make_request(std::unique_ptr<call_copies> call, ompi_communicator_t *comm);
void drop_request(staged_request *request); // one that the program has not seen

// Takes the inner request, which has been started, and gives the program's.
void follow(staged_request *request, ompi_request_t *inner, ompi_request_t **out);
// Likewise for a persistent one, not started; keeps the operation and the datatype, which the
// program may free before it starts the request.
void follow_persistent(staged_request *request, ompi_request_t *inner, ompi_op_t *op,
                       ompi_datatype_t *type, ompi_request_t **out);
// And for one that is started by start_persistent(), which goes on with start_inner() or
// end_request(). Neither keeps an operation or a datatype if there is none.
void precede_persistent(staged_request *request, std::unique_ptr<persistent_call> on_devices,
                        ompi_request_t *inner, ompi_op_t *op, ompi_datatype_t *type,
                        ompi_request_t **out);

// Takes an inner request that is persistent and not started, and gives the program's, which is
// active: start_inner() or end_request() follows.
void precede(staged_request *request, ompi_request_t *inner, ompi_request_t **out);
void start_inner(staged_request *request);

// May a call of that module be made where it turns out to be needed? Of libnbc it may, which knows
// calls by their tags, with the tag that is the call's by its place among the program's; but not
// where another thread may be taking one at that moment.
bool can_start_later(const mca_coll_base_module_t *of);
// As precede(), without an inner request: takes the call's tag, and start_inner() calls
// `start(&inner)`.
void precede_later(staged_request *request, std::function<int(ompi_request_t **)> start,
                   ompi_request_t **out);
// The request is complete without the inner one.
void end_request(staged_request *request, int error);

// With host memory in the place of device memory. Apart, so that calls of host memory do not pay
// for its frame.
template <typename Next>
[[gnu::noinline]] int call_with_copies(staging_pool &pool, const operands &of,
                                       const ompi_datatype_t *type, Next next)
{
    staged_call call(pool);
    int rc = call.prepare(of, type);
    if (OMPI_SUCCESS == rc) {
        rc = call.copy_in();
    }
    if (OMPI_SUCCESS == rc) {
        rc = next(call.send(), call.receive());
    }
    return OMPI_SUCCESS == rc ? call.copy_back() : rc;
}

// A blocking call: `next(send, receive)` calls the next component.
template <typename Next>
int call_staged(staging_pool &pool, const operands &of, const ompi_datatype_t *type, Next next)
{
    return has_device_memory(of, type) ? call_with_copies(pool, of, type, next)
                                       : next(of.send, of.receive);
}

// A request for that call around the one that `make(&inner)` makes: `take(request, inner)` follows.
template <typename Make, typename Take>
int with_inner(std::unique_ptr<call_copies> call, ompi_communicator_t *comm, Make make, Take take)
{
    staged_request *request = make_request(std::move(call), comm);
    if (nullptr == request) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    ompi_request_t *inner = nullptr;
    const int rc = make(&inner);
    if (OMPI_SUCCESS == rc) {
        take(request, inner);
    } else {
        drop_request(request);
    }
    return rc;
}

// A non-blocking and a persistent call around the one that `make(&inner)` starts or makes.
template <typename Make>
int start_around(std::unique_ptr<call_copies> call, ompi_communicator_t *comm, ompi_request_t **out,
                 Make make)
{
    return with_inner(std::move(call), comm, make,
                      [out](auto *request, auto *inner) { follow(request, inner, out); });
}

template <typename Make>
int init_around(std::unique_ptr<call_copies> call, ompi_op_t *op, ompi_datatype_t *type,
                ompi_communicator_t *comm, ompi_request_t **out, Make make)
{
    return with_inner(std::move(call), comm, make, [=](auto *request, auto *inner) {
        follow_persistent(request, inner, op, type, out);
    });
}

// The next component's call, `next(send, receive, &request)`, itself where no buffer is device
// memory; else `around(call, make)`, where `call` owns the copies of these, and `make(&inner)` is
// the next component's with them.
template <typename Next, typename Around>
int with_staged(staging_pool &pool, const operands &of, const ompi_datatype_t *type,
                ompi_request_t **out, Next next, Around around)
{
    staged_call call(pool);
    const int rc = call.prepare(of, type);
    if (OMPI_SUCCESS != rc || !call.is_staged()) {
        return OMPI_SUCCESS == rc ? next(of.send, of.receive, out) : rc;
    }
    auto owned = std::make_unique<staged_call>(std::move(call));
    staged_call &its = *owned;
    return around(std::move(owned), [&its, &next](ompi_request_t **inner) {
        return next(its.send(), its.receive(), inner);
    });
}

// A non-blocking call: `next` starts the next component's.
template <typename Next>
int start_staged(staging_pool &pool, const operands &of, const ompi_datatype_t *type,
                 ompi_communicator_t *comm, ompi_request_t **out, Next next)
{
    return with_staged(pool, of, type, out, next, [&](auto owned, auto make) {
        staged_call &its = *owned;
        return start_around(std::move(owned), comm, out, [&](ompi_request_t **inner) {
            const int copied = its.copy_in();
            return OMPI_SUCCESS == copied ? make(inner) : copied;
        });
    });
}

// A persistent call: `next` makes the next component's.
template <typename Next>
int init_staged(staging_pool &pool, const operands &of, ompi_datatype_t *type, ompi_op_t *op,
                ompi_communicator_t *comm, ompi_request_t **out, Next next)
{
    return with_staged(pool, of, type, out, next, [&](auto owned, auto make) {
        return init_around(std::move(owned), op, type, comm, out, make);
    });
}

} // namespace gpusm

#endif
