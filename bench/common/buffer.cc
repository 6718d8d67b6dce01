// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// buffer.cc: allocation of every kind of memory, seeded content and its comparison. Content of
// device memory travels through a host buffer in chunks.
#include "bench/common/buffer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
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

thread_local std::vector<unsigned char> staging(chunk_bytes);
thread_local std::vector<unsigned char> expectation(chunk_bytes);

// Calls `piece` for pieces of up to chunk_bytes until one answers with a sentence.
std::string in_chunks(std::size_t len_bytes,
                      const std::function<std::string(std::size_t done, std::size_t now)> &piece)
{
    std::string error;
    for (std::size_t done = 0; done < len_bytes && error.empty(); done += chunk_bytes) {
        error = piece(done, std::min(chunk_bytes, len_bytes - done));
    }
    return error;
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
    static constexpr const char *names[] = {"host",
                                            "device",
                                            "managed",
                                            "VMM, exportable",
                                            "VMM, not exportable",
                                            "pool, exportable",
                                            "VMM, exportable, of several chunks",
                                            "default pool",
                                            "page-locked host"};
    static_assert(all_kinds.size() == std::size(names));
    return names[all_kinds.find(letter_of(kind))];
}

void write_pattern(void *to, std::size_t len_bytes, std::uint64_t seed, std::size_t position)
{
    auto *bytes = static_cast<unsigned char *>(to);
    const std::uint64_t mixed = mix(seed);
    for (std::size_t done = 0; done < len_bytes;) {
        const std::size_t inside = (position + done) % 8; // of a word
        const std::size_t now = std::min(8 - inside, len_bytes - done);
        const std::uint64_t word = pattern_word(mixed, (position + done) / 8) >> (8 * inside);
        std::memcpy(bytes + done, &word, 8 == now ? 8 : now);
        done += now;
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
    CUdeviceptr on_device = 0;
    void *on_host = nullptr;
    std::string error;
    std::function<void()> release;
    switch (kind_) {
    case memory_kind::host:
        error = 0 == posix_memalign(&on_host, host_alignment, bytes) ? "" : "out of memory";
        release = [on_host] { std::free(on_host); };
        break;
    case memory_kind::device:
        error = gpu_->judge("cuMemAlloc", gpu_->driver().mem_alloc(&on_device, bytes));
        release = [this, on_device] { (void)gpu_->driver().mem_free(on_device); };
        break;
    case memory_kind::managed:
        error =
            gpu_->judge("cuMemAllocManaged",
                        gpu_->driver().mem_alloc_managed(&on_device, bytes, CU_MEM_ATTACH_GLOBAL));
        release = [this, on_device] { (void)gpu_->driver().mem_free(on_device); };
        break;
    case memory_kind::page_locked:
        error =
            gpu_->judge("cuMemHostAlloc",
                        gpu_->driver().mem_host_alloc(&on_host, bytes, CU_MEMHOSTALLOC_PORTABLE));
        release = [this, on_host] { (void)gpu_->driver().mem_free_host(on_host); };
        break;
    case memory_kind::vmm:
    case memory_kind::vmm_private:
    case memory_kind::vmm_chunks:
        return allocate_vmm(bytes);
    case memory_kind::pool:
    case memory_kind::pool_private:
        return allocate_pool(bytes);
    }
    if (error.empty()) {
        address_ = nullptr != on_host ? reinterpret_cast<std::uintptr_t>(on_host)
                                      : static_cast<std::uintptr_t>(on_device);
        release_ = std::move(release);
    }
    return error;
}

std::string buffer::allocate_pool(std::size_t bytes)
{
    const driver_api &driver = gpu_->driver();
    CUdeviceptr pointer = 0;
    CUmemoryPool pool = nullptr;
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu_->ordinal()};
    std::string error;
    if (memory_kind::pool_private == kind_) {
        error = gpu_->judge("cuMemAllocAsync", driver.mem_alloc_async(&pointer, bytes, nullptr));
    } else {
        error = gpu_->judge("cuMemPoolCreate", driver.mem_pool_create(&pool, &properties));
        if (error.empty()) {
            error = gpu_->judge("cuMemAllocFromPoolAsync",
                                driver.mem_alloc_from_pool_async(&pointer, bytes, pool, nullptr));
        }
    }
    release_ = [&driver, pointer, pool] {
        if (0 != pointer) {
            (void)driver.mem_free_async(pointer, nullptr);
            (void)driver.stream_synchronize(nullptr);
        }
        if (nullptr != pool) {
            (void)driver.mem_pool_destroy(pool);
        }
    };
    address_ = error.empty() ? static_cast<std::uintptr_t>(pointer) : 0;
    return error.empty() ? gpu_->judge("cuStreamSynchronize", driver.stream_synchronize(nullptr))
                         : error;
}

