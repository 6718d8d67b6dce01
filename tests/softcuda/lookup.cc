// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// lookup.cc: the driver's version, its error names, and functions by name and version.
#include "call.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

using namespace softcuda;

namespace {

constexpr int driver_version = 13000;

struct error_text {
    CUresult code;
    const char *name;
    const char *text;
};

const error_text errors[] = {
#define SOFTCUDA_ERROR(code, text)                                                                 \
    {                                                                                              \
        code, #code, text                                                                          \
    }
    SOFTCUDA_ERROR(CUDA_SUCCESS, "no error"),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    SOFTCUDA_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    SOFTCUDA_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    SOFTCUDA_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    SOFTCUDA_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    SOFTCUDA_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    SOFTCUDA_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    SOFTCUDA_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported"),
    SOFTCUDA_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed"),
    SOFTCUDA_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    SOFTCUDA_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    SOFTCUDA_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    SOFTCUDA_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    SOFTCUDA_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    SOFTCUDA_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    SOFTCUDA_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                   "part or all of the requested memory range is already mapped"),
    SOFTCUDA_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                   "pointer does not correspond to a registered memory region"),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    SOFTCUDA_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    SOFTCUDA_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed now"),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   "operation not permitted when stream is capturing"),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                   "operation failed due to a previous error during capture"),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                   "operation would make the legacy stream depend on a capturing blocking stream"),
    SOFTCUDA_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                   "attempt to terminate a thread-local capture sequence from another thread"),
    SOFTCUDA_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef SOFTCUDA_ERROR
};

// Functions whose name alone does not tell which one is meant: from driver version `since` on
// the public name means `symbol`. Newest first for each name.
struct versioned {
    const char *name;
    int since;
    const char *symbol;
};
const versioned renamed[] = {
    {"cuMemcpyBatchAsync", 13000, "cuMemcpyBatchAsync_v2"},
    {"cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync"},
    {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
    {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
    {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"},
    {"cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"},
    {"cuMemAdvise", 12020, "cuMemAdvise_v2"},
    {"cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
    {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
    {"cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2"},
    {"cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2"},
    {"cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2"},
    {"cuStreamWriteValue64", 11070, "cuStreamWriteValue64_v2"},
    {"cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2"},
    {"cuStreamWaitValue64", 11070, "cuStreamWaitValue64_v2"},
    {"cuStreamBatchMemOp", 11070, "cuStreamBatchMemOp_v2"},
    {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
};

// A symbol of this library, not of whoever interposes.
void *own_symbol(const char *name)
{
    static void *self = [] {
        Dl_info info{};
        dladdr(reinterpret_cast<const void *>(&errors), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    return dlsym(self, name);
}

void *find_function(const char *name, int version, bool per_thread, bool *too_old)
{
    *too_old = false;
    char symbol[128];
    bool listed = false;
    std::snprintf(symbol, sizeof(symbol), "%s", name);
    for (const versioned &v : renamed) {
        if (std::strcmp(v.name, name) == 0) {
            listed = true;
            if (version >= v.since) {
                std::snprintf(symbol, sizeof(symbol), "%s", v.symbol);
                listed = false;
                break;
            }
        }
    }
    if (listed && own_symbol(name) == nullptr) {
        *too_old = true;
        return nullptr;
    }
    char variant[160];
    if (per_thread) {
        for (const char *end : {"_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds"}) {
            std::snprintf(variant, sizeof(variant), "%s%s", symbol, end);
            if (void *f = own_symbol(variant)) {
                return f;
            }
        }
    }
    // cuMemAlloc means cuMemAlloc_v2 since CUDA 3.2.
    std::snprintf(variant, sizeof(variant), "%s_v2", name);
    if (std::strcmp(symbol, name) == 0) {
        void *plain = own_symbol(symbol);
        return plain != nullptr ? plain : own_symbol(variant);
    }
    return own_symbol(symbol);
}

} // namespace

SOFTCUDA_API(nothing, cuDriverGetVersion, (int *out), (out))
{
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = driver_version;
    return CUDA_SUCCESS;
}

SOFTCUDA_API(nothing, cuGetErrorName, (CUresult code, const char **out), (code, out))
{
    for (const error_text &e : errors) {
        if (e.code == code && out != nullptr) {
            *out = e.name;
            return CUDA_SUCCESS;
        }
    }
    if (out != nullptr) {
        *out = nullptr;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SOFTCUDA_API(nothing, cuGetErrorString, (CUresult code, const char **out), (code, out))
{
    for (const error_text &e : errors) {
        if (e.code == code && out != nullptr) {
            *out = e.text;
            return CUDA_SUCCESS;
        }
    }
    if (out != nullptr) {
        *out = nullptr;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SOFTCUDA_API(nothing, cuGetProcAddress,
             (const char *name, void **out, int version, cuuint64_t flags),
             (name, out, version, flags))
{
    bool too_old = false;
    if (name == nullptr || out == nullptr || version > driver_version) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = find_function(name, version,
                         (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &too_old);
    return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#if CUDA_VERSION >= 12000
SOFTCUDA_API(nothing, cuGetProcAddress_v2,
             (const char *name, void **out, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult *status),
             (name, out, version, flags, status))
{
    bool too_old = false;
    if (name == nullptr || out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = find_function(name, version,
                         (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, &too_old);
    if (status != nullptr) {
        *status = *out != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : too_old       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}
#endif

SOFTCUDA_API(nothing, cuProfilerStart, (void), ())
{
    return CUDA_SUCCESS;
}
SOFTCUDA_API(nothing, cuProfilerStop, (void), ())
{
    return CUDA_SUCCESS;
}
