// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/ipc/by_descriptor.h"

#include <bit>

#include <fcntl.h>

namespace gpusm {

namespace {

constexpr CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

void *as_pointer(const file_descriptor &fd)
{
    return reinterpret_cast<void *>(static_cast<std::intptr_t>(fd.get()));
}

// Takes what `make` (a CUresult from an int *) makes, if it does. A program started by this one
// would keep the memory taken, hence close-on-exec.
template <typename Make> CUresult make_descriptor(file_descriptor *out, Make &&make)
{
    int fd = -1;
    const CUresult result = make(&fd);
    if (CUDA_SUCCESS == result) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        *out = file_descriptor(fd);
    }
    return result;
}

// A reference to an allocation, given back when the scope ends.
struct allocation_reference {
    // To what is mapped at `address`.
    allocation_reference(const driver_api &api, std::uint64_t address)
        : driver(api),
          result(api.mem_retain_allocation_handle(&handle, reinterpret_cast<void *>(address)))
    {
    }
    // To what a descriptor stands for.
    allocation_reference(const driver_api &api, const file_descriptor &of)
        : driver(api),
          result(api.mem_import_from_shareable_handle(&handle, as_pointer(of), by_descriptor))
    {
    }
    ~allocation_reference()
    {
        if (CUDA_SUCCESS == result) {
            (void)driver.answer("cuMemRelease", driver.mem_release(handle));
        }
    }
    allocation_reference(const allocation_reference &) = delete;
    allocation_reference &operator=(const allocation_reference &) = delete;

    const driver_api &driver;
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result;
};

// The device of an allocation that can be exported by descriptor; false for every other one.
bool exportable(const driver_api &driver, CUmemGenericAllocationHandle handle, int *ordinal)
{
    CUmemAllocationProp properties{};
    if (CUDA_SUCCESS != driver.mem_get_allocation_properties(&properties, handle)) {
        return false;
    }
    *ordinal = properties.location.id;
    return CU_MEM_LOCATION_TYPE_DEVICE == properties.location.type &&
           0 != (static_cast<unsigned>(properties.requestedHandleTypes) & by_descriptor);
}

// The chunk around `address`. RANGE_START_ADDR and RANGE_SIZE would not do: for such memory they
// describe the reserved addresses.
status describe_chunk(const driver_api &driver, std::uint64_t address, memory_chunk *out)
{
    CUdeviceptr base = 0;
    std::size_t len_bytes = 0;
    CUresult result = driver.mem_get_address_range(&base, &len_bytes, address);
    if (CUDA_ERROR_NOT_FOUND == result || CUDA_ERROR_INVALID_VALUE == result) {
        return status::unsupported; // nothing is mapped there
    }
    if (CUDA_SUCCESS != result) {
        return driver.report("cuMemGetAddressRange", result);
    }
    if (address - base >= len_bytes) {
        return status::unsupported;
    }
    // The driver promises the very handle that was mapped, so two handles are two allocations that
    // it has described as one range.
    int ordinal = -1;
    const allocation_reference first(driver, base);
    const allocation_reference last(driver, base + len_bytes - 1);
    if (CUDA_SUCCESS != first.result || CUDA_SUCCESS != last.result ||
        first.handle != last.handle || !exportable(driver, first.handle, &ordinal)) {
        return status::unsupported;
    }
    unsigned long long buffer_id = 0;
    result = driver.pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, base);
    if (CUDA_SUCCESS != result) {
        return driver.report("asking for BUFFER_ID", result);
    }
    *out = {base, len_bytes, buffer_id, ordinal};
    return status::ok;
}

status map_chunk(const driver_api &driver, const file_descriptor &fd, std::uint64_t at,
                 std::uint64_t len_bytes)
{
    const allocation_reference memory(driver, fd); // the mapping keeps it from then on
    if (CUDA_SUCCESS != memory.result) {
        return driver.answer("cuMemImportFromShareableHandle", memory.result);
    }
    const CUresult result = driver.mem_map(at, len_bytes, 0, memory.handle, 0);
    // Of all arguments, only the length is not our own.
    return CUDA_ERROR_INVALID_VALUE == result ? status::bad_peer
                                              : driver.answer("cuMemMap", result);
}

