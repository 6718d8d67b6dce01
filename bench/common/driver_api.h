// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// driver_api.h: the CUDA driver as benchmarks and tests see it: a table of functions loaded by
// name from libcuda.so.1 (never linked), and the device that a rank works on.
#ifndef GPUSM_BENCH_DRIVER_API_H
#define GPUSM_BENCH_DRIVER_API_H

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>

namespace gpusm::bench {

// Field and name. cuda.h makes a macro of most names, which adds the version that its declaration
// belongs to; that is the one that is looked up.
#define GPUSM_BENCH_DRIVER_FUNCTIONS(X)                                                            \
    X(init, cuInit)                                                                                \
    X(driver_get_version, cuDriverGetVersion)                                                      \
    X(get_error_name, cuGetErrorName)                                                              \
    X(device_get_count, cuDeviceGetCount)                                                          \
    X(device_get, cuDeviceGet)                                                                     \
    X(device_get_name, cuDeviceGetName)                                                            \
    X(device_get_uuid, cuDeviceGetUuid)                                                            \
    X(device_get_attribute, cuDeviceGetAttribute)                                                  \
    X(primary_retain, cuDevicePrimaryCtxRetain)                                                    \
    X(primary_release, cuDevicePrimaryCtxRelease)                                                  \
    X(ctx_set_current, cuCtxSetCurrent)                                                            \
    X(ctx_enable_peer_access, cuCtxEnablePeerAccess)                                               \
    X(mem_get_info, cuMemGetInfo)                                                                  \
    X(mem_alloc, cuMemAlloc)                                                                       \
    X(mem_free, cuMemFree)                                                                         \
    X(mem_alloc_managed, cuMemAllocManaged)                                                        \
    X(mem_host_alloc, cuMemHostAlloc)                                                              \
    X(mem_free_host, cuMemFreeHost)                                                                \
    X(mem_host_register, cuMemHostRegister)                                                        \
    X(mem_host_unregister, cuMemHostUnregister)                                                    \
    X(memcpy_dtoh, cuMemcpyDtoH)                                                                   \
    X(memcpy_htod, cuMemcpyHtoD)                                                                   \
    X(memcpy_async, cuMemcpyAsync)                                                                 \
    X(stream_create, cuStreamCreate)                                                               \
    X(stream_destroy, cuStreamDestroy)                                                             \
    X(stream_synchronize, cuStreamSynchronize)                                                     \
    X(event_create, cuEventCreate)                                                                 \
    X(event_record, cuEventRecord)                                                                 \
    X(event_query, cuEventQuery)                                                                   \
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
    X(mem_pool_create, cuMemPoolCreate)                                                            \
    X(mem_pool_destroy, cuMemPoolDestroy)                                                          \
    X(mem_alloc_from_pool_async, cuMemAllocFromPoolAsync)                                          \
    X(mem_alloc_async, cuMemAllocAsync)                                                            \
    X(mem_free_async, cuMemFreeAsync)                                                              \
    X(module_load_data, cuModuleLoadDataEx)                                                        \
    X(module_get_function, cuModuleGetFunction)                                                    \
    X(module_unload, cuModuleUnload)                                                               \
    X(launch_kernel, cuLaunchKernel)

struct driver_api {
#define GPUSM_BENCH_FIELD(field, name) decltype(&name) field = nullptr;
    GPUSM_BENCH_DRIVER_FUNCTIONS(GPUSM_BENCH_FIELD)
#undef GPUSM_BENCH_FIELD
};

// The table, loaded at the first call and kept for the life of the process; nullptr when there is
// no usable libcuda.so.1, and then *why holds one sentence.
const driver_api *load_driver(std::string *why);

// "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"
std::string driver_error(const driver_api &driver, const char *function, CUresult result);

// One device with its primary context retained. Threads call make_current() before their first
// buffer operation; open() does so for the calling thread.
class device {
  public:
    // The device number `local_rank` modulo the number of devices. nullptr and one sentence in
    // *why when there is no driver or no device.
    static std::unique_ptr<device> open(int local_rank, std::string *why);
    ~device();
    device(const device &) = delete;
    device &operator=(const device &) = delete;

    [[nodiscard]] std::string make_current() const; // empty, or what went wrong
    // Empty for CUDA_SUCCESS, else what driver_error says.
    std::string judge(const char *function, CUresult result) const
    {
        return CUDA_SUCCESS == result ? std::string() : driver_error(driver_, function, result);
    }
    const driver_api &driver() const { return driver_; }
    CUcontext context() const { return context_; }
    int ordinal() const { return static_cast<int>(handle_); }
    // "device 0, NAME, UUID, CUDA 13.0"
    const std::string &text() const { return text_; }
    const std::string &name() const { return name_; }
    const std::string &uuid() const { return uuid_; } // "GPU-", first 8 and last 4 hex digits
    std::size_t l2_cache_bytes() const { return l2_cache_bytes_; } // 0: not known
    // tests/softcuda names its devices so.
    bool is_software() const { return std::string::npos != name_.find("software"); }

  private:
    device(const driver_api &driver, CUdevice handle) : driver_(driver), handle_(handle) {}

    const driver_api &driver_;
    CUdevice handle_;
    CUcontext context_ = nullptr;
    std::string name_;
    std::string uuid_;
    std::string text_;
    std::size_t l2_cache_bytes_ = 0;
};

// This process's rank on its node, known before MPI_Init from the launcher's environment; 0 when
// the environment does not say.
int local_rank_from_environment();

} // namespace gpusm::bench

#endif
