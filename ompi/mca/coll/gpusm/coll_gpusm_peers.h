// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_peers.h: a communicator's processes as gpusm knows them. For coll/gpusm and osc/gpusm,
// which may be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_PEERS_H
#define GPUSM_COLL_PEERS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/common_gpusm_modex.h"
#include "opal/mca/common/gpusm/local_process.h"

#include <cstddef>

namespace gpusm {

// The process of that rank, if it can be reached from here.
inline peer *find_peer(local_process &process, ompi_communicator_t *comm, int rank)
{
    const ompi_proc_t *proc = ompi_comm_peer_lookup(comm, rank);
    const opal_process_name_t name = proc->super.proc_name;
    for (std::size_t i = 0; peer *each = process.own_node().live_peer_at(i); ++i) {
        if (each->identity().jobid == name.jobid && each->identity().vpid == name.vpid &&
            !each->closed()) {
            return each;
        }
    }
    segment_place place;
    return find_segment(proc->super, &place)
               ? process.own_node().add_peer(place.identity, place.directory)
               : nullptr;
}

} // namespace gpusm

#endif
