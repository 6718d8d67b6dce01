// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/single_copies.h: can Open MPI copy host memory of another process by its address alone? Of
// components, which have Open MPI's headers.
#ifndef GPUSM_BASE_SINGLE_COPIES_H
#define GPUSM_BASE_SINGLE_COPIES_H

#include <string_view>

namespace gpusm {

// Else its owner has to register it first. smsc/accelerator of Open MPI 6 wants that of device
// memory only, and passes on what has no handle to the component that comes after it. Without one
// it answers that it has copied and has not.
inline bool has_plain_single_copies()
{
    if (nullptr == mca_smsc) {
        return false;
    }
    if (!mca_smsc_base_has_feature(MCA_SMSC_FEATURE_REQUIRE_REGISTRATION)) {
        return true;
    }
#if OPAL_MAJOR_VERSION >= 6
    if (mca_smsc_base_has_feature(MCA_SMSC_FEATURE_ACCELERATOR)) {
        const mca_smsc_component_t *next = nullptr;
        mca_base_component_list_item_t *each = nullptr;
        OPAL_LIST_FOREACH(each, &opal_smsc_base_framework.framework_components,
                          mca_base_component_list_item_t)
        {
            const auto *one = reinterpret_cast<const mca_smsc_component_t *>(each->cli_component);
            if (one->smsc_version.mca_component_name != std::string_view("accelerator") &&
                (nullptr == next || one->priority > next->priority)) {
                next = one;
            }
        }
        return next != nullptr && next->smsc_version.mca_component_name != std::string_view("knem");
    }
#endif
    return false;
}

} // namespace gpusm

#endif