// Memory in chunks comes in pieces of the smallest size that the driver makes, or in most_chunks
// larger ones, and data() is moved so that a buffer of more than 256 bytes always lies across the
// end of a piece.
std::string buffer::allocate_vmm(std::size_t bytes)
{
    constexpr std::size_t most_chunks = 16;
    constexpr std::size_t alignment = 256;
    const driver_api &driver = gpu_->driver();
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = memory_kind::vmm_private == kind_
                                          ? CU_MEM_HANDLE_TYPE_NONE
                                          : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu_->ordinal()};
    std::size_t granularity = 0;
    std::string error = gpu_->judge(
        "cuMemGetAllocationGranularity",
        driver.mem_get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    if (!error.empty()) {
        return error;
    }
    const auto round_up = [&](std::size_t value, std::size_t unit) {
        return (value + unit - 1) / unit * unit;
    };
    std::size_t piece_bytes = round_up(bytes, granularity);
    std::size_t wanted = piece_bytes;
    if (memory_kind::vmm_chunks == kind_) {
        piece_bytes = round_up((bytes + most_chunks - 1) / most_chunks, granularity);
        const std::size_t shift =
            (piece_bytes - bytes / 2 % piece_bytes) / alignment * alignment; // of data()
        wanted = round_up(std::max(bytes + shift, 2 * piece_bytes), piece_bytes);
        offset_bytes_ += shift;
    }
    CUdeviceptr pointer = 0;
    error =
        gpu_->judge("cuMemAddressReserve", driver.mem_address_reserve(&pointer, wanted, 0, 0, 0));
    if (!error.empty()) {
        return error;
    }
    address_ = static_cast<std::uintptr_t>(pointer);
    release_ = [this, &driver, pointer, wanted] {
        if (0 != mapped_bytes_) {
            (void)driver.mem_unmap(pointer, mapped_bytes_);
        }
        (void)driver.mem_address_free(pointer, wanted);
        for (const CUmemGenericAllocationHandle physical : chunks_) {
            (void)driver.mem_release(physical);
        }
    };
    while (mapped_bytes_ < wanted) {
        CUmemGenericAllocationHandle physical = 0;
        error =
            gpu_->judge("cuMemCreate", driver.mem_create(&physical, piece_bytes, &properties, 0));
        if (!error.empty()) {
            return error;
        }
        chunks_.push_back(physical);
        error = gpu_->judge("cuMemMap",
                            driver.mem_map(pointer + mapped_bytes_, piece_bytes, 0, physical, 0));
        if (!error.empty()) {
            return error;
        }
        mapped_bytes_ += piece_bytes;
    }
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return gpu_->judge("cuMemSetAccess", driver.mem_set_access(pointer, wanted, &access, 1));
}

buffer::~buffer()
{
    if (release_) {
        release_();
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
    const std::string error = gpu_->judge(
        "cuMemcpyHtoD", gpu_->driver().memcpy_htod(driver_address(at(offset)), from, len_bytes));
    // A copy from pageable memory may return before the device has the bytes.
    return error.empty()
               ? gpu_->judge("cuStreamSynchronize", gpu_->driver().stream_synchronize(nullptr))
               : error;
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
    return gpu_->judge("cuMemcpyDtoH",
                       gpu_->driver().memcpy_dtoh(to, driver_address(at(offset)), len_bytes));
}

std::string buffer::fill(std::size_t offset, std::size_t len_bytes, std::uint64_t seed)
{
    return in_chunks(len_bytes, [&](std::size_t done, std::size_t now) {
        write_pattern(staging.data(), now, seed, done);
        return write(offset + done, staging.data(), now);
    });
}

std::string buffer::poison(std::size_t offset, std::size_t len_bytes)
{
    std::memset(staging.data(), poison_byte, std::min(chunk_bytes, len_bytes));
    return in_chunks(len_bytes, [&](std::size_t done, std::size_t now) {
        return write(offset + done, staging.data(), now);
    });
}

std::string buffer::compare(std::size_t offset, std::size_t len_bytes, std::uint64_t seed,
                            std::size_t position) const
{
    return in_chunks(len_bytes, [&](std::size_t done, std::size_t now) {
        write_pattern(expectation.data(), now, seed, position + done);
        return compare_chunk(offset + done, now, position + done);
    });
}

std::string buffer::compare_poison(std::size_t offset, std::size_t len_bytes) const
{
    std::memset(expectation.data(), poison_byte, std::min(chunk_bytes, len_bytes));
    return in_chunks(len_bytes, [&](std::size_t done, std::size_t now) {
        return compare_chunk(offset + done, now, done);
    });
}

// With what is in `expectation`; the first byte is number `position` of a message.
std::string buffer::compare_chunk(std::size_t offset, std::size_t len_bytes,
                                  std::size_t position) const
{
    const std::string error = read(offset, staging.data(), len_bytes);
    if (!error.empty() || 0 == std::memcmp(staging.data(), expectation.data(), len_bytes)) {
        return error;
    }
    const auto wrong =
        std::mismatch(staging.begin(), staging.end(), expectation.begin()).first - staging.begin();
    const auto at = static_cast<std::size_t>(wrong);
    char text[96];
    std::snprintf(text, sizeof(text), "byte %zu is 0x%02x, expected 0x%02x", position + at,
                  staging[at], expectation[at]);
    return text;
}

} // namespace gpusm::bench
