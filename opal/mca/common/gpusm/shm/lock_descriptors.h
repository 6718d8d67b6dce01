// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// shm/lock_descriptors.h: descriptors by which this process holds locks, and which a child that it
// forks does not keep. A lock (flock) belongs to the open file, which parent and child share: with
// the child alive, it would be held after the death of its owner. What a child executes does not
// get them either (O_CLOEXEC); one that is made by clone() without the C library would.
#ifndef GPUSM_SHM_LOCK_DESCRIPTORS_H
#define GPUSM_SHM_LOCK_DESCRIPTORS_H

namespace gpusm {

// From now on children get something else under that number. The open file may not be mapped: a
// mapping holds it, too. Any thread.
void keep_from_children(int fd);
// Before it is closed. One that was not kept from them does no harm.
void forget_lock_descriptor(int fd);

} // namespace gpusm

#endif
