// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/processors.h: are there processors enough for the processes of a machine?
#ifndef GPUSM_BASE_PROCESSORS_H
#define GPUSM_BASE_PROCESSORS_H

#include <cstddef>

#include <sched.h>
#include <unistd.h>

namespace gpusm {

// Are there fewer processors than `processes`? Processes that are not bound share those that this
// one may run on, as in a container; of bound ones each may have its own of the machine's.
inline bool is_oversubscribed(std::size_t processes, bool bound)
{
    cpu_set_t own;
    // Of a machine with more processors than such a set has places, the system tells nothing.
    const bool known = !bound && 0 == sched_getaffinity(0, sizeof(own), &own);
    const long processors = known ? CPU_COUNT(&own) : sysconf(_SC_NPROCESSORS_ONLN);
    return processors > 0 && processes > static_cast<std::size_t>(processors);
}

} // namespace gpusm

#endif