CUmemAccessDesc access_by(const device &into)
{
    return {{CU_MEM_LOCATION_TYPE_DEVICE, into.ordinal}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

// Unmaps the first bytes of a range, whole chunks, and gives back its addresses, which nobody can
// as long as something is mapped there.
void give_back(const driver_api &driver, std::uint64_t base, std::uint64_t len_bytes,
               std::uint64_t mapped_bytes)
{
    if (0 == mapped_bytes ||
        status::ok == driver.report("cuMemUnmap", driver.mem_unmap(base, mapped_bytes))) {
        (void)driver.report("cuMemAddressFree", driver.mem_address_free(base, len_bytes));
    }
}

} // namespace

status list_run(const driver_api &driver, const device &of, std::uint64_t address,
                std::uint64_t len_bytes, const std::function<bool(std::uint64_t)> &may_take,
                std::vector<memory_chunk> *out)
{
    const driver_scope scope(driver, of.context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    memory_chunk next;
    out->clear();
    const auto find = [&](std::uint64_t at) {
        const status s = out->size() < most_descriptors ? describe_chunk(driver, at, &next)
                                                        : status::unsupported;
        return status::ok == s && !out->empty() && next.ordinal != out->front().ordinal
                   ? status::unsupported
                   : s;
    };
    const auto end = [out] { return out->back().base + out->back().len_bytes; };
    while (out->empty() || end() < address + len_bytes) {
        if (const status s = find(out->empty() ? address : end()); status::ok != s) {
            return s;
        }
        out->push_back(next);
    }
    CUdeviceptr start = 0;
    std::size_t reserved_bytes = 0;
    if (CUDA_SUCCESS !=
            driver.pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) ||
        CUDA_SUCCESS != driver.pointer_get_attribute(&reserved_bytes,
                                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)) {
        return status::ok;
    }
    const auto may_have = [&](std::uint64_t at) {
        return at - start < reserved_bytes && may_take(at) && status::ok == find(at);
    };
    while (may_have(end())) {
        out->push_back(next);
    }
    while (may_have(out->front().base - 1)) {
        out->insert(out->begin(), next);
    }
    return status::ok;
}

status export_chunks(const driver_api &driver, const std::vector<memory_chunk> &chunks,
                     descriptor_message *out)
{
    const driver_scope scope(driver);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    out->lengths.clear();
    out->fds.clear();
    for (const memory_chunk &each : chunks) {
        const allocation_reference memory(driver, each.base);
        if (CUDA_SUCCESS != memory.result) {
            return driver_is_down(memory.result) ? status::driver_failed : status::not_found;
        }
        out->lengths.push_back(each.len_bytes);
        const CUresult result = make_descriptor(&out->fds.emplace_back(), [&](int *fd) {
            return driver.mem_export_to_shareable_handle(fd, memory.handle, by_descriptor, 0);
        });
        if (CUDA_SUCCESS != result) {
            return CUDA_ERROR_INVALID_VALUE == result
                       ? status::unsupported
                       : driver.answer("cuMemExportToShareableHandle", result);
        }
    }
    return status::ok;
}

status map_chunks(const driver_api &driver, const device &into, const descriptor_message &chunks,
                  std::uint64_t len_bytes, std::uint64_t *local_base)
{
    const driver_scope scope(driver);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    std::uint64_t left = len_bytes;
    for (const std::uint64_t each : chunks.lengths) {
        if (0 == each || each > left) {
            return status::bad_peer;
        }
        left -= each;
    }
    if (0 != left) {
        return status::bad_peer;
    }
    CUdeviceptr base = 0;
    const CUresult result = driver.mem_address_reserve(&base, len_bytes, 0, 0, 0);
    if (CUDA_ERROR_INVALID_VALUE == result) {
        return status::bad_peer; // more than there are addresses, or no multiple of what it maps
    }
    status s = driver.answer("cuMemAddressReserve", result);
    if (status::ok != s) {
        return s;
    }
    std::uint64_t mapped_bytes = 0;
    for (std::size_t i = 0; status::ok == s && i < chunks.fds.size(); ++i) {
        s = map_chunk(driver, chunks.fds[i], base + mapped_bytes, chunks.lengths[i]);
        mapped_bytes += status::ok == s ? chunks.lengths[i] : 0;
    }
    if (status::ok == s) {
        const CUmemAccessDesc access = access_by(into);
        s = driver.answer("cuMemSetAccess", driver.mem_set_access(base, len_bytes, &access, 1));
    }
    if (status::ok != s) {
        give_back(driver, base, len_bytes, mapped_bytes);
        return s;
    }
    *local_base = base;
    return status::ok;
}

void unmap_chunks(const driver_api &driver, std::uint64_t local_base, std::uint64_t len_bytes)
{
    const driver_scope scope(driver);
    if (scope.entered()) { // else the driver is gone, and its mappings with it
        give_back(driver, local_base, len_bytes, len_bytes);
    }
}

CUmemoryPool pool_of(const driver_api &driver, std::uint64_t address, bool *exportable)
{
    CUmemoryPool pool = nullptr;
    std::uint64_t handle_types = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    void *values[] = {&pool, &handle_types};
    if (CUDA_SUCCESS != driver.pointer_get_attributes(2, attributes, values, address)) {
        return nullptr;
    }
    *exportable = 0 != (handle_types & by_descriptor);
    return pool;
}

status export_pool(const driver_api &driver, CUmemoryPool pool, file_descriptor *out)
{
    const CUresult result = in_any_context(driver, [&] {
        return make_descriptor(out, [&](int *fd) {
            return driver.mem_pool_export_to_shareable_handle(fd, pool, by_descriptor, 0);
        });
    });
    return CUDA_ERROR_INVALID_VALUE == result
               ? status::unsupported
               : driver.answer("cuMemPoolExportToShareableHandle", result);
}

status export_pool_pointer(const driver_api &driver, const device &of, CUmemoryPool pool,
                           std::uint64_t address, exported_memory *out)
{
    const driver_scope scope(driver, of.context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    CUdeviceptr base = 0;
    std::size_t len_bytes = 0;
    CUresult result = driver.mem_get_address_range(&base, &len_bytes, address);
    if (CUDA_SUCCESS != result) {
        return driver.report("cuMemGetAddressRange", result);
    }
    CUmemPoolPtrExportData data{};
    result = driver.mem_pool_export_pointer(&data, base);
    if (CUDA_ERROR_INVALID_VALUE == result) {
        // A pool that was never exported (driver 580 says so); its descriptor need not stay.
        file_descriptor unused;
        if (const status s = export_pool(driver, pool, &unused); status::ok != s) {
            return s;
        }
        result = driver.mem_pool_export_pointer(&data, base);
    }
    if (CUDA_SUCCESS == result) {
        *out = {base, len_bytes, std::bit_cast<memory_handle>(data)};
    }
    return CUDA_ERROR_INVALID_VALUE == result // a pool that this process has imported itself
               ? status::unsupported
               : driver.answer("cuMemPoolExportPointer", result);
}

status import_pool(const driver_api &driver, const file_descriptor &fd, CUmemoryPool *out)
{
    return driver.answer("cuMemPoolImportFromShareableHandle", in_any_context(driver, [&] {
                             return driver.mem_pool_import_from_shareable_handle(
                                 out, as_pointer(fd), by_descriptor, 0);
                         }));
}

status allow_pool(const driver_api &driver, CUmemoryPool pool, const device &into)
{
    const CUmemAccessDesc access = access_by(into);
    return driver.answer("cuMemPoolSetAccess", in_any_context(driver, [&] {
                             return driver.mem_pool_set_access(pool, &access, 1);
                         }));
}

status import_pool_pointer(const driver_api &driver, const device &into, CUmemoryPool pool,
                           const memory_handle &handle, std::uint64_t *local_base)
{
    auto data = std::bit_cast<CUmemPoolPtrExportData>(handle);
    CUdeviceptr made = 0;
    const CUresult result = in_context(
        driver, into.context, [&] { return driver.mem_pool_import_pointer(&made, pool, &data); });
    if (CUDA_SUCCESS == result) {
        *local_base = made;
    }
    return CUDA_ERROR_ALREADY_MAPPED == result ? status::not_found
                                               : driver.answer("cuMemPoolImportPointer", result);
}

void close_pool(const driver_api &driver, CUmemoryPool pool)
{
    (void)driver.answer("cuMemPoolDestroy",
                        in_any_context(driver, [&] { return driver.mem_pool_destroy(pool); }));
}

} // namespace gpusm
