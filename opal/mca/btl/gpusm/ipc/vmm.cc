// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/btl/gpusm/ipc/vmm.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace gpusm {

namespace {

constexpr CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

struct descriptor {
    int fd;
};

// A reference to an allocation, given back when the scope ends.
struct allocation_reference {
    // To what is mapped at `address`.
    allocation_reference(const driver_api &api, std::uint64_t address)
        : driver(api),
          result(api.mem_retain_allocation_handle(&handle, reinterpret_cast<void *>(address)))
    {
    }
    // To what a descriptor stands for.
    allocation_reference(const driver_api &api, descriptor of)
        : driver(api),
          result(api.mem_import_from_shareable_handle(
              &handle, reinterpret_cast<void *>(static_cast<std::intptr_t>(of.fd)), by_descriptor))
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

status export_chunk(const driver_api &driver, std::uint64_t base, int *fd)
{
    const allocation_reference memory(driver, base);
    if (CUDA_SUCCESS != memory.result) {
        return driver_is_down(memory.result) ? status::driver_failed : status::not_found;
    }
    const CUresult result =
        driver.mem_export_to_shareable_handle(fd, memory.handle, by_descriptor, 0);
    if (CUDA_ERROR_INVALID_VALUE == result) {
        return status::unsupported;
    }
    if (CUDA_SUCCESS != result) {
        return driver.answer("cuMemExportToShareableHandle", result);
    }
    // A program started by this one would keep the memory taken.
    (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return status::ok;
}

status map_chunk(const driver_api &driver, int fd, std::uint64_t at, std::uint64_t len_bytes)
{
    const allocation_reference memory(driver, descriptor{fd}); // the mapping keeps it from then on
    if (CUDA_SUCCESS != memory.result) {
        return driver.answer("cuMemImportFromShareableHandle", memory.result);
    }
    const CUresult result = driver.mem_map(at, len_bytes, 0, memory.handle, 0);
    // Of all arguments, only the length is not our own.
    return CUDA_ERROR_INVALID_VALUE == result ? status::bad_peer
                                              : driver.answer("cuMemMap", result);
}

status allow_chunks(const driver_api &driver, const device &into, std::uint64_t at,
                    std::uint64_t len_bytes)
{
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, into.ordinal},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return driver.answer("cuMemSetAccess", driver.mem_set_access(at, len_bytes, &access, 1));
}

// Unmaps the first `mapped` chunks and gives back the addresses of all. The first failure is
// reported; addresses that are still mapped cannot be given back.
void give_back(const driver_api &driver, std::uint64_t base, std::uint64_t total,
               const std::uint64_t *lengths, std::size_t mapped)
{
    CUresult result = CUDA_SUCCESS;
    const char *what = "cuMemUnmap";
    for (std::uint64_t i = 0, at = base; i < mapped; at += lengths[i], ++i) {
        const CUresult now = driver.mem_unmap(at, lengths[i]);
        result = CUDA_SUCCESS == result ? now : result;
    }
    if (CUDA_SUCCESS == result) {
        what = "cuMemAddressFree";
        result = driver.mem_address_free(base, total);
    }
    if (CUDA_SUCCESS != result) {
        (void)driver.report(what, result);
    }
}

} // namespace

bool can_export_chunk(const driver_api &driver, std::uint64_t address)
{
    const capture_scope scope(driver);
    if (!scope.entered()) {
        return false;
    }
    int ordinal = -1;
    const allocation_reference memory(driver, address);
    return CUDA_SUCCESS == memory.result && exportable(driver, memory.handle, &ordinal);
}

status list_chunks(const driver_api &driver, const device &of, std::uint64_t address,
                   std::uint64_t len_bytes, std::vector<memory_chunk> *out, std::size_t most)
{
    if (0 == len_bytes || len_bytes > UINT64_MAX - address) {
        return status::bad_argument;
    }
    const driver_scope scope(driver, of.context);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    std::vector<memory_chunk> found;
    for (std::uint64_t at = address; at < address + len_bytes;) {
        memory_chunk chunk;
        if (const status s = describe_chunk(driver, at, &chunk); status::ok != s) {
            return s;
        }
        found.push_back(chunk);
        if (found.size() > most || chunk.ordinal != found.front().ordinal) {
            return status::unsupported;
        }
        at = chunk.base + chunk.len_bytes;
    }
    *out = std::move(found);
    return status::ok;
}

void extend_run(const driver_api &driver, const device &of,
                const std::function<bool(std::uint64_t)> &may_take,
                std::vector<memory_chunk> *chunks)
{
    CUdeviceptr start = 0;
    std::size_t reserved_bytes = 0;
    const CUdeviceptr inside = chunks->front().base;
    const driver_scope scope(driver, of.context);
    if (!scope.entered() ||
        CUDA_SUCCESS !=
            driver.pointer_get_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside) ||
        CUDA_SUCCESS != driver.pointer_get_attribute(&reserved_bytes,
                                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside)) {
        return;
    }
    memory_chunk next;
    const auto finds = [&](std::uint64_t at) {
        return chunks->size() < most_chunks && at - start < reserved_bytes && may_take(at) &&
               status::ok == describe_chunk(driver, at, &next) &&
               next.ordinal == chunks->front().ordinal;
    };
    while (finds(chunks->back().base + chunks->back().len_bytes)) {
        chunks->push_back(next);
    }
    while (finds(chunks->front().base - 1)) {
        chunks->insert(chunks->begin(), next);
    }
}

