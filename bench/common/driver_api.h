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
#include <type_traits>

namespace gpusm::bench {

// Field, name in libcuda.so.1, type. Names carry their version suffix, so that the binary means
// the same function whatever cuda.h (11.8 to 13) it was compiled against.
#define GPUSM_BENCH_DRIVER_FUNCTIONS(X)                                                            \
    X(init, "cuInit", CUresult(unsigned int))                                                      \
    X(driver_get_version, "cuDriverGetVersion", CUresult(int *))                                   \
    X(get_error_name, "cuGetErrorName", CUresult(CUresult, const char **))                         \
    X(device_get_count, "cuDeviceGetCount", CUresult(int *))                                       \
    X(device_get, "cuDeviceGet", CUresult(CUdevice *, int))                                        \
    X(device_get_name, "cuDeviceGetName", CUresult(char *, int, CUdevice))                         \
    X(device_get_uuid, "cuDeviceGetUuid_v2", CUresult(CUuuid *, CUdevice))                         \
    X(device_get_attribute, "cuDeviceGetAttribute", CUresult(int *, CUdevice_attribute, CUdevice)) \
    X(primary_retain, "cuDevicePrimaryCtxRetain", CUresult(CUcontext *, CUdevice))                 \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", CUresult(CUdevice))                         \
    X(ctx_set_current, "cuCtxSetCurrent", CUresult(CUcontext))                                     \
    X(mem_alloc, "cuMemAlloc_v2", CUresult(CUdeviceptr *, std::size_t))                            \
    X(mem_free, "cuMemFree_v2", CUresult(CUdeviceptr))                                             \
    X(mem_alloc_managed, "cuMemAllocManaged", CUresult(CUdeviceptr *, std::size_t, unsigned int))  \
    X(mem_host_alloc, "cuMemHostAlloc", CUresult(void **, std::size_t, unsigned int))              \
    X(mem_free_host, "cuMemFreeHost", CUresult(void *))                                            \
    X(mem_host_register, "cuMemHostRegister_v2", CUresult(void *, std::size_t, unsigned int))      \
    X(mem_host_unregister, "cuMemHostUnregister", CUresult(void *))                                \
    X(memcpy_dtoh, "cuMemcpyDtoH_v2", CUresult(void *, CUdeviceptr, std::size_t))                  \
    X(memcpy_htod, "cuMemcpyHtoD_v2", CUresult(CUdeviceptr, const void *, std::size_t))            \
    X(memcpy_async, "cuMemcpyAsync", CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream))    \
    X(stream_create, "cuStreamCreate", CUresult(CUstream *, unsigned int))                         \
    X(stream_destroy, "cuStreamDestroy_v2", CUresult(CUstream))                                    \
    X(stream_synchronize, "cuStreamSynchronize", CUresult(CUstream))                               \
    X(event_create, "cuEventCreate", CUresult(CUevent *, unsigned int))                            \
    X(event_destroy, "cuEventDestroy_v2", CUresult(CUevent))                                       \
    X(event_record, "cuEventRecord", CUresult(CUevent, CUstream))                                  \
    X(event_query, "cuEventQuery", CUresult(CUevent))                                              \
    X(ipc_get_mem_handle, "cuIpcGetMemHandle", CUresult(CUipcMemHandle *, CUdeviceptr))            \
    X(ipc_open_mem_handle, "cuIpcOpenMemHandle_v2",                                                \
      CUresult(CUdeviceptr *, CUipcMemHandle, unsigned int))                                       \
    X(ipc_close_mem_handle, "cuIpcCloseMemHandle", CUresult(CUdeviceptr))                          \
    X(mem_get_granularity, "cuMemGetAllocationGranularity",                                        \
      CUresult(std::size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))      \
    X(mem_address_reserve, "cuMemAddressReserve",                                                  \
      CUresult(CUdeviceptr *, std::size_t, std::size_t, CUdeviceptr, unsigned long long))          \
    X(mem_address_free, "cuMemAddressFree", CUresult(CUdeviceptr, std::size_t))                    \
    X(mem_create, "cuMemCreate",                                                                   \
      CUresult(CUmemGenericAllocationHandle *, std::size_t, const CUmemAllocationProp *,           \
               unsigned long long))                                                                \
    X(mem_release, "cuMemRelease", CUresult(CUmemGenericAllocationHandle))                         \
    X(mem_map, "cuMemMap",                                                                         \
      CUresult(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,                \
               unsigned long long))                                                                \
    X(mem_unmap, "cuMemUnmap", CUresult(CUdeviceptr, std::size_t))                                 \
    X(mem_set_access, "cuMemSetAccess",                                                            \
      CUresult(CUdeviceptr, std::size_t, const CUmemAccessDesc *, std::size_t))                    \
    X(mem_pool_create, "cuMemPoolCreate", CUresult(CUmemoryPool *, const CUmemPoolProps *))        \
    X(mem_pool_destroy, "cuMemPoolDestroy", CUresult(CUmemoryPool))                                \
    X(mem_alloc_from_pool_async, "cuMemAllocFromPoolAsync",                                        \
      CUresult(CUdeviceptr *, std::size_t, CUmemoryPool, CUstream))                                \
    X(mem_alloc_async, "cuMemAllocAsync", CUresult(CUdeviceptr *, std::size_t, CUstream))          \
    X(mem_free_async, "cuMemFreeAsync", CUresult(CUdeviceptr, CUstream))

struct driver_api {
#define GPUSM_BENCH_FIELD(field, name, ...) std::add_pointer_t<__VA_ARGS__> field = nullptr;
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
    const driver_api &driver() const { return driver_; }
    int ordinal() const { return static_cast<int>(handle_); }
    const std::string &name() const { return name_; }
    const std::string &uuid() const { return uuid_; } // "GPU-", first 8 and last 4 hex digits
    int driver_version() const { return version_; }
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
    int version_ = 0;
    std::size_t l2_cache_bytes_ = 0;
};

// This process's rank on its node, known before MPI_Init from the launcher's environment; 0 when
// the environment does not say.
int local_rank_from_environment();

} // namespace gpusm::bench

#endif
