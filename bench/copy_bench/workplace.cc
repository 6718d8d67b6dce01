// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// workplace.cc: set-up of devices and memory; patterns and their comparison.
#include "bench/copy_bench/workplace.h"

#include "opal/mca/btl/gpusm/ipc/legacy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace gpusm::copy_bench {

namespace {

constexpr std::size_t staging_bytes = std::size_t{16} << 20; // a multiple of 8
constexpr std::size_t word_bytes = sizeof(std::uint64_t);

// The word that belongs to `offset`, a multiple of 8, of the memory. The factor is odd, so no two
// of 2^64 words are the same; a wrong byte is any byte of its complement.
constexpr std::uint64_t step = 0x9e3779b97f4a7c15U;

void write_words(std::uint64_t *out, std::size_t offset, std::size_t len_bytes, bool right)
{
    std::uint64_t word = (offset / word_bytes + 1) * step;
    const std::uint64_t turned = right ? 0 : ~std::uint64_t{0};
    for (std::size_t i = 0; i < (len_bytes + word_bytes - 1) / word_bytes; ++i) {
        out[i] = word ^ turned;
        word += step;
    }
}

// What [offset, offset + len_bytes) of a destination has to hold: right words where the copies
// are, poison between them.
void write_expected(std::uint64_t *out, const cell &of, std::size_t offset, std::size_t len_bytes)
{
    write_words(out, offset, len_bytes, true);
    auto *bytes = reinterpret_cast<unsigned char *>(out);
    for (std::size_t i = offset / of.stride(); i * of.stride() < offset + len_bytes; ++i) {
        const std::size_t from = std::max(i * of.stride() + of.len_bytes, offset);
        const std::size_t to = std::min((i + 1) * of.stride(), offset + len_bytes);
        for (std::size_t at = from; at < to; ++at) {
            bytes[at - offset] = static_cast<unsigned char>(~bytes[at - offset]);
        }
    }
}

std::string wrong_byte(const cell &of, std::size_t at, unsigned got, unsigned expected)
{
    const std::size_t behind = at % of.stride();
    std::string text = "wrong byte " + std::to_string(behind) + " of copy " +
                       std::to_string(at / of.stride()) + ": " + std::to_string(got) +
                       ", expected " + std::to_string(expected);
    return behind < of.len_bytes ? text : text + ", which lies behind the copy";
}

} // namespace

