// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// counted_driver.h: the table of the driver that is loaded, with every call counted by fake(), and
// failing when that is told so. Handles of CUDA IPC are pretended, as no process may open its own.
#ifndef GPUSM_TESTS_COUNTED_DRIVER_H
#define GPUSM_TESTS_COUNTED_DRIVER_H

#include "tests/unit/fake_driver.h"
#include "tests/unit/gpu_memory_support.h"

namespace gpusm_test {

// What the call answers, unless it is to fail instead.
template <typename Call> CUresult counted(const char *function, Call &&call)
{
    CUresult result = fake().enter(function);
    if (CUDA_SUCCESS == result) {
        result = call();
        fake().good[function] += CUDA_SUCCESS == result ? 1 : 0;
    }
    return result;
}

// Made anew.
inline gpusm::driver_api counted_driver()
{
    fake() = fake_driver{};
    gpusm::driver_api api = driver();
#define GPUSM_COUNTED(member, function)                                                            \
    api.member = [](auto... arguments) {                                                           \
        return counted(#member, [&] { return driver().member(arguments...); });                    \
    };
    GPUSM_DRIVER_FUNCTIONS(GPUSM_COUNTED)
    GPUSM_COUNTED(ctx_set_flags, cuCtxSetFlags)
#undef GPUSM_COUNTED
    api.ipc_get_mem_handle = [](CUipcMemHandle *out, CUdeviceptr at) {
        std::memcpy(out->reserved, &at, sizeof(at));
        return fake().enter("ipc_get_mem_handle");
    };
    api.ipc_open_mem_handle = [](CUdeviceptr *out, CUipcMemHandle handle, unsigned) {
        std::memcpy(out, handle.reserved, sizeof(*out));
        return counted("ipc_open_mem_handle", [] { return CUDA_SUCCESS; });
    };
    api.ipc_close_mem_handle = [](CUdeviceptr) { return fake().enter("ipc_close_mem_handle"); };
    return api;
}

// Whether nothing that was taken of it is left: references to allocations, addresses, and memory.
inline bool all_given_back()
{
    auto &good = fake().good;
    auto &calls = fake().calls;
    return good["mem_retain_allocation_handle"] + good["mem_import_from_shareable_handle"] ==
               calls["mem_release"] &&
           good["mem_address_reserve"] == good["mem_address_free"] &&
           good["mem_pool_import_from_shareable_handle"] == good["mem_pool_destroy"] &&
           good["mem_pool_import_pointer"] + good["mem_alloc"] == good["mem_free"] &&
           good["ipc_open_mem_handle"] == calls["ipc_close_mem_handle"];
}

} // namespace gpusm_test

#endif
