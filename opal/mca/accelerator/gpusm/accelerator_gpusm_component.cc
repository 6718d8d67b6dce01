// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm_component.cc: when the component is used, and its end.
#include "opal/mca/accelerator/gpusm/accelerator_gpusm.h"

#include "opal/mca/common/gpusm/base/abi.h"
#include "opal/mca/common/gpusm/base/log.h"

#include <cstring>
#include <string>

namespace gpusm {

namespace {

// What goes wrong is said, the rest with --mca accelerator_base_verbose 20.
void to_opal_output(log_level level, const char *line)
{
    if (level <= log_level::warn) {
        opal_output(0, "accelerator/gpusm: %s", line);
    } else {
        opal_output_verbose(static_cast<int>(level),
                            opal_accelerator_base_framework.framework_output,
                            "accelerator/gpusm: %s", line);
    }
}

} // namespace

} // namespace gpusm

extern "C" {

static int component_register(void)
{
    const gpusm::abi_part parts[] = {
        GPUSM_ABI_CLASS(opal_accelerator_stream_t),
        GPUSM_ABI_CLASS(opal_accelerator_event_t),
        GPUSM_ABI_VARIABLE(opal_accelerator),
    };
    const std::string why = GPUSM_ABI_DIFFERENCE(parts);
    if (!why.empty()) {
        opal_output(0, "accelerator/gpusm is not used: %s.", why.c_str());
    }
    return why.empty() ? OPAL_SUCCESS : OPAL_ERR_NOT_AVAILABLE;
}

// Two components beside accelerator/null end the program, so this one is for where there is no
// other one, or where it was asked for by name, which leaves no other one in the list. The driver
// is not touched, and no context is needed.
static opal_accelerator_base_module_t *component_init(void)
{
    gpusm::log_install(gpusm::to_opal_output, gpusm::log_level::info);
    mca_base_component_list_item_t *item = nullptr;
    OPAL_LIST_FOREACH(item, &opal_accelerator_base_framework.framework_components,
                      mca_base_component_list_item_t)
    {
        const char *name = item->cli_component->mca_component_name;
        if (0 != std::strcmp("null", name) && 0 != std::strcmp("gpusm", name)) {
            gpusm::log_line(gpusm::log_level::info, "stands back for accelerator/%s", name);
            return nullptr;
        }
    }
    mca_accelerator_gpusm_complete();
    return &mca_accelerator_gpusm_module;
}

// Called without the module. A further session begins with component_init, not with the loader.
static void component_finalize(opal_accelerator_base_module_t *)
{
    delete mca_accelerator_gpusm_component.made.exchange(nullptr);
    gpusm::log_install(nullptr, gpusm::log_level::warn);
}

mca_accelerator_gpusm_component_t mca_accelerator_gpusm_component = {
    .super =
        {
            .base_version =
                {
                    OPAL_ACCELERATOR_BASE_VERSION_1_0_0,
                    .mca_component_name = "gpusm",
                    MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION,
                                          OPAL_RELEASE_VERSION),
                    .mca_register_component_params = component_register,
                },
            .base_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
            .accelerator_init = component_init,
            .accelerator_finalize = component_finalize,
        },
    .made = nullptr,
};

#ifdef MCA_BASE_COMPONENT_INIT // by which Open MPI 6 finds what is a part of its library
MCA_BASE_COMPONENT_INIT(opal, accelerator, gpusm)
#endif

} // extern "C"
