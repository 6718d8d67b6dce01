// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// buffer_vmm.cc: buffers of VMM memory, in one chunk or in several.
#include "bench/common/buffer.h"

#include <algorithm>

namespace gpusm::bench {

// With least_chunks above 1 the memory comes in pieces of the smallest size that the driver makes,
// or in most_chunks larger ones, and data() is moved so that a buffer of more than 256 bytes always
// lies across the end of a piece.
std::string buffer::allocate_vmm(std::size_t bytes, CUmemAllocationHandleType handle_type,
                                 std::size_t least_chunks)
{
    constexpr std::size_t most_chunks = 16;
    constexpr std::size_t alignment = 256;
    const driver_api &driver = gpu_->driver();
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = handle_type;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu_->ordinal();
    std::size_t granularity = 0;
    CUresult result =
        driver.mem_get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (CUDA_SUCCESS != result || 0 == granularity) {
        return driver_error(driver, "cuMemGetAllocationGranularity", result);
    }
    const auto round_up = [&](std::size_t value) {
        return (value + granularity - 1) / granularity * granularity;
    };
    std::size_t shift = 0; // of data()
    std::size_t chunk_bytes = round_up(bytes);
    if (1 < least_chunks) {
        chunk_bytes = round_up((bytes + most_chunks - 1) / most_chunks);
        shift = (chunk_bytes - bytes / 2 % chunk_bytes) / alignment * alignment;
    }
    const std::size_t wanted = std::max(bytes + shift, least_chunks * chunk_bytes);
    const std::size_t reserved = (wanted + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
    CUdeviceptr pointer = 0;
    result = driver.mem_address_reserve(&pointer, reserved, 0, 0, 0);
    if (CUDA_SUCCESS != result) {
        return driver_error(driver, "cuMemAddressReserve", result);
    }
    address_ = static_cast<std::uintptr_t>(pointer);
    reserved_bytes_ = reserved;
    offset_bytes_ += shift;
    while (mapped_bytes_ < reserved_bytes_) {
        const std::string error = add_chunk(properties, chunk_bytes);
        if (!error.empty()) {
            return error;
        }
    }
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    result = driver.mem_set_access(pointer, reserved, &access, 1);
    return CUDA_SUCCESS == result ? std::string() : driver_error(driver, "cuMemSetAccess", result);
}

// More memory behind what is mapped.
std::string buffer::add_chunk(const CUmemAllocationProp &properties, std::size_t bytes)
{
    const driver_api &driver = gpu_->driver();
    CUmemGenericAllocationHandle physical = 0;
    CUresult result = driver.mem_create(&physical, bytes, &properties, 0);
    if (CUDA_SUCCESS != result) {
        return driver_error(driver, "cuMemCreate", result);
    }
    chunks_.push_back(physical);
    result =
        driver.mem_map(static_cast<CUdeviceptr>(address_ + mapped_bytes_), bytes, 0, physical, 0);
    if (CUDA_SUCCESS != result) {
        return driver_error(driver, "cuMemMap", result);
    }
    mapped_bytes_ += bytes;
    return {};
}

void buffer::release_vmm()
{
    const driver_api &driver = gpu_->driver();
    const auto pointer = static_cast<CUdeviceptr>(address_);
    if (0 != mapped_bytes_) {
        (void)driver.mem_unmap(pointer, mapped_bytes_);
    }
    if (0 != reserved_bytes_) {
        (void)driver.mem_address_free(pointer, reserved_bytes_);
    }
    for (const CUmemGenericAllocationHandle physical : chunks_) {
        (void)driver.mem_release(physical);
    }
}

} // namespace gpusm::bench
