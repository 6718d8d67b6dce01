// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm.h: the component accelerator/gpusm: device memory for an Open MPI that was
// built without CUDA.
#ifndef ACCELERATOR_GPUSM_H
#define ACCELERATOR_GPUSM_H

#include "opal/mca/accelerator/gpusm/accelerator_gpusm_opal.h"

#include "opal/mca/accelerator/gpusm/accelerator.h"

#include <atomic>

struct mca_accelerator_gpusm_component_t {
    opal_accelerator_base_component_t super;
    // Made at the first call that needs one, gone at the end; null without a driver.
    std::atomic<gpusm::accelerator *> made;
};

// What Open MPI's stream and event objects are here.
struct mca_accelerator_gpusm_stream_t {
    opal_accelerator_stream_t super;
    gpusm::lazy_stream lazy;
};
struct mca_accelerator_gpusm_event_t {
    opal_accelerator_event_t super;
    gpusm::lazy_event lazy;
};

extern "C" {
OPAL_DECLSPEC extern mca_accelerator_gpusm_component_t mca_accelerator_gpusm_component;
// Copied by Open MPI when this component is selected.
extern opal_accelerator_base_module_t mca_accelerator_gpusm_module;
// Enters what the table has from Open MPI 6 on.
void mca_accelerator_gpusm_complete(void);
}

#endif
