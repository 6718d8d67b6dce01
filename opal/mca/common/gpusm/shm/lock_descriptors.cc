// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/shm/lock_descriptors.h"

#include <mutex>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

namespace gpusm {

namespace {

struct lock_descriptors {
    std::mutex mutex;
    std::vector<int> all;
};
lock_descriptors &known();

void before_fork()
{
    known().mutex.lock();
}

void in_parent()
{
    known().mutex.unlock();
}

// Only what a signal handler may call, as other threads may have been anywhere.
void in_child()
{
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int each : known().all) {
        // The number stays taken, so that whoever closes it closes nobody else's.
        if (nothing < 0 || dup3(nothing, each, O_CLOEXEC) < 0) {
            (void)close(each);
        }
    }
    if (nothing >= 0) {
        (void)close(nothing);
    }
    known().mutex.unlock();
}

// Never destroyed: a program may fork while it ends.
lock_descriptors &known()
{
    static lock_descriptors *const made = [] {
        (void)pthread_atfork(before_fork, in_parent, in_child);
        return new lock_descriptors;
    }();
    return *made;
}

} // namespace

void keep_from_children(int fd)
{
    const std::lock_guard guard(known().mutex);
    known().all.push_back(fd);
}

void forget_lock_descriptor(int fd)
{
    const std::lock_guard guard(known().mutex);
    std::erase(known().all, fd);
}

} // namespace gpusm
