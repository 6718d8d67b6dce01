// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "tools/gpusm_info/driver.h"

#include <dlfcn.h>

#include <map>
#include <type_traits>

namespace gpusm::info {

// Two steps, so that cuda.h's macro turns the function into its versioned name first.
#define GPUSM_INFO_STRING_OF(text) #text
#define GPUSM_INFO_SYMBOL_OF(function) GPUSM_INFO_STRING_OF(function)

void *open_driver(driver_table *out, std::string *why)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nullptr == library) {
        const char *said = dlerror();
        *why = nullptr == said ? "it cannot be loaded" : said;
        return nullptr;
    }
    const auto load = [&](auto *member, const char *symbol) {
        *member = reinterpret_cast<std::remove_pointer_t<decltype(member)>>(dlsym(library, symbol));
    };
#define GPUSM_INFO_LOAD(member, function) load(&out->member, GPUSM_INFO_SYMBOL_OF(function));
    GPUSM_INFO_DRIVER_FUNCTIONS(GPUSM_INFO_LOAD)
#undef GPUSM_INFO_LOAD
    load(&out->device_get_gpu_uuid, "cuDeviceGetUuid");
    load(&out->device_get_instance_uuid, "cuDeviceGetUuid_v2");
    return library;
}

std::string driver_table::error_name(CUresult result) const
{
    const char *name = nullptr;
    return get_error_name != nullptr && CUDA_SUCCESS == get_error_name(result, &name) &&
                   name != nullptr
               ? name
               : "error " + std::to_string(static_cast<int>(result));
}

bool enter_context(calls *work, int device)
{
    static std::map<int, CUcontext> made;
    CUcontext &context = made[device];
    if (nullptr == context) {
        CUdevice handle = 0;
        work->make("cuDeviceGet", work->driver().device_get, &handle, device);
        work->make("cuDevicePrimaryCtxRetain", work->driver().primary_ctx_retain, &context, handle);
    }
    return work->make("cuCtxSetCurrent", work->driver().ctx_set_current, context);
}

bool to_device(calls *work, CUdeviceptr to, const void *from, std::size_t len_bytes)
{
    // A copy out of pageable memory may return before the device has the bytes.
    work->make("cuMemcpyHtoD", work->driver().memcpy_htod, to, from, len_bytes);
    return work->make("cuCtxSynchronize", work->driver().ctx_synchronize);
}

bool from_device(calls *work, void *to, CUdeviceptr from, std::size_t len_bytes)
{
    return work->make("cuMemcpyDtoH", work->driver().memcpy_dtoh, to, from, len_bytes);
}

bool between(calls *work, CUdeviceptr to, CUdeviceptr from, std::size_t len_bytes)
{
    work->make("cuMemcpyDtoD", work->driver().memcpy_dtod, to, from, len_bytes);
    return work->make("cuCtxSynchronize", work->driver().ctx_synchronize);
}

} // namespace gpusm::info
