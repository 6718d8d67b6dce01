// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_counters.h: counters as performance variables, and in the summary at a process's end.
// For coll/gpusm and osc/gpusm, which may be in objects of their own: so all of it is inline.
#ifndef GPUSM_COLL_COUNTERS_H
#define GPUSM_COLL_COUNTERS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include <atomic>
#include <span>
#include <string>

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

// Has the user switched on that flag of btl/gpusm's? Not where that is not open.
inline bool is_set_for_btl(const char *flag)
{
    const int index = mca_base_var_find("opal", "btl", "gpusm", flag);
    const bool *value = nullptr;
    return index >= 0 && OPAL_SUCCESS == mca_base_var_get_value(index, &value, nullptr, nullptr) &&
           *value;
}

// Prints those that are not 0, in one piece.
inline void print_counters(const char *component, std::span<const counter_variable> variables)
{
    std::string text;
    for (const counter_variable &each : variables) {
        const unsigned long long number = each.number.load(std::memory_order_relaxed);
        if (0 != number) {
            text += std::string("  ") + each.name + " " + std::to_string(number) + "\n";
        }
    }
    if (!text.empty()) {
        opal_output(0, "%s: summary of rank %u\n%s", component,
                    static_cast<unsigned>(opal_process_info.my_name.vpid), text.c_str());
    }
}

} // namespace gpusm

#endif
