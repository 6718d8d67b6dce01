// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// slow_help.cc: a library for LD_PRELOAD in whose presence the runtime takes a text for the user
// only when another thread of the process allows it, by making a file; if none does in time the
// process ends.
//
//   GPUSM_TEST_HELP   a folder; `inside.<pid>` is made there when a text has come in, and the text
//                     waits for `go.<pid>`
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

extern "C" int PMIx_Log(const void *, std::size_t, const void *, std::size_t)
{
    constexpr int tries = 2000;
    constexpr useconds_t pause_us = 10000;
    const char *folder = std::getenv("GPUSM_TEST_HELP");
    if (nullptr == folder) {
        return 0;
    }
    char inside[4096];
    char go[4096];
    (void)std::snprintf(inside, sizeof(inside), "%s/inside.%d", folder, getpid());
    (void)std::snprintf(go, sizeof(go), "%s/go.%d", folder, getpid());
    (void)close(open(inside, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (int i = 0; i < tries; ++i) {
        if (0 == access(go, F_OK)) {
            return 0;
        }
        (void)usleep(pause_us);
    }
    std::fprintf(stderr, "slow_help: other threads cannot go on while the user is told\n");
    _exit(1);
}
