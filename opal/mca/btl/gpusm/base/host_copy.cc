// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/base/host_copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gpusm {

namespace {

#if defined(__x86_64__)

// Shorter copies are over before what follows pays.
constexpr std::size_t least_bytes = 16 * 1024;

// The processor copies strings with an instruction of its own, fast ("enhanced rep movsb").
bool has_fast_strings()
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned erms = 1U << 9;
    return 0 != __get_cpuid_count(7, 0, &a, &b, &c, &d) && 0 != (b & erms);
}

#endif

} // namespace

void copy_into_ring(void *to, const void *from, std::size_t len_bytes) noexcept
{
#if defined(__x86_64__)
    static const bool fast_strings = has_fast_strings();
    if (fast_strings && len_bytes >= least_bytes) {
        asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len_bytes) : : "memory");
        return;
    }
#endif
    std::memcpy(to, from, len_bytes);
}

} // namespace gpusm
