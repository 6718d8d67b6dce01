// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_ompi.h: the component's only door for Open MPI's headers.
#ifndef GPUSM_OSC_OMPI_H
#define GPUSM_OSC_OMPI_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

// clang-format off: this order is the point
#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"
#include "ompi/group/group.h"
#include "ompi/mca/coll/base/coll_base_functions.h"
#include "ompi/mca/osc/base/base.h"
#include "ompi/mca/osc/osc.h"
#include "ompi/runtime/params.h"
#include "ompi/win/win.h"
#include "opal/mca/shmem/base/base.h"
#include "opal/mca/smsc/base/base.h"
#include "opal/mca/smsc/smsc.h"
#include "opal/mca/pmix/pmix-internal.h"
#include "opal/util/proc.h"
#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"
// clang-format on

#endif
