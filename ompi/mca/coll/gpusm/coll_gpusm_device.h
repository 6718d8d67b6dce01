// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_device.h: collectives that kernels carry out: which calls of a communicator, and how
// they are told to opal/mca/common/gpusm/group_call.h.
//
// A rank cannot know what memory the others give. So in the calls of meeting_schedule.h all tell
// each other, and decide alike. A call in which they do not meet, or in which one of them cannot
// use the devices, goes the next component's way on all ranks: a reduction through host memory, an
// exchange by messages.
#ifndef GPUSM_COLL_DEVICE_H
#define GPUSM_COLL_DEVICE_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/base/lock.h"
#include "opal/mca/common/gpusm/exchange_call.h"
#include "opal/mca/common/gpusm/group_call.h"
#include "opal/mca/common/gpusm/meeting_schedule.h"
#include "opal/mca/common/gpusm/process_group.h"
#include "opal/mca/common/gpusm/reduction_call.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace gpusm {

class local_process;
struct staged_request;

// Of one communicator.
class device_calls {
  public:
    // References the process, if components have made it what it is.
    device_calls();
    ~device_calls();
    device_calls(const device_calls &) = delete;
    device_calls &operator=(const device_calls &) = delete;

    // Reduces on the devices, if all ranks can. False: no rank does, and nothing has been done.
    // Else *rc is what MPI's function is to answer. `of`: operation and type are not filled in.
    bool reduce(reduction_call of, const ompi_datatype_t *type, const ompi_op_t *op,
                ompi_communicator_t *comm, int *rc);

    // The same of an exchange; make() gives the call, if ranks meet for it.
    template <typename Make> bool exchange(ompi_communicator_t *comm, Make make, int *rc)
    {
        if (!has_group(comm)) {
            return false;
        }
        const std::lock_guard guard(lock_);
        return meets_now() && exchange_now(make(), comm, rc);
    }

    // A non-blocking call. False: it goes its way through host memory on all ranks. Else *of is
    // filled in, and start() follows, with a request whose inner one has been made, as other ranks
    // make theirs, but not started: it is started where one rank cannot use the devices. Then the
    // request completes by itself.
    bool can_start(reduction_call *of, const ompi_datatype_t *type, const ompi_op_t *op,
                   ompi_communicator_t *comm);
    void start(reduction_call of, staged_request *request, ompi_communicator_t *comm);
    // Of those that have been started. *done: communicators that the caller is to release.
    int progress(std::vector<ompi_communicator_t *> *done);
    bool is_idle()
    {
        const std::lock_guard guard(lock_);
        return started_.empty() && done_.empty();
    }

  private:
    struct started_call {
        std::unique_ptr<group_call> call;
        std::uint64_t bytes; // to be counted
        staged_request *request;
        ompi_communicator_t *comm; // referenced
        bool is_due;               // else that has to be asked
        bool is_decided = false;   // whether it is carried out on the devices
        bool revoked = false;
    };
    bool has_group(ompi_communicator_t *comm);
    bool can_take(reduction_call *of, const ompi_datatype_t *type, const ompi_op_t *op,
                  ompi_communicator_t *comm);
    // Under the lock.
    bool meets_now();
    bool exchange_now(const exchange_call &what, ompi_communicator_t *comm, int *rc);
    status carry_out(group_call *call, ompi_communicator_t *comm, int *rc);
    int advance_started();
    bool advance(started_call *of);

    // What was looked up last, of a predefined operation and type, which stay what they are.
    struct known_call {
        const ompi_op_t *op = nullptr;
        const ompi_datatype_t *type = nullptr;
        reduce_op operation{};
        reduce_type element{};
    };

    local_process *process_; // null: nobody here uses devices
    known_call last_;
    bool has_looked_ = false;
    std::unique_ptr<process_group> group_; // null: its ranks do not meet
    optional_mutex lock_;                  // of what follows, and the group's meetings
    meeting_schedule schedule_;
    bool next_is_due_ = false;
    std::list<started_call> started_;         // in the order of the calls
    std::vector<ompi_communicator_t *> done_; // to be released
};

// The communicators that have started calls. For any thread.
class started_list {
  public:
    started_list() = default;
    ~started_list();
    started_list(const started_list &) = delete;
    started_list &operator=(const started_list &) = delete;

    void add(device_calls *calls);
    int progress();

  private:
    std::mutex mutex_;
    std::vector<device_calls *> active_;
    std::atomic<std::size_t> count_{0}; // of active_, to look at without the lock
    bool is_registered_ = false;        // with opal_progress
};

// Whether this process takes part in such calls, for all others to see. Once, before they can.
void meet_others(bool meets);

} // namespace gpusm

#endif
