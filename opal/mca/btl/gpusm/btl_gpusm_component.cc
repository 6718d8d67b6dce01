// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_component.cc: what Open MPI sees first: the component, and the life of the transport.
#include "opal/mca/btl/gpusm/btl_gpusm_device.h"
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_ipc.h"
#include "opal/mca/btl/gpusm/btl_gpusm_self.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage.h"

#include "opal/mca/common/gpusm/base/abi.h"
#include "opal/mca/common/gpusm/base/log.h"
#include "opal/mca/common/gpusm/base/processors.h"
#include "opal/mca/common/gpusm/common_gpusm_modex.h"

#include <string>

namespace gpusm {

bool is_oversubscribed()
{
    return is_oversubscribed(opal_process_info.num_local_peers + 1,
                             opal_process_info.proc_is_bound);
}

transport::transport(local_process &of, bool is_oversubscribed)
    : process(of), oversubscribed(is_oversubscribed),
      registrations(std::make_unique<registration_table>(lock)),
      frags(std::make_unique<frag_store>(*this)), host(std::make_unique<host_side>(*this)),
      gets(std::make_unique<transfers>()), messages(std::make_unique<messenger>(*this)),
      stage(std::make_unique<stage_side>(*this)), self(std::make_unique<self_side>(*this))
{
    process.serve(messages.get());
    process.own_node().own().tell(use_of_mpi::goes_on);
}

transport::~transport()
{
    remove_view_hooks();
    remove_pointer_check();
    stage.reset();
    process.serve(nullptr);
    host.reset();
    frags.reset();
    self.reset();
    for (mca_btl_base_endpoint_t *each : endpoints) {
        smsc_release(each);
        each->peer->user.store(nullptr, std::memory_order_relaxed);
        delete each;
    }
    process.release();
}

void release_component()
{
    transport *ending = mca_btl_gpusm_component.transport;
    if (ending != nullptr) { // ob1 has ended
        ending->process.own_node().own().tell(use_of_mpi::ending);
        ending->frags->call_nobody_back();
        finish_sends(*ending);
    }
    if (ending != nullptr && mca_btl_gpusm_component.check_sync) {
        const sync_check *checks = ending->process.sync_checks();
        if (nullptr == checks || 0 == checks->looked_at()) {
            opal_output(0,
                        "btl/gpusm: check_sync: rank %u: no buffer was looked at: the program has "
                        "used neither device nor page-locked memory, or coll/gpusm or pml/ob1 "
                        "is not in use",
                        static_cast<unsigned>(opal_process_info.my_name.vpid));
        }
    }
    if (ending != nullptr && mca_btl_gpusm_component.summary) {
        print_summary(*ending);
    }
    delete std::exchange(mca_btl_gpusm_component.transport, nullptr);
    mca_btl_gpusm.transport = mca_btl_gpusm_self.transport = nullptr;
}

// What of the library's is used by its layout, where it can be asked for that.
static std::string difference_of_open_mpi()
{
    const abi_part parts[] = {
        GPUSM_ABI_OPTIONAL(mca_btl_base_module_t, "mca_btl_self"),
        GPUSM_ABI_OPTIONAL(mca_smsc_module_t, "mca_smsc_cma_module"),
        GPUSM_ABI_CLASS(mca_btl_base_descriptor_t),
        GPUSM_ABI_CLASS(opal_object_t),
        GPUSM_ABI_CLASS(opal_list_item_t),
        GPUSM_ABI_CLASS(opal_list_t),
        GPUSM_ABI_CLASS(opal_mutex_t),
        GPUSM_ABI_CLASS(opal_free_list_item_t),
        GPUSM_ABI_CLASS(opal_free_list_t),
        GPUSM_ABI_CLASS(opal_bitmap_t),
        GPUSM_ABI_CLASS(opal_proc_t),
        GPUSM_ABI_CLASS(opal_datatype_t),
        GPUSM_ABI_CLASS(opal_convertor_t),
        GPUSM_ABI_CLASS(mca_base_component_list_item_t),
        GPUSM_ABI_CLASS(mca_btl_base_selected_module_t),
        GPUSM_ABI_VARIABLE(mca_btl_base_active_message_trigger),
        GPUSM_ABI_VARIABLE(opal_btl_base_framework),
        GPUSM_ABI_VARIABLE(opal_accelerator),
        GPUSM_ABI_VARIABLE(opal_process_info),
    };
    return GPUSM_ABI_DIFFERENCE(parts);
}

} // namespace gpusm