bool same_chunks(const driver_api &driver, const std::vector<memory_chunk> &chunks)
{
    for (const memory_chunk &each : chunks) {
        unsigned long long buffer_id = 0;
        if (CUDA_SUCCESS != driver.pointer_get_attribute(&buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                                         each.base) ||
            buffer_id != each.buffer_id) {
            return false;
        }
    }
    return true;
}

status export_chunks(const driver_api &driver, const std::vector<memory_chunk> &chunks, int *fds)
{
    const capture_scope scope(driver);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    for (std::size_t i = 0; i < chunks.size(); ++i) {
        const status s = export_chunk(driver, chunks[i].base, &fds[i]);
        if (status::ok != s) {
            while (i > 0) {
                (void)close(fds[--i]);
            }
            return s;
        }
    }
    return status::ok;
}

status map_chunks(const driver_api &driver, const device &into, const std::uint64_t *lengths,
                  const int *fds, std::size_t count, std::uint64_t *local_base)
{
    if (0 == count) {
        return status::bad_argument;
    }
    const capture_scope scope(driver);
    if (!scope.entered()) {
        return status::driver_failed;
    }
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (0 == lengths[i] || lengths[i] > UINT64_MAX - total) {
            return status::bad_peer;
        }
        total += lengths[i];
    }
    CUdeviceptr base = 0;
    const CUresult result = driver.mem_address_reserve(&base, total, 0, 0, 0);
    if (CUDA_ERROR_INVALID_VALUE == result) {
        return status::bad_peer; // more than there are addresses, or no multiple of what it maps
    }
    if (CUDA_SUCCESS != result) {
        return driver.answer("cuMemAddressReserve", result);
    }
    std::uint64_t at = base;
    std::size_t mapped = 0;
    status s = status::ok;
    while (status::ok == s && mapped < count) {
        s = map_chunk(driver, fds[mapped], at, lengths[mapped]);
        if (status::ok == s) {
            at += lengths[mapped++];
        }
    }
    if (status::ok == s) {
        s = allow_chunks(driver, into, base, total);
    }
    if (status::ok != s) {
        give_back(driver, base, total, lengths, mapped);
        return s;
    }
    *local_base = base;
    return status::ok;
}

void unmap_chunks(const driver_api &driver, std::uint64_t local_base, const std::uint64_t *lengths,
                  std::size_t count)
{
    const capture_scope scope(driver);
    if (!scope.entered()) {
        return; // the driver is gone, and its mappings with it
    }
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        total += lengths[i];
    }
    give_back(driver, local_base, total, lengths, count);
}

} // namespace gpusm
