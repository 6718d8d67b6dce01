// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// buffer.cc: allocation of every memory kind (VMM: buffer_vmm.cc), seeded content and its
// comparison. Content of device memory travels through a host buffer in chunks.
#include "bench/common/buffer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace gpusm::bench {

namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 20;
constexpr std::size_t host_alignment = 4096;

std::uint64_t mix(std::uint64_t value)
{
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

std::uint64_t pattern_word(std::uint64_t mixed_seed, std::size_t word)
{
    return mix(mixed_seed ^ (word * 0xD6E8FEB86659FD93u));
}

std::vector<unsigned char> &staging()
{
    static thread_local std::vector<unsigned char> memory(chunk_bytes);
    return memory;
}

std::vector<unsigned char> &expectation()
{
    static thread_local std::vector<unsigned char> memory(chunk_bytes);
    return memory;
}

CUdeviceptr device_address(const void *pointer)
{
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
}

std::string first_difference(const unsigned char *got, const unsigned char *expected,
                             std::size_t len_bytes, std::size_t position)
{
    if (0 == std::memcmp(got, expected, len_bytes)) {
        return {};
    }
    std::size_t i = 0;
    while (got[i] == expected[i]) {
        ++i;
    }
    char text[96];
    std::snprintf(text, sizeof(text), "byte %zu is 0x%02x, expected 0x%02x", position + i, got[i],
                  expected[i]);
    return text;
}

} // namespace

std::optional<memory_kind> parse_kind(std::string_view letter)
{
    if (1 != letter.size() || std::string_view::npos == all_kinds.find(letter[0])) {
        return std::nullopt;
    }
    return static_cast<memory_kind>(letter[0]);
}

const char *describe(memory_kind kind)
{
    switch (kind) {
    case memory_kind::host:
        return "host";
    case memory_kind::device:
        return "device";
    case memory_kind::managed:
        return "managed";
    case memory_kind::vmm:
        return "VMM, exportable";
    case memory_kind::vmm_private:
        return "VMM, not exportable";
    case memory_kind::pool:
        return "pool, exportable";
    case memory_kind::vmm_chunks:
        return "VMM, exportable, of several chunks";
    case memory_kind::pool_private:
        return "default pool";
    case memory_kind::page_locked:
        return "page-locked host";
    }
    return "?";
}

std::uint8_t pattern_byte(std::uint64_t seed, std::size_t position)
{
    return static_cast<std::uint8_t>(pattern_word(mix(seed), position / 8) >> (8 * (position % 8)));
}

void write_pattern(void *to, std::size_t len_bytes, std::uint64_t seed, std::size_t position)
{
    auto *bytes = static_cast<unsigned char *>(to);
    std::size_t done = 0;
    while (done < len_bytes && 0 != (position + done) % 8) {
        bytes[done] = pattern_byte(seed, position + done);
        ++done;
    }
    const std::uint64_t mixed = mix(seed);
    for (; done + 8 <= len_bytes; done += 8) {
        const std::uint64_t word = pattern_word(mixed, (position + done) / 8);
        std::memcpy(bytes + done, &word, 8);
    }
    for (; done < len_bytes; ++done) {
        bytes[done] = pattern_byte(seed, position + done);
    }
}

std::unique_ptr<buffer> buffer::make(memory_kind kind, std::size_t len_bytes, const device *gpu,
                                     std::string *why, std::size_t offset_bytes)
{
    if (needs_gpu(kind) && nullptr == gpu) {
        *why = std::string(describe(kind)) + " memory needs a CUDA device";
        return nullptr;
    }
    std::unique_ptr<buffer> made(new buffer(kind, len_bytes, offset_bytes, gpu));
    const std::string error = made->allocate(std::max<std::size_t>(1, len_bytes + offset_bytes));
    if (!error.empty()) {
        *why = std::string("cannot allocate ") + std::to_string(len_bytes + offset_bytes) +
               " bytes of " + describe(kind) + " memory: " + error;
        return nullptr;
    }
    return made;
}

