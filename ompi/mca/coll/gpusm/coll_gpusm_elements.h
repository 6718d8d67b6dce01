// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_elements.h: MPI's operations and types, as the reduce kernel knows them.
#ifndef GPUSM_COLL_ELEMENTS_H
#define GPUSM_COLL_ELEMENTS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include "opal/mca/common/gpusm/reduction_call.h"

#include <optional>

namespace gpusm {

// Nothing: it is the program's own, or not for the kernel.
std::optional<reduce_op> operation_of(const ompi_op_t *op);
// Of predefined types, whatever the language that they are of.
std::optional<reduce_type> element_of(const ompi_datatype_t *type);

} // namespace gpusm

#endif
