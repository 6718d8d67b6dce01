// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_opal.h: the only door through which Open MPI's headers come into btl/gpusm. First
// include of every file of the glue; no file of a layer below includes it.
#ifndef BTL_GPUSM_OPAL_H
#define BTL_GPUSM_OPAL_H

#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"

#include "opal/class/opal_bitmap.h"
#include "opal/class/opal_free_list.h"
#include "opal/constants.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/accelerator/accelerator.h"
#include "opal/mca/accelerator/base/base.h"
#include "opal/mca/base/mca_base_pvar.h"
#include "opal/mca/base/mca_base_var.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/btl/btl.h"
#include "opal/mca/pmix/pmix-internal.h"
#include "opal/mca/smsc/base/base.h"
#include "opal/mca/smsc/smsc.h"
#include "opal/mca/threads/thread_usage.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"

#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"

#endif
