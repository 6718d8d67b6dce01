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
#include <variant>
#include <vector>

namespace gpusm {

class device_calls;
class local_process;
struct staged_request;

using any_call = std::variant<reduction_call, exchange_call>;

// A persistent call. In a group of its own, as ranks may start such calls in any order.
struct persistent_call {
    persistent_call(device_calls &calls_of_comm, ompi_communicator_t *of, any_call call);
    ~persistent_call();
    persistent_call(const persistent_call &) = delete;
    persistent_call &operator=(const persistent_call &) = delete;

    device_calls &calls;
    ompi_communicator_t *comm; // referenced
    any_call what;
    std::unique_ptr<process_group> group;
    meeting_schedule schedule;
};

// Of one communicator.
class device_calls {
  public:
    // References the process, if components have made it what it is.
    device_calls();
    ~device_calls();
    device_calls(const device_calls &) = delete;
    device_calls &operator=(const device_calls &) = delete;

    // Whether its ranks meet at all.
    bool has_group(ompi_communicator_t *comm)
    {
        return has_looked_ ? group_ != nullptr : look_for_group(comm);
    }

    // Reduces on the devices, if all ranks can. False: no rank does, and nothing has been done.
    // Else *rc is what MPI's function is to answer. make() gives the call, without operation and
    // type, if ranks meet for it.
    template <typename Make>
    bool reduce(ompi_communicator_t *comm, const ompi_datatype_t *type, const ompi_op_t *op,
                const Make &make, int *rc)
    {
        if (!has_group(comm)) {
            return false;
        }
        const std::lock_guard guard(lock_);
        return meets_now() && reduce_now(make(), type, op, comm, rc);
    }

    // The same of an exchange.
    template <typename Make> bool exchange(ompi_communicator_t *comm, const Make &make, int *rc)
    {
        if (!has_group(comm)) {
            return false;
        }
        const std::lock_guard guard(lock_);
        return meets_now() && exchange_now(make(), comm, rc);
    }

    // A non-blocking call. False: it goes its other way on all ranks. Else *of is filled in, and
    // start() follows, with a request whose inner one start_inner() starts where one rank cannot
    // use the devices. Then the request
    // completes by itself.
    bool can_start(reduction_call *of, const ompi_datatype_t *type, const ompi_op_t *op,
                   ompi_communicator_t *comm);
    bool can_start(ompi_communicator_t *comm); // an exchange
    void start(const any_call &of, staged_request *request, ompi_communicator_t *comm);
    // A persistent call, to be started as often as the program likes. All ranks make the same ones
    // in the same order. Null: it goes its other way on all ranks. Of the second one has_group() is
    // true.
    std::unique_ptr<persistent_call> make_persistent(reduction_call of, const ompi_datatype_t *type,
                                                     const ompi_op_t *op,
                                                     ompi_communicator_t *comm);
    std::unique_ptr<persistent_call> make_persistent(any_call of, ompi_communicator_t *comm);
    // See start_persistent.
    void start(persistent_call *of, staged_request *request);

    // Of those that have been started. *done: communicators that the caller is to release.
    int progress(std::vector<ompi_communicator_t *> *done);
    // False also while a call is inside, which may be a blocking one of this very thread that makes
    // progress meanwhile.
    bool is_idle()
    {
        const std::unique_lock guard(lock_, std::try_to_lock);
        return guard.owns_lock() && started_.empty() && persistent_.empty() && done_.empty();
    }

  private:
    struct started_call {
        std::unique_ptr<group_call> call;
        void (*count)(std::uint64_t bytes);
        std::uint64_t bytes; // to be counted
        staged_request *request;
        ompi_communicator_t *comm; // referenced
        meeting_schedule *schedule;
        bool is_due;             // else that has to be asked
        bool is_decided = false; // whether it is carried out on the devices
    };
    std::unique_ptr<process_group> make_group(ompi_communicator_t *comm, std::uint32_t call);
    static started_call make_started(local_process &process, process_group &group,
                                     const any_call &of);
    bool can_take(reduction_call *of, const ompi_datatype_t *type, const ompi_op_t *op,
                  ompi_communicator_t *comm);
    bool look_for_group(ompi_communicator_t *comm);
    // Under the lock, and to be asked once in every call. Those that have been started come first.
    bool meets_now()
    {
        if (!started_.empty()) {
            decide_started();
        }
        return schedule_.is_due();
    }
    void decide_started();
    bool reduce_now(reduction_call what, const ompi_datatype_t *type, const ompi_op_t *op,
                    ompi_communicator_t *comm, int *rc);
    bool exchange_now(const exchange_call &what, ompi_communicator_t *comm, int *rc);
    status carry_out(group_call *call, ompi_communicator_t *comm, int *rc);
    bool may_start();
    void add(std::list<started_call> *to, started_call &&call, staged_request *request,
             ompi_communicator_t *comm);
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
    std::list<started_call> persistent_;      // that have been started, in any order
    std::uint32_t persistent_calls_ = 0;      // made so far
    std::vector<ompi_communicator_t *> done_; // to be released
};

// What MPI's function is to answer.
int answer_of(status outcome);
// Why its calls have been called off; `ok`: they have not. Open MPI calls those of a communicator
// off that is revoked, and, with coll_revoked alone, of one that has lost a process.
status called_off(ompi_communicator_t *comm);

// The bytes of a call that are counted, and where.
std::uint64_t bytes_of(const reduction_call &call);
std::uint64_t bytes_of(const exchange_call &call);
void count_reduction(std::uint64_t bytes);
void count_exchange(std::uint64_t bytes);
// If the user wants that (sync_check.h), of a call that may go on after it returns (`is_started`).
// What goes by messages is looked at once more, with those. `type`: null where call.type is set.
void check_buffers(const reduction_call &call, const ompi_datatype_t *type,
                   ompi_communicator_t *comm, bool is_started);
void check_buffers(const exchange_call &call, bool is_started);

// The communicators that have started calls. For any thread.
class started_list {
  public:
    started_list() = default;
    ~started_list();
    started_list(const started_list &) = delete;
    started_list &operator=(const started_list &) = delete;

    void add(device_calls *calls);
    void remove(device_calls *calls); // which are about to go
    int progress();

  private:
    std::mutex mutex_;
    std::vector<device_calls *> active_;
    std::atomic<std::size_t> count_{0}; // of active_, to look at without the lock
    bool is_registered_ = false;        // with opal_progress
};

// Starts a persistent call, or the request's inner one.
void start_persistent(persistent_call *of, staged_request *request);

// Whether this process takes part in such calls, for all others to see. Once, before they can.
void meet_others(bool meets);

} // namespace gpusm

#endif
