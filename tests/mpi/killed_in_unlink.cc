// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// killed_in_unlink.cc: a library for LD_PRELOAD with which a process dies as it removes the file of
// a window, which all have mapped by then.
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

extern "C" int unlink(const char *path)
{
    if (nullptr != std::strstr(path, ".window")) {
        (void)raise(SIGKILL);
    }
    return unlinkat(AT_FDCWD, path, 0);
}