std::string buffer::allocate(std::size_t bytes)
{
    CUdeviceptr pointer = 0;
    switch (kind_) {
    case memory_kind::host:
        return allocate_host(bytes);
    case memory_kind::device: {
        CUresult result = gpu_->driver().mem_alloc(&pointer, bytes);
        if (CUDA_SUCCESS != result) {
            return driver_error(gpu_->driver(), "cuMemAlloc", result);
        }
        address_ = static_cast<std::uintptr_t>(pointer);
        return {};
    }
    case memory_kind::managed: {
        CUresult result = gpu_->driver().mem_alloc_managed(&pointer, bytes, CU_MEM_ATTACH_GLOBAL);
        if (CUDA_SUCCESS != result) {
            return driver_error(gpu_->driver(), "cuMemAllocManaged", result);
        }
        address_ = static_cast<std::uintptr_t>(pointer);
        return {};
    }
    case memory_kind::vmm:
        return allocate_vmm(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
    case memory_kind::vmm_private:
        return allocate_vmm(bytes, CU_MEM_HANDLE_TYPE_NONE, 1);
    case memory_kind::vmm_chunks:
        return allocate_vmm(bytes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 2);
    case memory_kind::pool:
        return allocate_pool(bytes);
    case memory_kind::pool_private:
        return allocate_from_default_pool(bytes);
    case memory_kind::page_locked: {
        void *made = nullptr;
        CUresult result = gpu_->driver().mem_host_alloc(&made, bytes, CU_MEMHOSTALLOC_PORTABLE);
        if (CUDA_SUCCESS != result) {
            return driver_error(gpu_->driver(), "cuMemHostAlloc", result);
        }
        address_ = reinterpret_cast<std::uintptr_t>(made);
        return {};
    }
    }
    return "unknown kind";
}

std::string buffer::allocate_host(std::size_t bytes)
{
    void *pointer = nullptr;
    if (0 != posix_memalign(&pointer, host_alignment, bytes)) {
        return "out of memory";
    }
    address_ = reinterpret_cast<std::uintptr_t>(pointer);
    return {};
}

std::string buffer::allocate_pool(std::size_t bytes)
{
    const driver_api &driver = gpu_->driver();
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = gpu_->ordinal();
    CUresult result = driver.mem_pool_create(&pool_, &properties);
    if (CUDA_SUCCESS != result) {
        pool_ = nullptr;
        return driver_error(driver, "cuMemPoolCreate", result);
    }
    CUdeviceptr pointer = 0;
    result = driver.mem_alloc_from_pool_async(&pointer, bytes, pool_, nullptr);
    if (CUDA_SUCCESS != result) {
        return driver_error(driver, "cuMemAllocFromPoolAsync", result);
    }
    address_ = static_cast<std::uintptr_t>(pointer);
    result = driver.stream_synchronize(nullptr);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(driver, "cuStreamSynchronize", result);
}

std::string buffer::allocate_from_default_pool(std::size_t bytes)
{
    const driver_api &driver = gpu_->driver();
    CUdeviceptr pointer = 0;
    CUresult result = driver.mem_alloc_async(&pointer, bytes, nullptr);
    if (CUDA_SUCCESS != result) {
        return driver_error(driver, "cuMemAllocAsync", result);
    }
    address_ = static_cast<std::uintptr_t>(pointer);
    result = driver.stream_synchronize(nullptr);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(driver, "cuStreamSynchronize", result);
}

buffer::~buffer()
{
    const auto pointer = static_cast<CUdeviceptr>(address_);
    switch (kind_) {
    case memory_kind::host:
        std::free(reinterpret_cast<void *>(address_));
        break;
    case memory_kind::device:
    case memory_kind::managed:
        if (0 != address_) {
            (void)gpu_->driver().mem_free(pointer);
        }
        break;
    case memory_kind::vmm:
    case memory_kind::vmm_private:
    case memory_kind::vmm_chunks:
        release_vmm();
        break;
    case memory_kind::pool:
    case memory_kind::pool_private:
        if (0 != address_) {
            (void)gpu_->driver().mem_free_async(pointer, nullptr);
            (void)gpu_->driver().stream_synchronize(nullptr);
        }
        if (nullptr != pool_) {
            (void)gpu_->driver().mem_pool_destroy(pool_);
        }
        break;
    case memory_kind::page_locked:
        if (0 != address_) {
            (void)gpu_->driver().mem_free_host(reinterpret_cast<void *>(address_));
        }
        break;
    }
}

std::string buffer::write(std::size_t offset, const void *from, std::size_t len_bytes)
{
    if (0 == len_bytes) {
        return {};
    }
    if (!is_gpu(kind_)) {
        std::memcpy(at(offset), from, len_bytes);
        return {};
    }
    CUresult result = gpu_->driver().memcpy_htod(device_address(at(offset)), from, len_bytes);
    if (CUDA_SUCCESS != result) {
        return driver_error(gpu_->driver(), "cuMemcpyHtoD", result);
    }
    // A copy from pageable memory may return before the device has the bytes.
    result = gpu_->driver().stream_synchronize(nullptr);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(gpu_->driver(), "cuStreamSynchronize", result);
}

std::string buffer::read(std::size_t offset, void *to, std::size_t len_bytes) const
{
    if (0 == len_bytes) {
        return {};
    }
    if (!is_gpu(kind_)) {
        std::memcpy(to, at(offset), len_bytes);
        return {};
    }
    CUresult result = gpu_->driver().memcpy_dtoh(to, device_address(at(offset)), len_bytes);
    return CUDA_SUCCESS == result ? std::string()
                                  : driver_error(gpu_->driver(), "cuMemcpyDtoH", result);
}

std::string buffer::fill(std::size_t offset, std::size_t len_bytes, std::uint64_t seed)
{
    if (!is_gpu(kind_)) {
        write_pattern(at(offset), len_bytes, seed, 0);
        return {};
    }
    std::string error;
    for (std::size_t done = 0; done < len_bytes && error.empty(); done += chunk_bytes) {
        const std::size_t now = std::min(chunk_bytes, len_bytes - done);
        write_pattern(staging().data(), now, seed, done);
        error = write(offset + done, staging().data(), now);
    }
    return error;
}

std::string buffer::poison(std::size_t offset, std::size_t len_bytes)
{
    if (!is_gpu(kind_)) {
        std::memset(at(offset), poison_byte, len_bytes);
        return {};
    }
    std::memset(staging().data(), poison_byte, std::min(chunk_bytes, len_bytes));
    std::string error;
    for (std::size_t done = 0; done < len_bytes && error.empty(); done += chunk_bytes) {
        error = write(offset + done, staging().data(), std::min(chunk_bytes, len_bytes - done));
    }
    return error;
}

std::string buffer::compare(std::size_t offset, std::size_t len_bytes, std::uint64_t seed,
                            std::size_t position) const
{
    for (std::size_t done = 0; done < len_bytes; done += chunk_bytes) {
        const std::size_t now = std::min(chunk_bytes, len_bytes - done);
        write_pattern(expectation().data(), now, seed, position + done);
        const auto *got = static_cast<const unsigned char *>(at(offset + done));
        if (is_gpu(kind_)) {
            std::string error = read(offset + done, staging().data(), now);
            if (!error.empty()) {
                return error;
            }
            got = staging().data();
        }
        std::string difference = first_difference(got, expectation().data(), now, position + done);
        if (!difference.empty()) {
            return difference;
        }
    }
    return {};
}

std::string buffer::compare_poison(std::size_t offset, std::size_t len_bytes) const
{
    std::memset(expectation().data(), poison_byte, std::min(chunk_bytes, len_bytes));
    for (std::size_t done = 0; done < len_bytes; done += chunk_bytes) {
        const std::size_t now = std::min(chunk_bytes, len_bytes - done);
        std::string error = read(offset + done, staging().data(), now);
        if (error.empty()) {
            error = first_difference(staging().data(), expectation().data(), now, done);
        }
        if (!error.empty()) {
            return error;
        }
    }
    return {};
}

} // namespace gpusm::bench