extern "C" {

static int component_register(void) noexcept
{
    const std::string why = gpusm::difference_of_open_mpi();
    if (!why.empty()) {
        gpusm::show_help("wrong open mpi", why.c_str());
        return OPAL_ERR_NOT_AVAILABLE;
    }
    gpusm::register_parameters();
    gpusm::register_counters();
    return OPAL_SUCCESS;
}

static int component_open(void) noexcept
{
    mca_btl_gpusm_component.output = opal_output_open(nullptr);
    opal_output_set_verbosity(mca_btl_gpusm_component.output,
                              static_cast<int>(mca_btl_gpusm_component.cuda_ipc_verbose));
    gpusm::log_to_opal();
    return OPAL_SUCCESS;
}

static int component_close(void) noexcept
{
    gpusm::release_component();
    gpusm::log_install(nullptr, gpusm::log_level::error);
    opal_output_close(mca_btl_gpusm_component.output);
    return OPAL_SUCCESS;
}

static mca_btl_base_module_t **component_init(int *num_btls, bool, bool) noexcept
{
    mca_btl_gpusm_component_t &component = mca_btl_gpusm_component;
    *num_btls = 0;
    if (!gpusm::check_parameters()) {
        return nullptr;
    }
    gpusm::raise_above_equals();
    // Not by the argument: in 5.0 only MPI_Init_thread decides it, and a session with
    // MPI_THREAD_MULTIPLE may start beside this one.
    gpusm::watch_threads(&opal_uses_threads);
    for (mca_btl_gpusm_t *module : {&mca_btl_gpusm, &mca_btl_gpusm_self}) {
        module->super.btl_registration_handle_size = sizeof(mca_btl_base_registration_handle_t);
    }
    std::string why;
    gpusm::local_process *process =
        gpusm::local_process::acquire(gpusm::settings_of_parameters(gpusm::planned_bytes()), &why);
    if (nullptr == process) {
        gpusm::show_help("no segment", component.backing_directory, why.c_str());
        return nullptr;
    }
    auto *ours = new gpusm::transport(*process, gpusm::is_oversubscribed());
    component.transport = mca_btl_gpusm.transport = mca_btl_gpusm_self.transport = ours;
    if (!ours->frags->make_first()) {
        gpusm::show_help("no segment", component.backing_directory,
                         "there is no room for a fragment of btl_gpusm_eager_limit bytes");
        gpusm::release_component();
        return nullptr;
    }
    auto **modules =
        static_cast<mca_btl_base_module_t **>(calloc(2, sizeof(mca_btl_base_module_t *)));
    if (nullptr == modules || !gpusm::post_segment(process->own_node().own())) {
        free(modules);
        gpusm::release_component();
        return nullptr;
    }
    modules[0] = &mca_btl_gpusm.super;
    *num_btls = 1;
    if (component.use_self) {
        modules[(*num_btls)++] = &mca_btl_gpusm_self.super;
    }
    return modules;
}

mca_btl_gpusm_component_t mca_btl_gpusm_component = {
    .super =
        {
            .btl_version =
                {
                    MCA_BTL_DEFAULT_VERSION("gpusm"),
                    .mca_open_component = gpusm::entry(component_open),
                    .mca_close_component = gpusm::entry(component_close),
                    .mca_register_component_params = gpusm::entry(component_register),
                },
            .btl_data =
                {
                    .param_field = MCA_BASE_METADATA_PARAM_CHECKPOINT,
                },
            .btl_init = gpusm::entry(component_init),
            .btl_progress = gpusm::entry(mca_btl_gpusm_progress),
        },
};

#ifdef MCA_BASE_COMPONENT_INIT // by which Open MPI 6 finds what is a part of its library
MCA_BASE_COMPONENT_INIT(opal, btl, gpusm)
#endif

} // extern "C"
