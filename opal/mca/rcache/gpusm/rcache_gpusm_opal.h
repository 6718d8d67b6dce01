// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// rcache_gpusm_opal.h: the component's only door for Open MPI's headers.
#ifndef GPUSM_RCACHE_OPAL_H
#define GPUSM_RCACHE_OPAL_H

// clang-format off: this order is the point
#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"
#include "opal/constants.h"
#include "opal/class/opal_free_list.h"
#include "opal/mca/rcache/base/base.h"
#include "opal/mca/rcache/rcache.h"
#include "opal/mca/threads/mutex.h"
#include "opal/opal_cuda.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params_core.h"
#include "opal/util/output.h"
#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"
// clang-format on

#endif
