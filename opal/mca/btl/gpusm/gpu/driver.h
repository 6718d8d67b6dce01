// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/driver.h: the CUDA driver, loaded by name when it is first needed and never linked, so
// that the component loads on a node without one.
//
//   driver_api       table of the functions that gpusm calls
//   driver_scope     the right context for a few calls, and the caller's back afterwards
#ifndef GPUSM_GPU_DRIVER_H
#define GPUSM_GPU_DRIVER_H

#include "opal/mca/btl/gpusm/base/status.h"

#include <cuda.h>

namespace gpusm {

// X(member, function). The symbol looked up is the versioned name that cuda.h's macros give
// the function; all of these versions exist from CUDA 11.8 on.
#define GPUSM_DRIVER_FUNCTIONS(X)                                                                  \
    X(ctx_get_current, cuCtxGetCurrent)                                                            \
    X(ctx_push_current, cuCtxPushCurrent)                                                          \
    X(ctx_pop_current, cuCtxPopCurrent)                                                            \
    X(ctx_get_device, cuCtxGetDevice)                                                              \
    X(device_get_uuid, cuDeviceGetUuid)                                                            \
    X(primary_ctx_get_state, cuDevicePrimaryCtxGetState)                                           \
    X(primary_ctx_retain, cuDevicePrimaryCtxRetain)                                                \
    X(primary_ctx_release, cuDevicePrimaryCtxRelease)                                              \
    X(pointer_get_attributes, cuPointerGetAttributes)                                              \
    X(pointer_get_attribute, cuPointerGetAttribute)                                                \
    X(pointer_set_attribute, cuPointerSetAttribute)                                                \
    X(mem_get_address_range, cuMemGetAddressRange)                                                 \
    X(ipc_get_mem_handle, cuIpcGetMemHandle)                                                       \
    X(ipc_open_mem_handle, cuIpcOpenMemHandle)                                                     \
    X(ipc_close_mem_handle, cuIpcCloseMemHandle)                                                   \
    X(ipc_get_event_handle, cuIpcGetEventHandle)                                                   \
    X(ipc_open_event_handle, cuIpcOpenEventHandle)                                                 \
    X(stream_create, cuStreamCreateWithPriority)                                                   \
    X(stream_destroy, cuStreamDestroy)                                                             \
    X(stream_synchronize, cuStreamSynchronize)                                                     \
    X(stream_query, cuStreamQuery)                                                                 \
    X(stream_wait_event, cuStreamWaitEvent)                                                        \
    X(event_create, cuEventCreate)                                                                 \
    X(event_destroy, cuEventDestroy)                                                               \
    X(event_record, cuEventRecord)                                                                 \
    X(event_query, cuEventQuery)                                                                   \
    X(memcpy_async, cuMemcpyAsync)                                                                 \
    X(mem_host_register, cuMemHostRegister)                                                        \
    X(mem_host_unregister, cuMemHostUnregister)                                                    \
    X(mem_host_alloc, cuMemHostAlloc)                                                              \
    X(mem_free_host, cuMemFreeHost)                                                                \
    X(mem_host_get_device_pointer, cuMemHostGetDevicePointer)                                      \
    X(module_load_data, cuModuleLoadDataEx)                                                        \
    X(module_unload, cuModuleUnload)                                                               \
    X(module_get_function, cuModuleGetFunction)                                                    \
    X(launch_kernel, cuLaunchKernel)                                                               \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode)                                    \
    X(get_error_name, cuGetErrorName)

// Many copies in one call: CUDA 12.8 has it, CUDA 13 with one argument less under another name.
#if CUDA_VERSION >= 12080
#define GPUSM_HAVE_BATCH_COPY 1
using batch_copy_fn = CUresult(CUDAAPI *)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                          CUmemcpyAttributes *, size_t *, size_t, CUstream);
using batch_copy_12_8_fn = CUresult(CUDAAPI *)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                               CUmemcpyAttributes *, size_t *, size_t, size_t *,
                                               CUstream);
#else
#define GPUSM_HAVE_BATCH_COPY 0
#endif

struct driver_api {
#define GPUSM_MEMBER(member, function) decltype(&::function) member = nullptr;
    GPUSM_DRIVER_FUNCTIONS(GPUSM_MEMBER)
#undef GPUSM_MEMBER

#if GPUSM_HAVE_BATCH_COPY
    // At most one of them is set; a driver before 12.8 has neither.
    batch_copy_fn batch_copy = nullptr;
    batch_copy_12_8_fn batch_copy_12_8 = nullptr;
#endif

    // Copies sizes[i] bytes from sources[i] to destinations[i] on `stream`, in any order among
    // themselves, for all i < count. CUDA_ERROR_NOT_SUPPORTED where the driver has no such call.
    // After an error some of the copies may have been started.
    CUresult copy_batch(CUdeviceptr *destinations, CUdeviceptr *sources, size_t *sizes,
                        size_t count, CUstream stream) const;

    // The name of an error, e.g. CUDA_ERROR_INVALID_VALUE. Never null.
    const char *error_name(CUresult result) const;

    // Logs "<what> failed: <error>" at warn, unless the driver is being shut down, which is a
    // normal state at the end of a program. Returns driver_failed.
    status report(const char *what, CUresult result) const;
};

// The driver of this process, loaded on the first call; the same pointer every time. Null when
// there is none or when it lacks a function: the reason is logged at info, once. Does not call
// the driver.
const driver_api *driver_load();

// True for the answers of a driver that is gone or going because the process ends.
bool driver_is_down(CUresult result);

// Makes `context` current, and stream capture by other threads insensitive to what is called
// inside (a global-mode capture would fail otherwise), until the scope ends.
class driver_scope {
  public:
    driver_scope(const driver_api &driver, CUcontext context);
    ~driver_scope();
    driver_scope(const driver_scope &) = delete;
    driver_scope &operator=(const driver_scope &) = delete;

    // False: the context could not be made current; nothing inside can work.
    bool entered() const { return entered_; }

  private:
    const driver_api &driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED; // then the one before
    bool relaxed_ = false;
    bool pushed_ = false;
    bool entered_ = false;
};

} // namespace gpusm

#endif
