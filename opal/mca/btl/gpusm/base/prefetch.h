// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/prefetch.h: asks for a cache line that another processor has, in order to write to it.
#ifndef GPUSM_BASE_PREFETCH_H
#define GPUSM_BASE_PREFETCH_H

namespace gpusm {

// A hint: any address will do, and nothing happens that can be seen. gcc makes of
// __builtin_prefetch(at, 1) a load for the oldest processors of x86-64: then the line comes as one
// that is shared, and has to be asked for again when it is written. Where prefetchw is not known it
// is defined to do nothing.
inline void prefetch_to_write(const void *at)
{
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char *>(at)));
#else
    constexpr int to_write = 1;
    __builtin_prefetch(at, to_write);
#endif
}

} // namespace gpusm

#endif
