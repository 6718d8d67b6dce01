// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// kernels.cc: the list of kernels. A new one: a function here and a line in `list`.
#include "kernels.h"

#include <cstring>

namespace softcuda {

namespace {

// gpusm_softcuda_test_add1(uint32_t *data, uint64_t count): data[i] += 1
void test_add1(const launch &l)
{
    auto count = l.argument<std::uint64_t>(1);
    auto *data = static_cast<std::uint32_t *>(
        l.touch(l.argument<std::uint64_t>(0), count * sizeof(std::uint32_t), true));
    for (std::uint64_t i = 0; data != nullptr && i < count; ++i) {
        ++data[i];
    }
}

const kernel list[] = {
    {"gpusm_softcuda_test_add1", {8, 8}, test_add1},
};

} // namespace

const kernel *find_kernel(const char *name)
{
    for (const kernel &k : list) {
        if (std::strcmp(k.name, name) == 0) {
            return &k;
        }
    }
    return nullptr;
}

} // namespace softcuda
