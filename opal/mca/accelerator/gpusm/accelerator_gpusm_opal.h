// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// accelerator_gpusm_opal.h: the component's only door for Open MPI's headers.
#ifndef GPUSM_ACCELERATOR_OPAL_H
#define GPUSM_ACCELERATOR_OPAL_H

// clang-format off: this order is the point
#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"
#include "opal/constants.h"
#include "opal/class/opal_list.h"
#include "opal/class/opal_object.h"
#include "opal/mca/accelerator/accelerator.h"
#include "opal/mca/accelerator/base/base.h"
#include "opal/mca/base/base.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params_core.h"
#include "opal/util/output.h"
#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"
// clang-format on

#endif
