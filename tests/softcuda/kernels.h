// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// kernels.h: device functions of this project, written once more for the CPU. A kernel is
// launched by the name that its PTX entry has; one that is not listed here cannot be launched.
#ifndef GPUSM_SOFTCUDA_KERNELS_H
#define GPUSM_SOFTCUDA_KERNELS_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace softcuda {

struct launch {
    const void *const *arguments; // one pointer per parameter, to a copy of its value
    int device;                   // where it runs
    const struct context *ctx;    // whose stream it runs on

    template <class T> T argument(int i) const { return *static_cast<const T *>(arguments[i]); }

    // Where the CPU finds [address, +len): device memory, managed or pinned host memory. Null
    // for anything else, memory of another context without peer access included, and then the
    // launch has failed: return at once.
    void *touch(std::uint64_t address, std::size_t len, bool write) const;

    mutable bool failed = false;

    // Keeps what was touched alive until the kernel is over.
    mutable std::vector<struct stretch> *held = nullptr;
};

struct kernel {
    const char *name;
    std::vector<std::size_t> argument_bytes;
    void (*run)(const launch &);
};

// Null when no kernel of that name is known.
const kernel *find_kernel(const char *name);

} // namespace softcuda

#endif
