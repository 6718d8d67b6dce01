// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/coll/gpusm/coll_gpusm_message_checks.h"
#include "ompi/mca/coll/gpusm/coll_gpusm.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_buffer_check.h"

#include "opal/mca/common/gpusm/base/c_entry.h"

#include <functional>
#include <string_view>
#include <utility>

namespace gpusm {

namespace {

message_checks &ours()
{
    return *mca_coll_gpusm_component.checks;
}

const mca_pml_base_module_t &next()
{
    return ours().next();
}

extern "C" {

int checked_isend_init(const void *buffer, std::size_t count, ompi_datatype_t *type, int to,
                       int tag, mca_pml_base_send_mode_t mode, ompi_communicator_t *comm,
                       ompi_request_t **request) noexcept
{
    const int rc = next().pml_isend_init(buffer, count, type, to, tag, mode, comm, request);
    if (OMPI_SUCCESS == rc) {
        ours().remember(*request, {buffer, count, type, to, tag, comm}, false);
    }
    return rc;
}

int checked_isend(const void *buffer, std::size_t count, ompi_datatype_t *type, int to, int tag,
                  mca_pml_base_send_mode_t mode, ompi_communicator_t *comm,
                  ompi_request_t **request) noexcept
{
    auto look = ours().first_look({buffer, count, type, to, tag, comm});
    const int rc = next().pml_isend(buffer, count, type, to, tag, mode, comm, request);
    if (OMPI_SUCCESS == rc) {
        ours().check_later(std::move(look), *request, false);
    }
    return rc;
}

int checked_send(const void *buffer, std::size_t count, ompi_datatype_t *type, int to, int tag,
                 mca_pml_base_send_mode_t mode, ompi_communicator_t *comm) noexcept
{
    ours().check_now({buffer, count, type, to, tag, comm});
    return next().pml_send(buffer, count, type, to, tag, mode, comm);
}

int checked_irecv_init(void *buffer, std::size_t count, ompi_datatype_t *type, int from, int tag,
                       ompi_communicator_t *comm, ompi_request_t **request) noexcept
{
    const int rc = next().pml_irecv_init(buffer, count, type, from, tag, comm, request);
    if (OMPI_SUCCESS == rc) {
        ours().remember(*request, {buffer, count, type, from, tag, comm}, true);
    }
    return rc;
}

int checked_irecv(void *buffer, std::size_t count, ompi_datatype_t *type, int from, int tag,
                  ompi_communicator_t *comm, ompi_request_t **request) noexcept
{
    auto look = ours().first_look({buffer, count, type, from, tag, comm});
    const int rc = next().pml_irecv(buffer, count, type, from, tag, comm, request);
    if (OMPI_SUCCESS == rc) {
        ours().check_later(std::move(look), *request, true);
    }
    return rc;
}

int checked_recv(void *buffer, std::size_t count, ompi_datatype_t *type, int from, int tag,
                 ompi_communicator_t *comm, ompi_status_public_t *status) noexcept
{
    ours().check_now({buffer, count, type, from, tag, comm});
    return next().pml_recv(buffer, count, type, from, tag, comm, status);
}

int checked_imrecv(void *buffer, std::size_t count, ompi_datatype_t *type, ompi_message_t **message,
                   ompi_request_t **request) noexcept
{
    ours().check_now({buffer, count, type, MPI_ANY_SOURCE, MPI_ANY_TAG});
    const int rc = next().pml_imrecv(buffer, count, type, message, request);
    if (OMPI_SUCCESS == rc) {
        ours().check_later(std::nullopt, *request, true);
    }
    return rc;
}

int checked_mrecv(void *buffer, std::size_t count, ompi_datatype_t *type, ompi_message_t **message,
                  ompi_status_public_t *status) noexcept
{
    ours().check_now({buffer, count, type, MPI_ANY_SOURCE, MPI_ANY_TAG});
    return next().pml_mrecv(buffer, count, type, message, status);
}

// Of requests that are all of the PML, as Open MPI starts them by the function of the first one.
int checked_start(std::size_t count, ompi_request_t **requests) noexcept
{
    for (std::size_t i = 0; i < count; ++i) {
        ours().check_started(requests[i]);
    }
    return next().pml_start(count, requests);
}

} // extern "C"

// Open MPI's function at that place of the table, after the looks that are due.
template <auto member, typename Function> struct after_looks;
template <auto member, typename... Arguments> struct after_looks<member, int (*)(Arguments...)> {
    static int call(Arguments... arguments)
    {
        ours().check_due();
        return (ours().next_waits().*member)(arguments...);
    }
};

#define GPUSM_CHECKED(X)                                                                           \
    X(isend_init) X(isend) X(send) X(irecv_init) X(irecv) X(recv) X(imrecv) X(mrecv)
#define GPUSM_WAITS(X)                                                                             \
    X(req_test)                                                                                    \
    X(req_test_any)                                                                                \
    X(req_test_all)                                                                                \
    X(req_test_some)                                                                               \
    X(req_wait)                                                                                    \
    X(req_wait_any)                                                                                \
    X(req_wait_all)                                                                                \
    X(req_wait_some)
#define GPUSM_WAIT(name)                                                                           \
    after_looks<&ompi_request_fns_t::name, decltype(ompi_request_fns_t::name)>::call

} // namespace

std::unique_ptr<message_checks> message_checks::install()
{
    using namespace std::string_view_literals;
    if (mca_pml_base_selected_component.pmlm_version.mca_component_name != "ob1"sv) {
        return nullptr;
    }
    local_process *process = local_process::acquire_if_made();
    if (nullptr == process) {
        return nullptr;
    }
    if (nullptr == process->sync_checks()) {
        process->release();
        return nullptr;
    }
    return std::unique_ptr<message_checks>(new message_checks(process));
}

message_checks::message_checks(local_process *process)
    : process_(process), next_(mca_pml), next_waits_(ompi_request_functions)
{
#define GPUSM_PUT(name) mca_pml.pml_##name = entry(checked_##name);
    GPUSM_CHECKED(GPUSM_PUT)
#undef GPUSM_PUT
#define GPUSM_PUT(name) ompi_request_functions.name = GPUSM_WAIT(name);
    GPUSM_WAITS(GPUSM_PUT)
#undef GPUSM_PUT
}

message_checks::~message_checks()
{
#define GPUSM_TAKE(name)                                                                           \
    if (mca_pml.pml_##name == entry(checked_##name)) {                                             \
        mca_pml.pml_##name = next_.pml_##name;                                                     \
    }
    GPUSM_CHECKED(GPUSM_TAKE)
#undef GPUSM_TAKE
#define GPUSM_TAKE(name)                                                                           \
    if (GPUSM_WAIT(name) == ompi_request_functions.name) {                                         \
        ompi_request_functions.name = next_waits_.name;                                            \
    }
    GPUSM_WAITS(GPUSM_TAKE)
#undef GPUSM_TAKE
    check_due();
    for (const auto &[request, of] : persistent_) {
        ompi_datatype_t *type = of.of.type;
        OBJ_RELEASE(type);
    }
    process_->release();
}

message_checks::look message_checks::first_look(const message &of)
{
    return MPI_PROC_NULL == of.peer
               ? std::nullopt
               : gpusm::first_look(checks(), of.buffer, of.count, of.type,
                                   buffer_use::envelope{of.tag, of.peer, of.comm});
}

void message_checks::check_later(look &&at, const ompi_request_t *request, bool is_receive)
{
    std::function<bool()> is_valid;
    if (is_receive) { // ob1 enters the source when it has found the message, before it writes
        is_valid = [request] {
            return MPI_ANY_SOURCE == request->req_status.MPI_SOURCE && !REQUEST_COMPLETE(request);
        };
    } else if (at && at->use.message->tag < 0) { // a collective's, which goes on by itself
        is_valid = [request] { return !REQUEST_COMPLETE(request); };
    }
    checks().second_look_later(std::move(at), request, std::move(is_valid));
}

void message_checks::remember(ompi_request_t *request, const message &of, bool is_receive)
{
    check_later(std::nullopt, request, is_receive);
    request->req_start = entry(checked_start);
    OBJ_RETAIN(of.type);
    const std::lock_guard guard(lock_);
    const persistent made{of, is_receive};
    const auto [at, is_new] = persistent_.try_emplace(request, made);
    if (!is_new) { // of a request that has been freed
        ompi_datatype_t *before = std::exchange(at->second, made).of.type;
        OBJ_RELEASE(before);
    }
}

void message_checks::check_started(const ompi_request_t *request)
{
    persistent of{};
    {
        const std::lock_guard guard(lock_);
        const auto at = persistent_.find(request);
        if (persistent_.end() == at) {
            return;
        }
        of = at->second;
    }
    look at = first_look(of.of);
    if (of.is_receive) { // its status is still that of the message before
        checks().second_look(std::move(at));
    } else {
        check_later(std::move(at), request, false);
    }
}

} // namespace gpusm
