// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// find_problems.h: what the facts mean. Each finding is true of what was seen, and says what to do.
#ifndef GPUSM_INFO_FIND_PROBLEMS_H
#define GPUSM_INFO_FIND_PROBLEMS_H

#include "tools/gpusm_info/facts.h"

namespace gpusm::info {

// Adds one.
void add(facts *out, severity level, const char *id, const std::string &seen,
         const std::string &to_do);

// Is `name` used where a parameter of Open MPI says `selection`? "": all are; "a,b": these; "^a,b":
// the others.
bool is_selected(const std::string &selection, const std::string &name);

void find_driver_problems(facts *out);
void find_device_problems(facts *out);
void find_share_problems(facts *out);

} // namespace gpusm::info

#endif