pinned_memory::pinned_memory(const driver_api &driver, std::size_t len_bytes) : driver_(driver)
{
    CUresult result = driver.mem_host_alloc(&data_, len_bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (CUDA_SUCCESS != result) {
        data_ = nullptr;
        return;
    }
    result = driver.mem_host_get_device_pointer(&on_device_, data_, 0);
    if (CUDA_SUCCESS != result) {
        (void)driver.mem_free_host(data_);
        data_ = nullptr;
    }
}

pinned_memory::~pinned_memory()
{
    if (nullptr != data_) {
        (void)driver_.mem_free_host(data_);
    }
}

std::unique_ptr<workplace> workplace::open(bool same_gpu, std::size_t room_bytes, std::string *why)
{
    std::unique_ptr<workplace> made(new workplace);
    made->lender_ = lender::start(same_gpu, room_bytes, why);
    if (nullptr == made->lender_) {
        return nullptr;
    }
    made->gpu_ = bench::device::open(0, why);
    if (nullptr == made->gpu_) {
        return nullptr;
    }
    made->driver_ = driver_load();
    if (nullptr == made->driver_) {
        *why = "the CUDA driver lacks a function that gpusm needs";
        return nullptr;
    }
    made->devices_ = std::make_unique<device_table>(made->driver());
    if (status::ok != made->devices_->for_host(&made->on_)) {
        *why = "gpusm cannot use the context of " + made->gpu_->name();
        return nullptr;
    }
    *why = made->make_room(room_bytes);
    return why->empty() ? std::move(made) : nullptr;
}

std::string workplace::make_room(std::size_t room_bytes)
{
    std::uint64_t opened = 0;
    const status answer = open_memory(driver(), on(), lender_->offer().handle, &opened);
    if (status::unsupported == answer) {
        return std::string("memory of ") + lender_->offer().device +
               " cannot be opened on device " + std::to_string(gpu_->ordinal()) +
               "; --same-gpu needs one device only";
    }
    if (status::ok != answer) {
        return std::string("the peer's memory cannot be opened: ") + to_string(answer);
    }
    source_ = opened;
    CUresult result = gpu_->driver().mem_alloc(&destination_, room_bytes);
    if (CUDA_SUCCESS != result) {
        destination_ = 0;
        return sentence("cuMemAlloc", result);
    }
    result = make_stream(driver(), &stream_);
    if (CUDA_SUCCESS != result) {
        stream_ = nullptr;
        return sentence("cuStreamCreateWithPriority", result);
    }
    staging_ = std::make_unique<pinned_memory>(driver(), std::min(staging_bytes, room_bytes));
    if (nullptr == staging_->data()) {
        return "no pinned host memory to be had";
    }
    expected_ = std::make_unique<std::uint64_t[]>(std::min(staging_bytes, room_bytes) / word_bytes);
    return upload(source_, room_bytes, true);
}

workplace::~workplace()
{
    if (nullptr == on_) {
        return;
    }
    staging_ = nullptr;
    if (nullptr != stream_) {
        (void)driver().stream_destroy(stream_);
    }
    if (0 != destination_) {
        (void)gpu_->driver().mem_free(destination_);
    }
    if (0 != source_) {
        close_memory(driver(), on(), source_);
    }
    devices_ = nullptr;
    lender_ = nullptr;
}

std::string workplace::describe() const
{
    return "copied by device " + std::to_string(gpu_->ordinal()) + ", " + gpu_->name() + ", " +
           gpu_->uuid() + ", driver: CUDA " + std::to_string(gpu_->driver_version() / 1000) + "." +
           std::to_string(gpu_->driver_version() % 1000 / 10) +
           (gpu_->is_software() ? " (software driver: times mean nothing)" : "") +
           "\n# out of memory of " + lender_->offer().device +
           ", of another process, opened by CUDA IPC";
}

CUdeviceptr workplace::staging() const
{
    return reinterpret_cast<std::uintptr_t>(staging_->data());
}

std::string workplace::transfer(CUdeviceptr to, CUdeviceptr from, std::size_t len_bytes)
{
    CUresult result = driver().memcpy_async(to, from, len_bytes, stream_);
    if (CUDA_SUCCESS == result) {
        result = driver().stream_synchronize(stream_);
    }
    return CUDA_SUCCESS == result ? std::string()
                                  : sentence("a copy from or to host memory", result);
}

std::string workplace::upload(CUdeviceptr to, std::size_t room_bytes, bool right)
{
    std::string error;
    for (std::size_t at = 0; at < room_bytes && error.empty(); at += staging_bytes) {
        const std::size_t piece = std::min(staging_bytes, room_bytes - at);
        write_words(static_cast<std::uint64_t *>(staging_->data()), at, piece, right);
        error = transfer(to + at, staging(), piece);
    }
    return error;
}

std::string workplace::poison(const cell &of)
{
    return upload(destination_, of.room_bytes(), false);
}

std::string workplace::compare(const cell &of)
{
    for (std::size_t at = 0; at < of.room_bytes(); at += staging_bytes) {
        const std::size_t piece = std::min(staging_bytes, of.room_bytes() - at);
        const std::string error = transfer(staging(), destination_ + at, piece);
        if (!error.empty()) {
            return error;
        }
        write_expected(expected_.get(), of, at, piece);
        if (0 == std::memcmp(expected_.get(), staging_->data(), piece)) {
            continue;
        }
        const auto *got = static_cast<const unsigned char *>(staging_->data());
        const auto *expected = reinterpret_cast<const unsigned char *>(expected_.get());
        const auto first = std::mismatch(got, got + piece, expected);
        return wrong_byte(of, at + static_cast<std::size_t>(first.first - got), *first.first,
                          *first.second);
    }
    return {};
}

} // namespace gpusm::copy_bench
