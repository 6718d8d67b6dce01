// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// common_gpusm_opal.h: the only door through which Open MPI's headers come into the library. First
// include of those of its files that need them.
#ifndef COMMON_GPUSM_OPAL_H
#define COMMON_GPUSM_OPAL_H

#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"

#include "opal/constants.h"
#include "opal/mca/pmix/pmix-internal.h"
#include "opal/util/proc.h"

#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"

#endif
