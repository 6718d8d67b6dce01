// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver.h: the CUDA driver as gpusm_info sees it: each function may be missing, and each error is
// an answer. Only the two processes that try things call it; the one that prints does not.
#ifndef GPUSM_INFO_DRIVER_H
#define GPUSM_INFO_DRIVER_H

#include <cuda.h>

#include <string>

namespace gpusm::info {

// X(member, function): looked up by the name that cuda.h's macros give it.
#define GPUSM_INFO_DRIVER_FUNCTIONS(X)                                                             \
    X(init, cuInit)                                                                                \
    X(driver_get_version, cuDriverGetVersion)                                                      \
    X(get_error_name, cuGetErrorName)                                                              \
    X(device_get_count, cuDeviceGetCount)                                                          \
    X(device_get, cuDeviceGet)                                                                     \
    X(device_get_name, cuDeviceGetName)                                                            \
    X(device_get_attribute, cuDeviceGetAttribute)                                                  \
    X(device_get_pci_bus_id, cuDeviceGetPCIBusId)                                                  \
    X(device_total_mem, cuDeviceTotalMem)                                                          \
    X(device_get_p2p_attribute, cuDeviceGetP2PAttribute)                                           \
    X(device_can_access_peer, cuDeviceCanAccessPeer)                                               \
    X(primary_ctx_retain, cuDevicePrimaryCtxRetain)                                                \
    X(ctx_set_current, cuCtxSetCurrent)                                                            \
    X(ctx_synchronize, cuCtxSynchronize)                                                           \
    X(mem_alloc, cuMemAlloc)                                                                       \
    X(mem_free, cuMemFree)                                                                         \
    X(mem_alloc_managed, cuMemAllocManaged)                                                        \
    X(mem_host_register, cuMemHostRegister)                                                        \
    X(mem_host_unregister, cuMemHostUnregister)                                                    \
    X(memcpy_htod, cuMemcpyHtoD)                                                                   \
    X(memcpy_dtoh, cuMemcpyDtoH)                                                                   \
    X(memcpy_dtod, cuMemcpyDtoD)                                                                   \
    X(ipc_get_mem_handle, cuIpcGetMemHandle)                                                       \
    X(ipc_open_mem_handle, cuIpcOpenMemHandle)                                                     \
    X(ipc_close_mem_handle, cuIpcCloseMemHandle)                                                   \
    X(mem_get_granularity, cuMemGetAllocationGranularity)                                          \
    X(mem_address_reserve, cuMemAddressReserve)                                                    \
    X(mem_address_free, cuMemAddressFree)                                                          \
    X(mem_create, cuMemCreate)                                                                     \
    X(mem_release, cuMemRelease)                                                                   \
    X(mem_map, cuMemMap)                                                                           \
    X(mem_unmap, cuMemUnmap)                                                                       \
    X(mem_set_access, cuMemSetAccess)                                                              \
    X(mem_export, cuMemExportToShareableHandle)                                                    \
    X(mem_import, cuMemImportFromShareableHandle)                                                  \
    X(pool_create, cuMemPoolCreate)                                                                \
    X(pool_destroy, cuMemPoolDestroy)                                                              \
    X(pool_set_access, cuMemPoolSetAccess)                                                         \
    X(pool_alloc, cuMemAllocFromPoolAsync)                                                         \
    X(pool_free, cuMemFreeAsync)                                                                   \
    X(pool_export, cuMemPoolExportToShareableHandle)                                               \
    X(pool_import, cuMemPoolImportFromShareableHandle)                                             \
    X(pool_export_pointer, cuMemPoolExportPointer)                                                 \
    X(pool_import_pointer, cuMemPoolImportPointer)

struct driver_table {
#define GPUSM_INFO_MEMBER(member, function) decltype(&::function) member = nullptr;
    GPUSM_INFO_DRIVER_FUNCTIONS(GPUSM_INFO_MEMBER)
#undef GPUSM_INFO_MEMBER
    // By their names: which of them cuda.h means by the first one depends on its version.
    CUresult(CUDAAPI *device_get_gpu_uuid)(CUuuid *, CUdevice) = nullptr;
    CUresult(CUDAAPI *device_get_instance_uuid)(CUuuid *, CUdevice) = nullptr;

    std::string error_name(CUresult result) const;
};

inline constexpr const char *not_offered = "the driver has no such function";

// Calls of the driver, one after the other, until one fails: then the rest are not made.
class calls {
  public:
    explicit calls(const driver_table &driver) : driver_(driver) {}

    // True: it was made, and succeeded.
    template <typename Function, typename... Arguments>
    bool make(const char *name, Function *function, Arguments... arguments)
    {
        if (!good()) {
            return false;
        }
        if (nullptr == function) {
            fail(name, not_offered);
            return false;
        }
        if (const CUresult result = function(arguments...); CUDA_SUCCESS != result) {
            fail(name, driver_.error_name(result));
        }
        return good();
    }
    void fail(const std::string &where, const std::string &why)
    {
        if (good()) {
            failed_ = where;
            error_ = why;
        }
    }
    bool good() const { return failed_.empty(); }
    const std::string &failed() const { return failed_; }
    const std::string &error() const { return error_; }
    const driver_table &driver() const { return driver_; }

  private:
    const driver_table &driver_;
    std::string failed_;
    std::string error_;
};

// The library, or null: *why is dlerror's.
void *open_driver(driver_table *out, std::string *why);

// Makes the device's primary context current. It is made when it is first asked for, and kept to
// the end of the process.
bool enter_context(calls *work, int device);

// In the current context; complete when they return.
bool to_device(calls *work, CUdeviceptr to, const void *from, std::size_t len_bytes);
bool from_device(calls *work, void *to, CUdeviceptr from, std::size_t len_bytes);
bool between(calls *work, CUdeviceptr to, CUdeviceptr from, std::size_t len_bytes);

} // namespace gpusm::info

#endif
