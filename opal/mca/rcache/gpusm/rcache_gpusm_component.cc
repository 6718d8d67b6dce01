// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_component.cc: the component struct that Open MPI looks up, its parameters, and the
// refusal to work inside an Open MPI that it was not built for.
#include "opal/mca/rcache/gpusm/rcache_gpusm.h"

#include <cstdio>
#include <cstring>

#include "opal/mca/btl/gpusm/base/log.h"

namespace gpusm {

namespace {

int verbose; // a log_level

#if defined(OPAL_CUDA_SUPPORT) && OPAL_CUDA_SUPPORT
constexpr bool built_with_cuda_layout = true;
#else
constexpr bool built_with_cuda_layout = false;
#endif

void to_open_mpi(log_level, const char *line)
{
    opal_output(0, "rcache/gpusm: %s", line);
}

// By the first "number.number" of an identification, which a packager may have put words around;
// one without is left to the soname of libopen-pal.
bool version_fits()
{
    const char *number = std::strpbrk(opal_version_string, "0123456789");
    int major_number = 0;
    int minor_number = 0;
    return nullptr == number || 2 != std::sscanf(number, "%d.%d", &major_number, &minor_number) ||
           (major_number == OPAL_MAJOR_VERSION && minor_number == OPAL_MINOR_VERSION);
}

// The loader checks neither, so that a wrong DSO would work until a struct differs.
bool open_mpi_fits()
{
    if (!version_fits()) {
        opal_output(0,
                    "rcache/gpusm was built for Open MPI %d.%d and is not used in this one (%s).",
                    OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION, opal_version_string);
        return false;
    }
    if (opal_built_with_cuda_support != built_with_cuda_layout) {
        opal_output(
            0,
            "rcache/gpusm was built for an Open MPI %s CUDA support and is not used in this "
            "one.",
            built_with_cuda_layout ? "with" : "without");
        return false;
    }
    return true;
}

extern "C" int rcache_gpusm_register() noexcept
{
    if (!open_mpi_fits()) {
        return OPAL_ERR_NOT_AVAILABLE;
    }
    verbose = static_cast<int>(log_level::warn);
    (void)mca_base_component_var_register(
        &mca_rcache_gpusm_component.rcache_version, "verbose",
        "What to report: 0 errors, 1 warnings, 20 also why a buffer could not be registered",
        MCA_BASE_VAR_TYPE_INT, nullptr, 0, static_cast<mca_base_var_flag_t>(0), OPAL_INFO_LVL_9,
        MCA_BASE_VAR_SCOPE_READONLY, &verbose);
    return OPAL_SUCCESS;
}

extern "C" int rcache_gpusm_open() noexcept
{
    log_install(to_open_mpi, static_cast<log_level>(verbose));
    return OPAL_SUCCESS;
}

extern "C" int rcache_gpusm_close() noexcept
{
    log_install(nullptr, log_level::warn);
    return OPAL_SUCCESS;
}

// The resources are not looked at: btl/smcuda passes a struct that it never filled in.
extern "C" mca_rcache_base_module_t *rcache_gpusm_init(mca_rcache_base_resources_t *) noexcept
{
    return create_rcache_module();
}

} // namespace

} // namespace gpusm

mca_rcache_base_component_t mca_rcache_gpusm_component = {
    .rcache_version =
        {
            MCA_RCACHE_BASE_VERSION_3_0_0,
            .mca_component_name = "gpusm",
            MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION,
                                  OPAL_RELEASE_VERSION),
            .mca_open_component = gpusm::rcache_gpusm_open,
            .mca_close_component = gpusm::rcache_gpusm_close,
            .mca_register_component_params = gpusm::rcache_gpusm_register,
        },
    .rcache_data = {MCA_BASE_METADATA_PARAM_CHECKPOINT},
    .rcache_init = gpusm::rcache_gpusm_init,
};
