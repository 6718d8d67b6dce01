// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "ompi/mca/osc/gpusm/osc_gpusm.h"

#include "ompi/mca/coll/gpusm/coll_gpusm_counters.h"
#include "ompi/mca/coll/gpusm/coll_gpusm_peers.h"

#include "opal/mca/common/gpusm/base/abi.h"

#include <array>
#include <string>
#include <utility>

namespace gpusm {

namespace {

ompi_osc_gpusm_component_t &component = mca_osc_gpusm_component;

// Several threads may count the same round, which does no harm.
std::uint32_t next_round(std::atomic<std::uint32_t> *rounds)
{
    const std::uint32_t now = rounds->load(std::memory_order_relaxed) + 1;
    rounds->store(now, std::memory_order_relaxed);
    return now;
}

// Called while there is a window.
extern "C" int osc_gpusm_progress() noexcept
{
    open_windows &open = *component.open;
    bool any = false;
    if (window_copies *copies = open.copies.load(std::memory_order_acquire); copies != nullptr) {
        any = copies->progress();
    }
    any = open.requests.progress() || any;
    // A look takes a third of a short message's time, and an answer many times that.
    constexpr std::uint32_t rounds_between_looks = 8;
    if (0 == open.serving.load(std::memory_order_relaxed) ||
        0 != next_round(&open.rounds) % rounds_between_looks) {
        return any ? 1 : 0;
    }
    const std::unique_lock guard(open.mutex, std::try_to_lock);
    if (guard.owns_lock()) {
        for (window *each : open.all) {
            any = each->serve() || any;
        }
    }
    return any ? 1 : 0;
}

// Whether all processes of that communicator can be reached, for this one.
bool reaches_all(ompi_communicator_t *comm)
{
    local_process *process = local_process::acquire_if_made();
    bool all = process != nullptr;
    for (int i = 0; all && i < ompi_comm_size(comm); ++i) {
        all = i == ompi_comm_rank(comm) || find_peer(*process, comm, i) != nullptr;
    }
    if (process != nullptr) {
        process->release();
    }
    return all;
}

// Collective, as what it answers has to be the same on all.
extern "C" int osc_gpusm_query(ompi_win_t *, void **, size_t, unit_type, ompi_communicator_t *comm,
                               opal_info_t *, int) noexcept
{
    if (component.priority < 0 || OMPI_COMM_IS_INTER(comm) ||
        ompi_group_have_remote_peers(comm->c_local_group)) {
        return OMPI_ERR_NOT_AVAILABLE;
    }
    int mine = reaches_all(comm) ? 1 : 0;
    int all = mine;
    if (ompi_comm_size(comm) > 1 &&
        OMPI_SUCCESS != comm->c_coll->coll_allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm,
                                                     comm->c_coll->coll_allreduce_module)) {
        return OMPI_ERR_NOT_AVAILABLE;
    }
    return 1 == all ? component.priority : OMPI_ERR_NOT_AVAILABLE;
}

extern "C" int osc_gpusm_select(ompi_win_t *win, void **base, size_t size, unit_type unit,
                                ompi_communicator_t *comm, opal_info_t *info, int flavor,
                                int *model) noexcept
{
    local_process *process = local_process::acquire_if_made(); // query() has seen it
    if (nullptr == process) {
        return OMPI_ERR_NOT_AVAILABLE;
    }
    component.checks = process->sync_checks();
    auto *module = new ompi_osc_gpusm_module_t{window_functions, nullptr};
    const int rc = window::make(comm, base, size, unit, flavor, info, *process, &module->its);
    if (OMPI_SUCCESS != rc) {
        delete module;
        return rc;
    }
    win->w_osc_module = &module->super;
    *model = MPI_WIN_UNIFIED;
    return OMPI_SUCCESS;
}

auto counter_variables()
{
    window_counters &counted = component.counted;
    return std::to_array<counter_variable>({
        {"device_copies", "Puts and gets that this process's device has made",
         counted.device_copies},
        {"device_bytes", "Bytes of those puts and gets", counted.device_bytes},
        {"device_reductions", "Accumulates that kernels have carried out",
         counted.device_reductions},
        {"owner_bytes", "Bytes that only the owner of a window's memory could copy",
         counted.owner_bytes},
    });
}

extern "C" int osc_gpusm_register() noexcept
{
    const abi_part parts[] = {
        GPUSM_ABI_CLASS(ompi_communicator_t), GPUSM_ABI_CLASS(ompi_datatype_t),
        GPUSM_ABI_CLASS(ompi_request_t),      GPUSM_ABI_CLASS(ompi_win_t),
        GPUSM_ABI_CLASS(opal_convertor_t),    GPUSM_ABI_VARIABLE(opal_accelerator),
    };
    const std::string why = GPUSM_ABI_DIFFERENCE(parts);
    if (!why.empty()) {
        opal_output(0, "osc/gpusm is not used: %s.", why.c_str());
        return OMPI_ERR_NOT_AVAILABLE;
    }
    // Above osc/sm, which has 100.
    component.priority = 110;
    (void)mca_base_component_var_register(
        &component.super.osc_version, "priority",
        "Priority of osc/gpusm, which carries out windows of processes of one node, in host and "
        "device memory; negative: it is not used",
        MCA_BASE_VAR_TYPE_INT, nullptr, 0, static_cast<mca_base_var_flag_t>(0), OPAL_INFO_LVL_6,
        MCA_BASE_VAR_SCOPE_READONLY, &component.priority);
    register_counters(component.super.osc_version, counter_variables());
    return OMPI_SUCCESS;
}

extern "C" int osc_gpusm_init(bool, bool) noexcept
{
    component.open = new open_windows();
    component.tells_summary = is_set_for_btl("summary");
    return OMPI_SUCCESS;
}

extern "C" int osc_gpusm_finalize() noexcept
{
    if (component.tells_summary) {
        print_counters("osc/gpusm", counter_variables());
    }
    delete std::exchange(component.open, nullptr);
    return OMPI_SUCCESS;
}

} // namespace

void follow_progress(bool there_are)
{
    (void)(there_are ? opal_progress_register(osc_gpusm_progress)
                     : opal_progress_unregister(osc_gpusm_progress));
}

} // namespace gpusm

ompi_osc_gpusm_component_t mca_osc_gpusm_component = {
    .super =
        {
            .osc_version =
                {
                    GPUSM_OSC_BASE_VERSION,
                    .mca_component_name = "gpusm",
                    MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION,
                                          OPAL_RELEASE_VERSION),
                    .mca_register_component_params = gpusm::osc_gpusm_register,
                },
            .osc_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
            .osc_init = gpusm::osc_gpusm_init,
            .osc_query = gpusm::osc_gpusm_query,
            .osc_select = gpusm::osc_gpusm_select,
            .osc_finalize = gpusm::osc_gpusm_finalize,
        },
};

extern "C" {
#ifdef MCA_BASE_COMPONENT_INIT // by which Open MPI 6 finds what is a part of its library
MCA_BASE_COMPONENT_INIT(ompi, osc, gpusm)
#endif
}
