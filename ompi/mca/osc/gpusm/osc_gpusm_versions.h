// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// osc_gpusm_versions.h: what the osc framework has changed between Open MPI 5.0 and 6: counts and
// units of int became std::size_t and std::ptrdiff_t.
#ifndef GPUSM_OSC_VERSIONS_H
#define GPUSM_OSC_VERSIONS_H

#include "ompi/mca/osc/gpusm/osc_gpusm_ompi.h"

#include <cstddef>

namespace gpusm {

#ifdef OMPI_OSC_BASE_VERSION_4_0_0
#define GPUSM_OSC_BASE_VERSION OMPI_OSC_BASE_VERSION_4_0_0
using count_type = std::size_t;   // of elements
using unit_type = std::ptrdiff_t; // of displacements, in bytes
#else
#define GPUSM_OSC_BASE_VERSION OMPI_OSC_BASE_VERSION_3_0_0
using count_type = int;
using unit_type = int;
#endif

} // namespace gpusm

#endif
