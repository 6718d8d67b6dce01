// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_counters.h: counters as performance variables. For coll/gpusm and osc/gpusm, which may
// be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_COUNTERS_H
#define GPUSM_COLL_COUNTERS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include <atomic>
#include <span>

namespace gpusm {

struct counter_variable {
    const char *name;
    const char *description;
    std::atomic<unsigned long long> &number;
};

inline void register_counters(const mca_base_component_t &of,
                              std::span<const counter_variable> variables)
{
    for (const counter_variable &each : variables) {
        (void)mca_base_component_pvar_register(
            &of, each.name, each.description, OPAL_INFO_LVL_4, MCA_BASE_PVAR_CLASS_COUNTER,
            MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, nullptr, MCA_BASE_VAR_BIND_NO_OBJECT,
            static_cast<mca_base_pvar_flag_t>(MCA_BASE_PVAR_FLAG_READONLY |
                                              MCA_BASE_PVAR_FLAG_CONTINUOUS),
            nullptr, nullptr, nullptr, &each.number);
    }
}

} // namespace gpusm

#endif
