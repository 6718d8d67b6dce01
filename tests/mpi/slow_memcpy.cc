// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// slow_memcpy.cc: a library for LD_PRELOAD in whose presence memcpy of 4 to 64 KiB takes a
// microsecond per KiB, as where cache lines come from far away.
#include <chrono>
#include <cstddef>
#include <cstring>

extern "C" void *memcpy(void *to, const void *from, std::size_t bytes)
{
    constexpr std::size_t kibi = 1024;
    if (bytes >= 4 * kibi && bytes <= 64 * kibi) {
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::nanoseconds(bytes);
        while (clock::now() < until) {
        }
    }
    return std::memmove(to, from, bytes);
}
