// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/abi.cc: see abi.h.
#include "opal/mca/common/gpusm/base/abi.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <link.h>

namespace gpusm {

namespace {

struct number {
    int major = 0;
    int minor = 0;
};

// The first "number.number"; false: there is none, and the soname of the library has to do.
bool find_number(const char *version, number *out)
{
    const char *digits = std::strpbrk(version, "0123456789");
    return digits != nullptr && 2 == std::sscanf(digits, "%d.%d", &out->major, &out->minor);
}

std::string in_words(const abi_library &library)
{
    return std::string(library.version) + (library.with_cuda ? " with CUDA" : " without CUDA");
}

} // namespace

std::size_t length_of_variable(const void *address)
{
#ifdef __GLIBC__
    Dl_info where;
    void *entry = nullptr;
    if (address != nullptr && 0 != dladdr1(address, &where, &entry, RTLD_DL_SYMENT) &&
        entry != nullptr && address == where.dli_saddr) {
        return static_cast<const ElfW(Sym) *>(entry)->st_size;
    }
#else
    (void)address;
#endif
    return 0;
}

std::size_t length_of_variable(const char *name)
{
    return length_of_variable(static_cast<const void *>(dlsym(RTLD_DEFAULT, name)));
}

std::string abi_difference(const abi_library &here, const abi_library &there,
                           std::span<const abi_part> parts)
{
    number built;
    number running;
    const bool comparable =
        find_number(here.version, &built) && find_number(there.version, &running);
    const bool other_version =
        comparable && (built.major != running.major || built.minor != running.minor);
    if (other_version || here.with_cuda != there.with_cuda) {
        return "it was built for Open MPI " + in_words(here) + ", and this is " + in_words(there);
    }
    for (const abi_part &each : parts) {
        if (each.there_bytes != 0 && each.there_bytes != each.here_bytes) {
            return "it was built for Open MPI " + in_words(here) + ", and in this one, " +
                   in_words(there) + ", " + each.name + " has " + std::to_string(each.there_bytes) +
                   " bytes instead of " + std::to_string(each.here_bytes);
        }
    }
    return "";
}

} // namespace gpusm
