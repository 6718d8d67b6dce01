// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm_owner.h"

#include <algorithm>

namespace gpusm {

namespace {

// What one message has at most: messages count in int.
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;

void *pointer_to(std::uint64_t address)
{
    return reinterpret_cast<void *>(address);
}

// Open MPI ends a request to a process that has failed when somebody asks about that.
bool has_ended(ompi_request_t *request)
{
#if OPAL_ENABLE_FT_MPI
    if (ompi_request_is_failed(request)) {
        return true;
    }
#endif
    return REQUEST_COMPLETE(request);
}

// True: it has ended well. Open MPI frees only such ones when they are waited for.
bool take_end(ompi_request_t **request, ompi_status_public_t *status)
{
    const bool good = OMPI_SUCCESS == ompi_request_wait(request, status);
    if (!good && *request != MPI_REQUEST_NULL) {
        (void)ompi_request_free(request);
    }
    return good;
}

} // namespace

int owner_service::listen()
{
    return MCA_PML_CALL(
        irecv(&asked_, sizeof(asked_), MPI_BYTE, MPI_ANY_SOURCE, question_tag, comm_, &asks_));
}

int owner_service::begin(ompi_communicator_t *comm)
{
    comm_ = comm;
    const std::lock_guard guard(mutex_);
    const int rc = listen();
    is_serving_.store(OMPI_SUCCESS == rc, std::memory_order_release);
    return rc;
}

void owner_service::end()
{
    if (is_serving_.exchange(false)) {
        const std::lock_guard guard(mutex_);
        (void)ompi_request_cancel(asks_);
        (void)ompi_request_wait(&asks_, MPI_STATUS_IGNORE);
    }
    // The last answers have arrived, but may not have been found complete here.
    for (; !jobs_.empty(); opal_progress()) {
        jobs_.remove_if([this](job &each) { return !go_on(&each); });
    }
}

// A question has come: its first answer says whether it will be.
bool owner_service::hear()
{
    if (!REQUEST_COMPLETE(asks_)) {
        return false;
    }
    ompi_status_public_t status;
    if (!take_end(&asks_, &status)) {
        is_serving_.store(false, std::memory_order_release); // somebody has failed
        return false;
    }
    if (asked_.tag < first_tag || asked_.tag >= first_tag + tags) { // nobody asks so
        is_serving_.store(OMPI_SUCCESS == listen(), std::memory_order_release);
        return true;
    }
    job &made = jobs_.emplace_back();
    made.what = asked_;
    made.from = status.MPI_SOURCE;
    if (made.what.bytes > most_bytes || !memory_.has(made.what.address, made.what.bytes)) {
        made.answer = MPI_ERR_RMA_RANGE;
        made.at = job::stage::over;
    }
    const bool good =
        OMPI_SUCCESS == MCA_PML_CALL(isend(&made.answer, 1, MPI_INT32_T, made.from, made.what.tag,
                                           MCA_PML_BASE_SEND_STANDARD, comm_, &made.request));
    if (!good) {
        jobs_.pop_back();
    }
    is_serving_.store(OMPI_SUCCESS == listen(), std::memory_order_release);
    return true;
}

// False: it is over. Who has asked waits for another message, so one is sent whatever has failed.
bool owner_service::go_on(job *of)
{
    if (!has_ended(of->request)) {
        return true;
    }
    const question &what = of->what;
    const auto bytes = static_cast<std::size_t>(what.bytes);
    const auto send_last = [&](const void *at, std::size_t count, ompi_datatype_t *type) {
        of->at = job::stage::over;
        return OMPI_SUCCESS == MCA_PML_CALL(isend(at, count, type, of->from, what.tag,
                                                  MCA_PML_BASE_SEND_STANDARD, comm_, &of->request));
    };
    const auto answer = [&](std::int32_t that) {
        of->answer = that;
        return send_last(&of->answer, 1, MPI_INT32_T);
    };
    const bool good = take_end(&of->request, MPI_STATUS_IGNORE);
    if (job::stage::copied == of->at) { // of a put
        return answer(good ? MPI_SUCCESS : MPI_ERR_OTHER);
    }
    if (!good || job::stage::over == of->at) {
        return false;
    }
    if (0 == what.is_put) {
        return send_last(pointer_to(what.address), bytes, MPI_BYTE) ||
               send_last(nullptr, 0, MPI_BYTE);
    }
    of->at = job::stage::copied;
    return OMPI_SUCCESS == MCA_PML_CALL(irecv(pointer_to(what.address), bytes, MPI_BYTE, of->from,
                                              what.tag + tags, comm_, &of->request)) ||
           answer(MPI_ERR_OTHER);
}

bool owner_service::serve()
{
    if (!is_serving()) {
        return false;
    }
    const std::unique_lock guard(mutex_, std::try_to_lock);
    if (!guard.owns_lock() || MPI_REQUEST_NULL == asks_) {
        return false;
    }
    const bool any = hear();
    return 0 != jobs_.remove_if([this](job &each) { return !go_on(&each); }) || any;
}

int owner_service::exchange(bool is_put, int target, std::uint64_t address, void *local,
                            std::uint64_t bytes)
{
    const std::uint32_t turn = next_tag_.fetch_add(1, std::memory_order_relaxed);
    const question asked{address, bytes, is_put ? 1U : 0U,
                         first_tag +
                             static_cast<std::int32_t>(turn % static_cast<std::uint32_t>(tags))};
    const auto count = static_cast<std::size_t>(bytes);
    std::int32_t answer = MPI_SUCCESS;
    int rc = MCA_PML_CALL(send(&asked, sizeof(asked), MPI_BYTE, target, question_tag,
                               MCA_PML_BASE_SEND_STANDARD, comm_));
    const auto hear_answer = [&] {
        if (OMPI_SUCCESS == rc) {
            rc = MCA_PML_CALL(
                recv(&answer, 1, MPI_INT32_T, target, asked.tag, comm_, MPI_STATUS_IGNORE));
        }
        rc = OMPI_SUCCESS == rc ? answer : rc;
    };
    hear_answer();
    if (OMPI_SUCCESS == rc && is_put) {
        ompi_request_t *sent = MPI_REQUEST_NULL;
        rc = MCA_PML_CALL(isend(local, count, MPI_BYTE, target, asked.tag + tags,
                                MCA_PML_BASE_SEND_STANDARD, comm_, &sent));
        hear_answer();
        if (OMPI_SUCCESS == rc) {
            rc = ompi_request_wait(&sent, MPI_STATUS_IGNORE);
        } else if (MPI_REQUEST_NULL != sent) { // perhaps nobody receives it
            (void)ompi_request_free(&sent);
        }
    } else if (OMPI_SUCCESS == rc) {
        ompi_status_public_t status;
        rc = MCA_PML_CALL(recv(local, count, MPI_BYTE, target, asked.tag, comm_, &status));
        // Nothing: the owner cannot send it.
        rc = OMPI_SUCCESS == rc && count != status._ucount ? MPI_ERR_OTHER : rc;
    }
    return rc;
}

int owner_service::copy(bool is_put, int target, std::uint64_t address, void *local,
                        std::uint64_t bytes)
{
    int rc = is_serving() ? OMPI_SUCCESS : MPI_ERR_OTHER;
    for (std::uint64_t done = 0; OMPI_SUCCESS == rc && done < bytes;) {
        const std::uint64_t now = std::min(bytes - done, most_bytes);
        rc = exchange(is_put, target, address + done, static_cast<unsigned char *>(local) + done,
                      now);
        done += now;
    }
    return rc;
}

} // namespace gpusm
