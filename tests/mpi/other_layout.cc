// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// other_layout.cc: a library for LD_PRELOAD in whose presence Open MPI says that one of its classes
// is longer than it was compiled with, as in an Open MPI of another layout. Objects of that class
// then have room that nobody uses.
#include <cstddef>

#include <dlfcn.h>

namespace {

// The layout of opal_class_t up to the length, which has never changed in a release of 5.0.
struct descriptor {
    const char *name;
    void *parent;
    void *constructor;
    void *destructor;
    int initialized;
    int depth;
    void *constructors;
    void *destructors;
    std::size_t bytes;
};

[[gnu::constructor]] void lengthen()
{
    auto *found = static_cast<descriptor *>(dlsym(RTLD_DEFAULT, "opal_bitmap_t_class"));
    if (found != nullptr) {
        found->bytes += 8;
    }
}

} // namespace
