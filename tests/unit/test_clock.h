// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// test_clock.h: the clock by which base/reach.h counts its pauses, which the test moves on. The
// program's own clock_gettime comes before the C library's.
#ifndef GPUSM_TESTS_TEST_CLOCK_H
#define GPUSM_TESTS_TEST_CLOCK_H

#include <cstdint>
#include <ctime>

#include <sys/syscall.h>
#include <unistd.h>

namespace gpusm_test {

inline std::int64_t clock_gained_ns = 0;

} // namespace gpusm_test

extern "C" inline __attribute__((used)) int clock_gettime(clockid_t clock, timespec *out) noexcept
{
    constexpr std::int64_t second_ns = 1000000000;
    const long answer = syscall(SYS_clock_gettime, clock, out);
    if (CLOCK_MONOTONIC_COARSE == clock && 0 == answer) {
        const std::int64_t ns = out->tv_nsec + gpusm_test::clock_gained_ns;
        out->tv_sec += ns / second_ns;
        out->tv_nsec = ns % second_ns;
    }
    return static_cast<int>(answer);
}

#endif
