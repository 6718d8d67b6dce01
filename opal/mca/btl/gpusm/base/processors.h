// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/processors.h: are there processors enough for the processes of a machine?
#ifndef GPUSM_BASE_PROCESSORS_H
#define GPUSM_BASE_PROCESSORS_H

#include <sys/types.h>

#include <cstddef>

namespace gpusm {

// Does the machine have fewer processors than `processes`?
bool is_oversubscribed(std::size_t processes);

// May `processes` processes, of which this one and `other` are two, run on fewer processors than
// they are, as in a container? Said only where these two may run on the very same processors: what
// is bound elsewhere is not in the way. A system that does not tell, and an `other` that is gone or
// in another PID namespace, are false: this is for choices between two ways that both work.
bool share_few_processors(pid_t other, std::size_t processes);

} // namespace gpusm

#endif
