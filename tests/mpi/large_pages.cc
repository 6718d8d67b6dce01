// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// large_pages.cc: preloaded into ranks, makes the system look to gpusm as if its pages had 64 KiB:
// when it asks, and in where its files are mapped. With GPUSM_SOFTCUDA_PAGE_BYTES the software
// driver page-locks as it would there.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr std::size_t large_page_bytes = 65536;

template <typename Function> Function *next(const char *name)
{
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

// Others agree with processes that see the pages as they are.
bool is_gpusm(const void *caller)
{
    Dl_info about;
    return 0 != dladdr(caller, &about) && nullptr != about.dli_fname &&
           nullptr != std::strstr(about.dli_fname, "mca_") &&
           nullptr != std::strstr(about.dli_fname, "_gpusm.so");
}

std::size_t in_large_pages(std::size_t bytes)
{
    return (bytes + large_page_bytes - 1) / large_page_bytes * large_page_bytes;
}

} // namespace

extern "C" long sysconf(int name) noexcept
{
    static auto *const real = next<long(int)>("sysconf");
    return _SC_PAGESIZE == name && is_gpusm(__builtin_return_address(0))
               ? static_cast<long>(large_page_bytes)
               : real(name);
}

extern "C" void *mmap(void *at, std::size_t bytes, int protection, int flags, int fd,
                      off_t offset) noexcept
{
    static auto *const real = next<void *(void *, std::size_t, int, int, int, off_t)>("mmap");
    if (at != nullptr || fd < 0 || !is_gpusm(__builtin_return_address(0))) {
        return real(at, bytes, protection, flags, fd, offset);
    }
    const std::size_t room = in_large_pages(bytes) + large_page_bytes;
    void *reserved = real(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (MAP_FAILED == reserved) {
        return reserved;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
    const std::uintptr_t aligned = in_large_pages(begin);
    void *const mapped =
        real(reinterpret_cast<void *>(aligned), bytes, protection, flags | MAP_FIXED, fd, offset);
    if (MAP_FAILED == mapped) {
        (void)munmap(reserved, room);
        return mapped;
    }
    // Of what lies around, the pages that a mapping of that length would not have had.
    const std::uintptr_t end = aligned + in_large_pages(bytes);
    if (aligned > begin) {
        (void)munmap(reserved, aligned - begin);
    }
    if (begin + room > end) {
        (void)munmap(reinterpret_cast<void *>(end), begin + room - end);
    }
    return mapped;
}
