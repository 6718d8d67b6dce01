// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// common_gpusm_modex.h: where the processes keep their segments, which each makes known through
// Open MPI's modex.
#ifndef COMMON_GPUSM_MODEX_H
#define COMMON_GPUSM_MODEX_H

#include "opal/mca/common/gpusm/common_gpusm_opal.h"

#include "opal/mca/common/gpusm/shm/segment.h"
#include "opal/mca/common/gpusm/shm/wire.h"

#include <cstdint>
#include <string>

namespace gpusm {

// Makes this process's segment known, and has the runtime remove its files should the process be
// killed. Before the modex ends. False: the runtime refused.
bool post_segment(const segment &own);

struct segment_place {
    segment_identity identity;
    std::string directory;
    bool same_pids = false;          // process numbers mean the same to it
    std::uint32_t other_version = 0; // it has another wire_version, this one; else 0
};

// Where `proc` keeps its segment. False: it cannot be reached from here (it runs elsewhere, has no
// gpusm, or another version, or does not share our file system).
bool find_segment(const opal_proc_t &proc, segment_place *out);

} // namespace gpusm

#endif
