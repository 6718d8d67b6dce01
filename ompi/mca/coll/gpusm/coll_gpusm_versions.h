// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// coll_gpusm_versions.h: what the coll framework has changed between Open MPI 5.0 and 6: counts of
// int became std::size_t, arrays of them objects that hold either, and a module that is enabled
// enters its functions into the communicator by itself, and takes them out again.
#ifndef GPUSM_COLL_VERSIONS_H
#define GPUSM_COLL_VERSIONS_H

#include "ompi/mca/coll/gpusm/coll_gpusm_ompi.h"

#include <cstddef>

namespace gpusm {

#ifdef MCA_COLL_BASE_VERSION_3_0_0
#define GPUSM_COLL_BASE_VERSION MCA_COLL_BASE_VERSION_3_0_0
inline constexpr bool modules_enter_functions = true;
// Open MPI's own component for device memory.
inline constexpr const char *stock_component = "accelerator";
using count_type = std::size_t;
using counts_type = ompi_count_array_t;
using places_type = ompi_disp_array_t;

inline std::size_t count_at(counts_type counts, std::size_t rank)
{
    return ompi_count_array_get(counts, rank);
}

inline std::ptrdiff_t place_at(places_type places, std::size_t rank)
{
    return ompi_disp_array_get(places, rank);
}

// What arrays of one's own hold, and such an array, of which the answer holds the address.
using count_element = std::size_t;
using place_element = std::ptrdiff_t;

inline counts_type as_counts(const count_element *array)
{
    counts_type made{};
    ompi_count_array_init_c(&made, array);
    return made;
}

inline places_type as_places(const place_element *array)
{
    places_type made{};
    ompi_disp_array_init_c(&made, array);
    return made;
}
#else
#define GPUSM_COLL_BASE_VERSION MCA_COLL_BASE_VERSION_2_4_0
inline constexpr bool modules_enter_functions = false;
inline constexpr const char *stock_component = "cuda";
using count_type = int;
using counts_type = const int *;
using places_type = const int *;

inline std::size_t count_at(counts_type counts, std::size_t rank)
{
    return counts[rank] < 0 ? 0 : static_cast<std::size_t>(counts[rank]);
}

inline std::ptrdiff_t place_at(places_type places, std::size_t rank)
{
    return places[rank];
}

using count_element = int;
using place_element = int;

inline counts_type as_counts(const count_element *array)
{
    return array;
}

inline places_type as_places(const place_element *array)
{
    return array;
}
#endif

} // namespace gpusm

#endif
