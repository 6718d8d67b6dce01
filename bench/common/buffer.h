// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// buffer.h: memory of every kind that a program may hand to MPI, with seeded content that can be
// compared byte for byte.
#ifndef GPUSM_BENCH_BUFFER_H
#define GPUSM_BENCH_BUFFER_H

#include "bench/common/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpusm::bench {

enum class memory_kind : char {
    host = 'H',         // pageable host memory
    device = 'D',       // cuMemAlloc
    managed = 'M',      // cuMemAllocManaged
    vmm = 'V',          // cuMemCreate, exportable as a file descriptor
    vmm_private = 'W',  // cuMemCreate, not exportable
    pool = 'A',         // cuMemAllocFromPoolAsync, from a pool exportable as a file descriptor
    vmm_chunks = 'C',   // several cuMemCreate side by side in one address range, each exportable
    pool_private = 'P', // cuMemAllocAsync: the device's default pool, not exportable
    page_locked = 'R',  // cuMemHostAlloc: host memory that the driver knows
};

inline constexpr std::string_view all_kinds = "HDMVWACPR";

std::optional<memory_kind> parse_kind(std::string_view letter);
const char *describe(memory_kind kind);
inline char letter_of(memory_kind kind)
{
    return static_cast<char>(kind);
}
// Memory of a device, which the processor does not touch.
inline bool is_gpu(memory_kind kind)
{
    return memory_kind::host != kind && memory_kind::page_locked != kind;
}
// Memory that takes a CUDA device to allocate.
inline bool needs_gpu(memory_kind kind)
{
    return memory_kind::host != kind;
}

// The content that `fill` writes: from byte number `position` of the message made from `seed` on.
// Neighbouring positions and neighbouring seeds have nothing in common, so a byte that is stale,
// shifted or from another message differs with probability 255/256, and any longer piece surely.
void write_pattern(void *to, std::size_t len_bytes, std::uint64_t seed, std::size_t position);

// What poison() writes into every byte.
inline constexpr std::uint8_t poison_byte = 0xA5;

// One allocation; freed with the object. All functions work on the context that is current in the
// calling thread (device::make_current). Functions that return a string return an empty one on
// success and one sentence otherwise.
class buffer {
  public:
    // `offset_bytes` moves data() away from the allocation's (at least 256-byte aligned) start.
    // `gpu` may be nullptr for host memory. nullptr and a sentence in *why when it fails.
    static std::unique_ptr<buffer> make(memory_kind kind, std::size_t len_bytes, const device *gpu,
                                        std::string *why, std::size_t offset_bytes = 0);
    ~buffer();
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;

    void *data() const { return at(0); }
    void *at(std::size_t offset) const
    {
        return reinterpret_cast<void *>(address_ + offset_bytes_ + offset);
    }
    std::size_t len_bytes() const { return len_bytes_; }
    // Of the whole allocation, as far as it is known here: the driver may take more.
    std::size_t allocated_bytes() const
    {
        return 0 != mapped_bytes_ ? mapped_bytes_ : len_bytes_ + offset_bytes_;
    }
    memory_kind kind() const { return kind_; }

    // Finished, on the device too, when they return: a message may be sent from it at once.
    [[nodiscard]] std::string fill(std::size_t offset, std::size_t len_bytes, std::uint64_t seed);
    [[nodiscard]] std::string poison(std::size_t offset, std::size_t len_bytes);
    [[nodiscard]] std::string poison() { return poison(0, len_bytes_); }
    // Every byte of [offset, offset + len) against the message made from `seed`; the sentence
    // names the first wrong byte. `position` is that of the first byte within the message.
    [[nodiscard]] std::string compare(std::size_t offset, std::size_t len_bytes, std::uint64_t seed,
                                      std::size_t position = 0) const;
    // That [offset, offset + len) still holds what poison() wrote.
    [[nodiscard]] std::string compare_poison(std::size_t offset, std::size_t len_bytes) const;
    // Plain bytes, for content that is not a pattern.
    [[nodiscard]] std::string write(std::size_t offset, const void *from, std::size_t len_bytes);
    [[nodiscard]] std::string read(std::size_t offset, void *to, std::size_t len_bytes) const;

  private:
    buffer(memory_kind kind, std::size_t len_bytes, std::size_t offset_bytes, const device *gpu)
        : kind_(kind), len_bytes_(len_bytes), offset_bytes_(offset_bytes), gpu_(gpu)
    {
    }
    std::string allocate(std::size_t bytes);
    std::string allocate_vmm(std::size_t bytes);
    std::string allocate_pool(std::size_t bytes);
    std::string compare_chunk(std::size_t offset, std::size_t len_bytes,
                              std::size_t position) const;

    memory_kind kind_;
    std::size_t len_bytes_;
    std::size_t offset_bytes_;
    const device *gpu_;
    std::uintptr_t address_ = 0;    // 0 until allocated
    std::function<void()> release_; // set by what has allocated it
    std::size_t mapped_bytes_ = 0;  // VMM: how much of its addresses has memory, from its start on
    std::vector<CUmemGenericAllocationHandle> chunks_; // VMM
};

// An address as the driver wants it.
inline CUdeviceptr driver_address(const void *pointer)
{
    return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
}
inline CUdeviceptr address_of(const buffer &memory)
{
    return driver_address(memory.data());
}

} // namespace gpusm::bench

#endif
