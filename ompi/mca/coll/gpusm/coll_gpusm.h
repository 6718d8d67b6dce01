// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm.h: the component coll/gpusm: collectives on device memory, by kernels; else reductions
// go by way of host memory, and all others by messages.
//
// A module sits above the other components of a communicator and has kept what they have put there.
// What kernels do not carry out on all ranks, the next component's function does on all ranks, with
// the program's arguments. Where it calculates, host memory takes the place of device memory, and
// long calls go in pieces. So ranks agree on what is called whatever memory each of them has.
//
//   coll_gpusm_alltoallw.cc   alltoallw
//   coll_gpusm_calls.h        what the collectives have in common
//   coll_gpusm_component.cc   parameters, selection, the module's life
//   coll_gpusm_device.*       those by kernels, and coll_gpusm_started.cc what goes on after a call
//   coll_gpusm_elements.h     operations and types, as kernels know them
//   coll_gpusm_exchanges.cc   the collectives that move data, and coll_gpusm_blocks.h where to
//   coll_gpusm_functions.cc   those that reduce, and coll_gpusm_scatter.cc those that scatter then
//   coll_gpusm_packing.*      MPI_Pack and its kin, for the library that calls them
//   coll_gpusm_packed.*       packed bytes in the place of datatypes with gaps
//   coll_gpusm_requests.*     requests of the non-blocking and the persistent ones
//   coll_gpusm_staging.*      host memory and the copies
//
// Beside them, for messages between two processes of device memory with gaps:
//
//   coll_gpusm_interpose.*    what pml/ob1 is given in their place
//   coll_gpusm_message_checks.*  has their buffers checked, if the user wants that
//   coll_gpusm_packing.*      MPI_Pack and its kin, for the library that calls them
//   coll_gpusm_plans.*        where the bytes of a datatype lie
#ifndef GPUSM_COLL_H
#define GPUSM_COLL_H

#include "ompi/mca/coll/gpusm/coll_gpusm_device.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_interpose.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_message_checks.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_requests.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_staging.h"

#include <cstddef>

// The functions that the component has, by the names that they have in coll.h.
#define GPUSM_COLL_EXCHANGES(X)                                                                    \
    X(allgather)                                                                                   \
    X(allgatherv)                                                                                  \
    X(alltoall)                                                                                    \
    X(alltoallv)                                                                                   \
    X(bcast)                                                                                       \
    X(gather)                                                                                      \
    X(gatherv)                                                                                     \
    X(scatter)                                                                                     \
    X(scatterv)                                                                                    \
    X(iallgather)                                                                                  \
    X(iallgatherv)                                                                                 \
    X(ialltoall)                                                                                   \
    X(ialltoallv)                                                                                  \
    X(ibcast)                                                                                      \
    X(igather)                                                                                     \
    X(igatherv)                                                                                    \
    X(iscatter)                                                                                    \
    X(iscatterv)                                                                                   \
    X(allgather_init)                                                                              \
    X(allgatherv_init)                                                                             \
    X(alltoall_init)                                                                               \
    X(alltoallv_init)                                                                              \
    X(bcast_init)                                                                                  \
    X(gather_init)                                                                                 \
    X(gatherv_init)                                                                                \
    X(scatter_init)                                                                                \
    X(scatterv_init)
#define GPUSM_COLL_REDUCTIONS(X)                                                                   \
    X(allreduce)                                                                                   \
    X(reduce)                                                                                      \
    X(reduce_local)                                                                                \
    X(reduce_scatter)                                                                              \
    X(reduce_scatter_block)                                                                        \
    X(scan)                                                                                        \
    X(exscan)                                                                                      \
    X(iallreduce)                                                                                  \
    X(ireduce)                                                                                     \
    X(ireduce_scatter)                                                                             \
    X(ireduce_scatter_block)                                                                       \
    X(iscan)                                                                                       \
    X(iexscan)                                                                                     \
    X(allreduce_init)                                                                              \
    X(reduce_init)                                                                                 \
    X(reduce_scatter_init)                                                                         \
    X(reduce_scatter_block_init)                                                                   \
    X(scan_init)                                                                                   \
    X(exscan_init)
#define GPUSM_COLL_ALLTOALLW(X)                                                                    \
    X(alltoallw)                                                                                   \
    X(ialltoallw)                                                                                  \
    X(alltoallw_init)
#define GPUSM_COLL_FUNCTIONS(X)                                                                    \
    GPUSM_COLL_ALLTOALLW(X) GPUSM_COLL_EXCHANGES(X) GPUSM_COLL_REDUCTIONS(X)

namespace gpusm {

// Another component, and its function of which ours has taken the place; null: none.
struct put_aside {
    mca_coll_base_component_t *component;
    decltype(mca_coll_base_component_t::collm_comm_query) query;
};

} // namespace gpusm

struct mca_coll_gpusm_component_t {
    mca_coll_base_component_t super;
    int priority;              // coll_gpusm_priority
    std::size_t staging_bytes; // coll_gpusm_staging_bytes
    gpusm::staging_pool *pool;
    gpusm::request_list *requests;
    gpusm::started_list *started;
    bool use_devices; // coll_gpusm_use_devices
    gpusm::collective_counters counted;
    bool tells_summary;             // btl_gpusm_summary
    gpusm::message_checks *checks;  // owned; null unless btl_gpusm_check_sync
    bool use_views;                 // coll_gpusm_use_views
    gpusm::interposer *interposer;  // owned; null: there is none
    gpusm::put_aside stock;         // coll/cuda or coll/accelerator: gets no communicators
    mca_pml_base_module_t next_pml; // the functions whose places the interposer has
};
extern "C" OPAL_DECLSPEC mca_coll_gpusm_component_t mca_coll_gpusm_component;

// Of one communicator. `next` has what was there before, and a reference to each module in it; of
// the functions above only.
struct mca_coll_gpusm_module_t : mca_coll_base_module_t {
    mca_coll_base_comm_coll_t next;
    gpusm::device_calls *on_devices; // owned
};

namespace gpusm {

// Enter the component's functions into a module that has the ones it needs in `next`. Not what the
// communicator has nothing for, such as a scan between two groups.
void set_alltoallw(mca_coll_gpusm_module_t &module);
void set_exchanges(mca_coll_gpusm_module_t &module);
void set_reductions(mca_coll_gpusm_module_t &module);
#define GPUSM_SET_FUNCTION(name)                                                                   \
    module.coll_##name = nullptr == module.next.coll_##name ? nullptr : coll_gpusm_##name;

} // namespace gpusm

#endif
