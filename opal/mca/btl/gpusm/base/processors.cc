// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/processors.h"

#include <sched.h>
#include <unistd.h>

namespace gpusm {

bool is_oversubscribed(std::size_t processes)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors > 0 && processes > static_cast<std::size_t>(processors);
}

bool share_few_processors(pid_t other, std::size_t processes)
{
    cpu_set_t own;
    cpu_set_t others;
    // Of a machine with more processors than such a set has places, the system tells nothing.
    return 0 == sched_getaffinity(0, sizeof(own), &own) &&
           static_cast<std::size_t>(CPU_COUNT(&own)) < processes &&
           0 == sched_getaffinity(other, sizeof(others), &others) && CPU_EQUAL(&own, &others);
}

} // namespace gpusm
