// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// fast_clock.cc: a library for LD_PRELOAD in whose presence the coarse monotonic clock runs a
// thousand times as fast, so that what happens after seconds can be tested in milliseconds.
#include <ctime>

#include <sys/syscall.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, timespec *out)
{
    constexpr long times = 1000;
    constexpr long second_ns = 1000000000;
    const long answer = syscall(SYS_clock_gettime, clock, out);
    if (CLOCK_MONOTONIC_COARSE == clock && 0 == answer) {
        const long rest_ns = out->tv_nsec * times;
        out->tv_sec = out->tv_sec * times + rest_ns / second_ns;
        out->tv_nsec = rest_ns % second_ns;
    }
    return static_cast<int>(answer);
}
