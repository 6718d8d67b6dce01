// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/driver.h: the CUDA driver, loaded by name when it is first needed and never linked, so
// that the component loads on a node without one.
//
//   driver_api       table of the functions that gpusm calls
//   driver_scope     calls with the right context, and the caller's back afterwards
#ifndef GPUSM_GPU_DRIVER_H
#define GPUSM_GPU_DRIVER_H

#include "opal/mca/common/gpusm/base/status.h"

#include <cuda.h>

namespace gpusm {

// X(member, function). The symbol looked up is the versioned name that cuda.h's macros give
// the function; all of these versions exist from CUDA 11.8 on.
#define GPUSM_DRIVER_FUNCTIONS(X)                                                                  \
    X(ctx_get_current, cuCtxGetCurrent)                                                            \
    X(ctx_push_current, cuCtxPushCurrent)                                                          \
    X(ctx_pop_current, cuCtxPopCurrent)                                                            \
    X(ctx_get_device, cuCtxGetDevice)                                                              \
    X(ctx_synchronize, cuCtxSynchronize)                                                           \
    X(device_get_uuid, cuDeviceGetUuid)                                                            \
    X(device_get_count, cuDeviceGetCount)                                                          \
    X(device_total_mem, cuDeviceTotalMem)                                                          \
    X(device_get_attribute, cuDeviceGetAttribute)                                                  \
    X(device_can_access_peer, cuDeviceCanAccessPeer)                                               \
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
    X(mem_host_get_device_pointer, cuMemHostGetDevicePointer)                                      \
    X(module_load_data, cuModuleLoadDataEx)                                                        \
    X(module_unload, cuModuleUnload)                                                               \
    X(module_get_function, cuModuleGetFunction)                                                    \
    X(launch_kernel, cuLaunchKernel)                                                               \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode)                                    \
    X(ctx_get_flags, cuCtxGetFlags)                                                                \
    X(mem_retain_allocation_handle, cuMemRetainAllocationHandle)                                   \
    X(mem_get_allocation_properties, cuMemGetAllocationPropertiesFromHandle)                       \
    X(mem_export_to_shareable_handle, cuMemExportToShareableHandle)                                \
    X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle)                            \
    X(mem_address_reserve, cuMemAddressReserve)                                                    \
    X(mem_address_free, cuMemAddressFree)                                                          \
    X(mem_map, cuMemMap)                                                                           \
    X(mem_unmap, cuMemUnmap)                                                                       \
    X(mem_set_access, cuMemSetAccess)                                                              \
    X(mem_get_access, cuMemGetAccess)                                                              \
    X(mem_release, cuMemRelease)                                                                   \
    X(mem_pool_export_to_shareable_handle, cuMemPoolExportToShareableHandle)                       \
    X(mem_pool_import_from_shareable_handle, cuMemPoolImportFromShareableHandle)                   \
    X(mem_pool_export_pointer, cuMemPoolExportPointer)                                             \
    X(mem_pool_import_pointer, cuMemPoolImportPointer)                                             \
    X(mem_pool_set_access, cuMemPoolSetAccess)                                                     \
    X(mem_pool_destroy, cuMemPoolDestroy)                                                          \
    X(stream_is_capturing, cuStreamIsCapturing)                                                    \
    X(mem_alloc, cuMemAlloc)                                                                       \
    X(mem_free, cuMemFree)                                                                         \
    X(get_error_name, cuGetErrorName)

// CUDA 12.1 has it; older headers do not declare it.
using ctx_set_flags_fn = CUresult(CUDAAPI *)(unsigned);

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

    ctx_set_flags_fn ctx_set_flags = nullptr; // a driver may lack it
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

    // Waits until the current context's legacy stream has done what was submitted to it.
    // `not_ready`: a stream that it would have to wait for is being captured, and until that is
    // over nothing can be waited for.
    status wait_for_legacy_stream() const;
    // Records `event` behind what that stream has got to do; in the same case it stays what it was.
    status record_legacy_stream(CUevent event) const;

    // Have the current context's legacy stream, and with it its blocking streams, nothing left to
    // do? Of non-blocking streams, and while one of the others is captured, nobody can tell: the
    // first count as idle, the latter as busy. Some calls of the driver wait for kernels that run,
    // and calls of other threads wait meanwhile (docs/gather.md).
    bool legacy_stream_is_idle() const;

    // `ok`, or driver_failed with "<what> failed: <error>" logged at warn, unless the driver is
    // being shut down, which is a normal state at the end of a program.
    status report(const char *what, CUresult result) const;

    // The same for a call that makes or shares something: `no_memory`, and `unsupported` for
    // devices that cannot reach each other and kinds of memory that are refused, without a word.
    status answer(const char *what, CUresult result) const;
};

// Fills *out with the symbols that `find` (dlsym, in other words) knows in `library`. Returns the
// name of one that is missing and cannot be done without, or null.
const char *driver_fill(driver_api *out, void *library,
                        void *(*find)(void *library, const char *symbol));

// The driver of this process, loaded on the first call; the same pointer every time. Null when
// there is none or when it lacks a function: the reason is logged at info, once. Does not call
// the driver.
const driver_api *driver_load();

// True for the answers of a driver that is gone or going because the process ends.
bool driver_is_down(CUresult result);

// Makes stream capture by other threads insensitive to what is called inside, until the scope
// ends: a global-mode capture would fail otherwise. And makes `context` current, if there is one to
// the call.
class driver_scope {
  public:
    explicit driver_scope(const driver_api &driver); // for calls that need none
    // Null, of a context that has been destroyed, cannot be entered.
    driver_scope(const driver_api &driver, CUcontext context);
    ~driver_scope();
    driver_scope(const driver_scope &) = delete;
    driver_scope &operator=(const driver_scope &) = delete;

    // False: nothing inside can work, as the driver is gone or the context could not be made
    // current.
    bool entered() const { return entered_; }

  private:
    const driver_api &driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED; // then the one before
    const bool relaxed_;
    bool pushed_ = false;
    bool entered_;
};

// What `call` answers with that context current; the answer of a driver that is gone, which is not
// reported, where it cannot be made current.
template <typename Call>
CUresult in_context(const driver_api &driver, CUcontext context, Call &&call)
{
    const driver_scope scope(driver, context);
    return scope.entered() ? call() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
// The same of a call that needs no context.
template <typename Call> CUresult in_any_context(const driver_api &driver, Call &&call)
{
    const driver_scope scope(driver);
    return scope.entered() ? call() : CUDA_ERROR_DEINITIALIZED;
}

} // namespace gpusm

#endif
