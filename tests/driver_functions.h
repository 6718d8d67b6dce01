// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver_functions.h: functions of the driver by name, for tests that call it themselves.
#ifndef GPUSM_TESTS_DRIVER_FUNCTIONS_H
#define GPUSM_TESTS_DRIVER_FUNCTIONS_H

#include <cuda.h>

#include <cstdio>

#include <dlfcn.h>
#include <unistd.h>

namespace softcuda_test {

// The symbol of exactly that name; the process ends when the driver lacks it.
template <class F> F *symbol(const char *name)
{
    static void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    void *f = library != nullptr ? dlsym(library, name) : nullptr;
    if (f == nullptr) {
        std::fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        _exit(9);
    }
    return reinterpret_cast<F *>(f);
}
#define CU_TEXT(name) #name
#define CU_NAME(name) CU_TEXT(name)
// CU(cuMemAlloc)(...): a function of cuda.h, whose macros choose the version.
#define CU(name) (softcuda_test::symbol<decltype(name)>(CU_NAME(name)))

// Of the versions of cuCtxCreate, the one that all drivers have.
inline CUresult create_context(CUcontext *out, CUdevice device)
{
    return symbol<CUresult(CUcontext *, unsigned, CUdevice)>("cuCtxCreate_v2")(out, 0, device);
}

} // namespace softcuda_test

#endif
