// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_ompi.h: the component's only door for Open MPI's headers.
#ifndef GPUSM_COLL_OMPI_H
#define GPUSM_COLL_OMPI_H

// count_disp_array.h of Open MPI 6 gives these a const void *, as only C allows, in functions that
// are not used here: declared for that, and not defined.
#include <cstdint>
std::intptr_t opal_count_array_create(const void *);
std::intptr_t opal_count_array_create_c(const void *);
std::intptr_t opal_disp_array_create(const void *);
std::intptr_t opal_disp_array_create_c(const void *);

// clang-format off: this order is the point
#include "opal/mca/common/gpusm/base/openmpi_headers_begin.h"
#include "mpi.h"
#include "opal/class/opal_hash_table.h"
// communicator.h of 5.0 passes a pointer in a way that only C allows, in a function not used here.
#define opal_hash_table_get_value_ptr(table, key, len, value)                                      \
    (opal_hash_table_get_value_ptr)(table, key, len, reinterpret_cast<void **>(value))
#include "ompi/attribute/attribute.h"
#include "ompi/communicator/communicator.h"
#undef opal_hash_table_get_value_ptr
#include "ompi/constants.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/errhandler/errcode-internal.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/mca/pml/base/base.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/request/request.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/accelerator/accelerator.h"
#include "opal/mca/accelerator/base/base.h"
#include "opal/mca/base/mca_base_pvar.h"
#include "opal/mca/base/mca_base_var.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params_core.h"
#include "opal/runtime/opal_progress.h"
#include "opal/util/output.h"
#include "opal/mca/common/gpusm/base/openmpi_headers_end.h"
// clang-format on

#endif
