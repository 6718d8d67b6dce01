// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// btl_gpusm_frag_sizes.cc: how long fragments are and how many of each there may be, by the
// parameters.
#include "opal/mca/btl/gpusm/btl_gpusm_frags.h"
#include "opal/mca/btl/gpusm/btl_gpusm_host.h"
#include "opal/mca/btl/gpusm/btl_gpusm_stage_services.h"

#include <algorithm>
#include <iterator>

namespace gpusm {

void plan(frag_list (&lists)[frag_sizes])
{
    // A message of 8 KiB and a header of ob1's.
    constexpr std::size_t short_payload_bytes = 8448;
    constexpr std::size_t least_payload_bytes = 1024;
    const mca_btl_base_module_t &module = mca_btl_gpusm.super;
    // A limit may be less than a fragment, so that hardly anything goes eagerly.
    const std::size_t part = std::max(least_payload_bytes, module.btl_max_send_size);
    const std::size_t shorter = std::min(short_payload_bytes, part);
    const std::size_t sizes[] = {small_payload_bytes, shorter,
                                 std::max(shorter, module.btl_eager_limit), part,
                                 module.btl_accelerator_max_send_size}; // to which devices write
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
        const bool is_new = 0 == i || sizes[i] > sizes[i - 1]; // the first of its size is used
        const std::size_t most = mca_btl_gpusm_component.free_list_max;
        lists[i].payload_bytes = sizes[i];
        lists[i].most = !is_new ? 0 : i + 1 < std::size(sizes) ? most : most / 8;
        lists[i].is_queue = 1 == i && !is_oversubscribed();
    }
}

std::size_t planned_bytes()
{
    frag_list planned[frag_sizes];
    plan(planned);
    std::size_t bytes =
        host_side::ring_bytes() + stage_services::ring_bytes() + bounce_copies::memory_bytes();
    for (const frag_list &list : planned) {
        bytes += frag_bytes(list) * list.most;
    }
    return bytes;
}

} // namespace gpusm
