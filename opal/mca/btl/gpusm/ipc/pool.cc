// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/pool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>

namespace gpusm {

namespace {

constexpr CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The pool that `address` is of, null for other memory, and what the pool may be exported as.
CUmemoryPool pool_of(const driver_api &driver, std::uint64_t address, std::uint64_t *handle_types)
{
    CUmemoryPool pool = nullptr;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    void *values[] = {&pool, handle_types};
    *handle_types = 0;
    return CUDA_SUCCESS == driver.pointer_get_attributes(2, attributes, values, address) ? pool
                                                                                         : nullptr;
}

} // namespace

bool is_pool_memory(const driver_api &driver, std::uint64_t address, bool *exportable)
{
    std::uint64_t handle_types = 0;
    const CUmemoryPool pool = pool_of(driver, address, &handle_types);
    *exportable = pool != nullptr && 0 != (handle_types & by_descriptor);
    return pool != nullptr;
}

status export_pool(const driver_api &driver, CUmemoryPool pool, int *fd)
{
    int made = -1;
    const CUresult result = in_any_context(driver, [&] {
        return driver.mem_pool_export_to_shareable_handle(&made, pool, by_descriptor, 0);
    });
    if (CUDA_ERROR_INVALID_VALUE == result) {
        return status::unsupported;
    }
    if (CUDA_SUCCESS == result) {
        (void)fcntl(made, F_SETFD, FD_CLOEXEC);
        *fd = made;
    }
    return driver.answer("cuMemPoolExportToShareableHandle", result);
}

status export_pool_pointer(const driver_api &driver, const device &of, std::uint64_t address,
                           pool_pointer *out)
{
    bool exportable = false;
    if (!is_pool_memory(driver, address, &exportable) || !exportable) {
        return status::unsupported;
    }
    const driver_scope scope(driver, of.context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    pool_pointer made;
    std::uint64_t handle_types = 0;
    made.pool = pool_of(driver, address, &handle_types);
    CUdeviceptr base = 0;
    std::size_t len_bytes = 0;
    CUresult result = driver.mem_get_address_range(&base, &len_bytes, address);
    if (CUDA_SUCCESS != result) {
        return driver.report("cuMemGetAddressRange", result);
    }
    made.base = base;
    made.len_bytes = len_bytes;
    result = driver.mem_pool_export_pointer(&made.data, base);
    if (CUDA_ERROR_INVALID_VALUE == result) {
        // A pool that was never exported (driver 580 says so); its descriptor need not stay.
        int fd = -1;
        if (const status s = export_pool(driver, made.pool, &fd); status::ok != s) {
            return s;
        }
        (void)close(fd);
        result = driver.mem_pool_export_pointer(&made.data, base);
    }
    if (CUDA_ERROR_INVALID_VALUE == result) {
        return status::unsupported; // a pool that this process has imported itself
    }
    const status s = driver.answer("cuMemPoolExportPointer", result);
    if (status::ok == s) {
        *out = made;
    }
    return s;
}

status import_pool(const driver_api &driver, int fd, CUmemoryPool *out)
{
    CUmemoryPool made = nullptr;
    void *const as_pointer = reinterpret_cast<void *>(static_cast<std::intptr_t>(fd));
    const CUresult result = in_any_context(driver, [&] {
        return driver.mem_pool_import_from_shareable_handle(&made, as_pointer, by_descriptor, 0);
    });
    if (CUDA_SUCCESS == result) {
        *out = made;
    }
    return driver.answer("cuMemPoolImportFromShareableHandle", result);
}

status allow_pool(const driver_api &driver, CUmemoryPool pool, const device &into)
{
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, into.ordinal},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return driver.answer("cuMemPoolSetAccess", in_any_context(driver, [&] {
                             return driver.mem_pool_set_access(pool, &access, 1);
                         }));
}

status import_pool_pointer(const driver_api &driver, const device &into, CUmemoryPool pool,
                           const CUmemPoolPtrExportData &data, std::uint64_t *local_base)
{
    CUmemPoolPtrExportData copy = data; // the driver takes it as something that it may write
    CUdeviceptr made = 0;
    const CUresult result = in_context(
        driver, into.context, [&] { return driver.mem_pool_import_pointer(&made, pool, &copy); });
    if (CUDA_ERROR_ALREADY_MAPPED == result) {
        return status::unsupported;
    }
    if (CUDA_SUCCESS == result) {
        *local_base = made;
    }
    return driver.answer("cuMemPoolImportPointer", result);
}

void free_pool_pointer(const driver_api &driver, const device &into, std::uint64_t local_base)
{
    (void)driver.answer("cuMemFree of a pool's pointer", in_context(driver, into.context, [&] {
                            return driver.mem_free(local_base);
                        }));
}

void close_pool(const driver_api &driver, CUmemoryPool pool)
{
    (void)driver.answer("cuMemPoolDestroy",
                        in_any_context(driver, [&] { return driver.mem_pool_destroy(pool); }));
}

} // namespace gpusm
