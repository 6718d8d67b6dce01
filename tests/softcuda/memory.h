// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memory.h: blocks (device memory as unnamed shared files), device addresses (reserved, never
// readable by the CPU) and the table of everything that has an address.
//
// A device pointer is an address in a region mapped PROT_NONE; the bytes live in a memfd that
// is mapped a second time, at an address nobody outside is told, for the copy workers. Another
// process gets at the file through /proc/<pid>/fd, so nothing has a name in a file system and
// a killed process leaves nothing behind. Everything here is used under driver().lock.
#ifndef GPUSM_SOFTCUDA_MEMORY_H
#define GPUSM_SOFTCUDA_MEMORY_H

#include "call.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace softcuda {

struct context;
struct pool;

inline constexpr int max_devices = 16;
inline constexpr std::uint64_t device_bytes = 16ull << 30; // the memory of each
inline constexpr std::uint64_t block_granularity = 2ull << 20;
inline constexpr std::uint64_t small_alignment = 512;
inline constexpr std::uint64_t small_limit = 1ull << 20; // up to here allocations share a block

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to)
{
    return (value + to - 1) / to * to;
}

// Free stretches of a range; first fit, so a freed address is given out again at once.
class free_ranges {
  public:
    void release(std::uint64_t at, std::uint64_t len);
    bool take(std::uint64_t len, std::uint64_t alignment, std::uint64_t *at);
    std::uint64_t bytes() const { return bytes_; }

  private:
    std::map<std::uint64_t, std::uint64_t> free_;
    std::uint64_t bytes_ = 0;
};

// One piece of physical device memory. Lives until the last mapping, handle or running copy
// that uses it is gone.
struct block {
    std::uint64_t inode = 0; // of its file, and no other's as long as anybody has it open
    std::uint64_t len_bytes = 0;
    int device = 0; // physical number
    unsigned handle_types = 0;
    int fd = -1;
    char *alias = nullptr;
    bool own = false; // made here
    ~block();
};
using block_ref = std::shared_ptr<block>;

CUresult make_block(int device, std::uint64_t len_bytes, unsigned handle_types, block_ref *out);
// Takes the descriptor over. Fails for a file that is not a block.
CUresult adopt_block(int fd, block_ref *out);

// What is taken of a device (physical number) by all processes of this user: the blocks that any of
// them holds, each counted once. Memory that its owner freed stays taken until the last importer
// closes it, and a process that ends or is killed holds nothing. Counted are processes with the
// same GPUSM_SOFTCUDA_GROUP.
std::uint64_t taken_bytes(int device);

// The caller of a function that exports gets a descriptor of its own of that file. Who wants it to
// be closed on exec has to see to that.
CUresult give_copy(int fd, void *out);
// Another process's open file, or -1 when it is not there any more.
int open_foreign(int pid, int fd, std::uint64_t inode);

enum class memory_kind { device, managed, host, registered, ipc, vmm, pool, pool_import };

// What lies at [base, base + len). One entry per allocation, mapping or registration.
struct range {
    std::uint64_t base = 0;
    std::uint64_t len_bytes = 0;
    memory_kind kind = memory_kind::device;
    context *ctx = nullptr; // null for VMM and pool memory
    int device = 0;         // visible ordinal
    std::uint64_t buffer_id = 0;
    block_ref memory;         // null for host and managed memory
    std::uint64_t offset = 0; // of base in the block
    bool sync_memops = false;
    pool *from = nullptr;
    std::uint64_t handle = 0;     // VMM: the allocation handle that is mapped
    std::uint64_t access = 0;     // VMM: two bits per device, CUmemAccess_flags
    int opens = 0;                // imports: how often the handle was opened
    std::uint64_t import_key = 0; // imports: base of the mapping that holds it
    bool freeing = false;         // cuMemFreeAsync was called

    bool on_device() const { return kind != memory_kind::host && kind != memory_kind::registered; }
    bool cpu_accessible() const { return memory == nullptr; }
};

// An allocation or an event as another process finds it: CUipcMemHandle, CUmemPoolPtrExportData and
// CUipcEventHandle.
struct wire_place {
    std::uint32_t magic;
    std::int32_t pid;
    std::int32_t fd;
    std::int32_t device; // physical
    std::uint64_t inode;
    std::uint64_t offset;
    std::uint64_t len_bytes;
    std::uint64_t reserved[3];
};
static_assert(sizeof(wire_place) == sizeof(CUipcMemHandle) &&
              sizeof(wire_place) == sizeof(CUmemPoolPtrExportData) &&
              sizeof(wire_place) == sizeof(CUipcEventHandle));
wire_place place_of(const range &what, std::uint32_t magic);
// The block, when it is still there and has that place.
CUresult open_place(const wire_place &place, block_ref *out);

// A stretch that the worker can really touch; `keep` holds the memory until the copy is done.
struct stretch {
    char *at;
    std::size_t len_bytes;
    block_ref keep;
};

class address_space {
  public:
    // Addresses that fault when touched; 0 when there are none left.
    std::uint64_t reserve(std::uint64_t len_bytes);
    void unreserve(std::uint64_t at, std::uint64_t len_bytes);
    bool contains(std::uint64_t address) const;

    range *find(std::uint64_t address);
    range *find_base(std::uint64_t base);
    range &insert(const range &what); // gives it a new buffer id
    void erase(std::uint64_t base) { ranges_.erase(base); }
    bool overlaps(std::uint64_t base, std::uint64_t len_bytes);
    std::map<std::uint64_t, range> &all() { return ranges_; }

    // False when part of [address, +len) is a device address without memory or without access.
    bool resolve(std::uint64_t address, std::size_t len_bytes, int device, bool write,
                 std::vector<stretch> *out);

  private:
    std::map<std::uint64_t, std::uint64_t> chunks_;
    std::map<std::uint64_t, range> ranges_;
    free_ranges free_;
    std::uint64_t next_buffer_id_ = 1;
};

// Small allocations side by side in shared 2 MiB blocks, as the real driver packs them.
class small_heap {
  public:
    // Fills base, memory and offset.
    CUresult allocate(int device, std::uint64_t len_bytes, unsigned handle_types, range *out);
    // False when the range is not from here.
    bool release(const range &what);
    ~small_heap();

  private:
    struct page {
        block_ref memory;
        std::uint64_t base;
        free_ranges free;
    };
    std::vector<page> pages_;
};

} // namespace softcuda

#endif
