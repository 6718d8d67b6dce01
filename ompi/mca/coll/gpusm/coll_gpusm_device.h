// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_device.h: reductions that stay on the devices: which calls of a communicator do, and
// how they are told to opal/mca/common/gpusm/group_reduction.h.
//
// A rank cannot know what memory the others give. So in the calls of meeting_schedule.h all tell
// each other, and decide alike. A call in which they do not meet, or in which one of them cannot
// use the devices, goes through host memory on all ranks.
#ifndef GPUSM_COLL_DEVICE_H
#define GPUSM_COLL_DEVICE_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/group_reduction.h"
#include "opal/mca/common/gpusm/meeting_schedule.h"
#include "opal/mca/common/gpusm/process_group.h"

#include <memory>

namespace gpusm {

class local_process;

// Of one communicator. Its functions are called by one thread at a time.
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

  private:
    bool has_group(ompi_communicator_t *comm);

    local_process *process_; // null: nobody here uses devices
    bool has_looked_ = false;
    std::unique_ptr<process_group> group_; // null: its ranks do not meet
    meeting_schedule schedule_;
};

// Whether this process takes part in such calls, for all others to see. Once, before they can.
void meet_others(bool meets);

} // namespace gpusm

#endif
