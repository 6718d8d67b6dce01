// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/pages.h: the pages of this system, 4 KiB or, as some have them for aarch64 and ppc64le,
// 64 KiB. The driver page-locks whole ones, and none twice: what is registered with it has its
// pages to itself. (What processes share is laid out in pages of 4 KiB on every system,
// shm/wire.h.)
#ifndef GPUSM_BASE_PAGES_H
#define GPUSM_BASE_PAGES_H

#include <cstddef>

#include <unistd.h>

namespace gpusm {

inline std::size_t system_page_bytes()
{
    constexpr std::size_t usual_bytes = 4096;
    const long bytes = sysconf(_SC_PAGESIZE);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : usual_bytes;
}

// `bytes`, and what is missing to whole pages.
inline std::size_t in_system_pages(std::size_t bytes)
{
    const std::size_t page = system_page_bytes();
    return (bytes + page - 1) / page * page;
}

} // namespace gpusm

#endif
