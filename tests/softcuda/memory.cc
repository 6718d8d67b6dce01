// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memory.cc: see memory.h.
#include "memory.h"
#include "pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace softcuda {

void free_ranges::release(std::uint64_t at, std::uint64_t len)
{
    bytes_ += len;
    auto next = free_.lower_bound(at);
    if (next != free_.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == at) {
            at = before->first;
            len += before->second;
            free_.erase(before);
        }
    }
    if (next != free_.end() && at + len == next->first) {
        len += next->second;
        free_.erase(next);
    }
    free_[at] = len;
}

bool free_ranges::take_at(std::uint64_t at, std::uint64_t len)
{
    auto it = free_.upper_bound(at);
    if (it == free_.begin()) {
        return false;
    }
    --it;
    std::uint64_t from = it->first;
    std::uint64_t to = from + it->second;
    if (at + len > to) {
        return false;
    }
    free_.erase(it);
    if (from < at) {
        free_[from] = at - from;
    }
    if (at + len < to) {
        free_[at + len] = to - (at + len);
    }
    bytes_ -= len;
    return true;
}

bool free_ranges::take(std::uint64_t len, std::uint64_t alignment, std::uint64_t *at)
{
    for (const auto &[from, has] : free_) {
        std::uint64_t start = round_up(from, alignment);
        if (start + len <= from + has) {
            *at = start;
            return take_at(start, len);
        }
    }
    return false;
}

// ---------------------------------------------------------------- blocks

namespace {

char *map_alias(int fd, std::uint64_t len)
{
    void *at = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    return at == MAP_FAILED ? nullptr : static_cast<char *>(at);
}

// Never the same in two processes alive together, and not repeated by a later process.
std::uint64_t new_block_id()
{
    static std::uint64_t next = 0;
    if (next == 0) {
        timespec now{};
        clock_gettime(CLOCK_REALTIME, &now);
        next = (static_cast<std::uint64_t>(getpid()) << 40) ^
               (static_cast<std::uint64_t>(now.tv_nsec) << 16) ^
               (static_cast<std::uint64_t>(now.tv_sec) << 30);
        next |= 1;
    }
    return next++;
}

int make_memfd(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 && errno == EMFILE) { // one descriptor per block: take what the system allows
        rlimit limit{};
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit(RLIMIT_NOFILE, &limit);
            fd = memfd_create(name, MFD_CLOEXEC);
        }
    }
    return fd;
}

} // namespace

block::~block()
{
    if (alias != nullptr) {
        munmap(alias, len_bytes);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (id != 0) {
        drv().taken.remove(id);
    }
}

block_ref make_block(int device, std::uint64_t len_bytes, unsigned handle_types, CUresult *why)
{
    auto made = std::make_shared<block>();
    std::uint64_t id = new_block_id();
    *why = CUDA_ERROR_OUT_OF_MEMORY;
    if (!drv().taken.add(id, device, len_bytes, drv().memory_bytes)) {
        return nullptr;
    }
    made->id = id;
    made->device = device;
    made->len_bytes = len_bytes;
    char name[96];
    std::snprintf(name, sizeof(name), "softcuda:%d:%u:%llx", device, handle_types,
                  static_cast<unsigned long long>(id));
    made->fd = make_memfd(name);
    struct stat st {};
    if (made->fd < 0 || ftruncate(made->fd, static_cast<off_t>(len_bytes)) != 0 ||
        fstat(made->fd, &st) != 0) {
        return nullptr;
    }
    made->inode = st.st_ino;
    made->alias = map_alias(made->fd, len_bytes);
    if (made->alias == nullptr) {
        return nullptr;
    }
    *why = CUDA_SUCCESS;
    return made;
}

block_ref adopt_block(int fd, unsigned *handle_types, bool keep_fd, CUresult *why)
{
    char link[64];
    char name[160] = {};
    int device = -1;
    unsigned types = 0;
    unsigned long long id = 0;
    struct stat st {};
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    *why = CUDA_ERROR_INVALID_VALUE;
    if (readlink(link, name, sizeof(name) - 1) < 0 ||
        std::sscanf(name, "/memfd:softcuda:%d:%u:%llx", &device, &types, &id) != 3 || device < 0 ||
        device >= max_devices || id == 0 || fstat(fd, &st) != 0 || st.st_size <= 0) {
        close(fd);
        return nullptr;
    }
    auto made = std::make_shared<block>();
    made->device = device;
    made->len_bytes = static_cast<std::uint64_t>(st.st_size);
    made->inode = st.st_ino;
    made->alias = map_alias(fd, made->len_bytes);
    made->fd = keep_fd ? fd : -1;
    if (!keep_fd) {
        close(fd);
    }
    if (made->alias == nullptr) {
        *why = CUDA_ERROR_OUT_OF_MEMORY;
        return nullptr;
    }
    made->id = id;
    drv().taken.join(id, device, made->len_bytes);
    if (handle_types != nullptr) {
        *handle_types = types;
    }
    *why = CUDA_SUCCESS;
    return made;
}

// ---------------------------------------------------------------- addresses

std::uint64_t address_space::reserve(std::uint64_t len_bytes, std::uint64_t alignment)
{
    len_bytes = round_up(len_bytes, block_granularity);
    alignment = std::max(alignment, block_granularity);
    std::uint64_t at = 0;
    if (free_.take(len_bytes, alignment, &at)) {
        return at;
    }
    constexpr std::uint64_t usual_chunk = 64ull << 30;
    std::uint64_t chunk = std::max(usual_chunk, len_bytes + alignment) + block_granularity;
    void *got = mmap(nullptr, chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) {
        chunk = len_bytes + alignment + block_granularity;
        got = mmap(nullptr, chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (got == MAP_FAILED) {
        return 0;
    }
    auto base = reinterpret_cast<std::uint64_t>(got);
    chunks_[base] = chunk;
    std::uint64_t first = round_up(base, block_granularity);
    free_.release(first, (base + chunk - first) / block_granularity * block_granularity);
    return free_.take(len_bytes, alignment, &at) ? at : 0;
}

bool address_space::reserve_at(std::uint64_t at, std::uint64_t len_bytes)
{
    return at % block_granularity == 0 && free_.take_at(at, round_up(len_bytes, block_granularity));
}

void address_space::unreserve(std::uint64_t at, std::uint64_t len_bytes)
{
    free_.release(at, round_up(len_bytes, block_granularity));
}

bool address_space::contains(std::uint64_t address) const
{
    auto it = chunks_.upper_bound(address);
    return it != chunks_.begin() && address < std::prev(it)->first + std::prev(it)->second;
}

range *address_space::find(std::uint64_t address)
{
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) {
        return nullptr;
    }
    range &r = std::prev(it)->second;
    return address - r.base < r.len_bytes ? &r : nullptr;
}

range *address_space::find_base(std::uint64_t base)
{
    auto it = ranges_.find(base);
    return it == ranges_.end() ? nullptr : &it->second;
}

range &address_space::insert(const range &what)
{
    range &r = ranges_[what.base];
    r = what;
    r.buffer_id = next_buffer_id_++;
    return r;
}

bool address_space::overlaps(std::uint64_t base, std::uint64_t len_bytes)
{
    auto it = ranges_.lower_bound(base + len_bytes);
    if (it == ranges_.begin()) {
        return false;
    }
    const range &r = std::prev(it)->second;
    return r.base + r.len_bytes > base;
}

bool address_space::resolve(std::uint64_t address, std::size_t len_bytes, int device, bool write,
                            std::vector<stretch> *out)
{
    while (len_bytes > 0) {
        range *r = find(address);
        if (r == nullptr) {
            if (contains(address)) {
                return false;
            }
            auto next = ranges_.upper_bound(address); // pageable up to the next known range
            std::size_t part = len_bytes;
            if (next != ranges_.end() && next->first - address < part) {
                part = next->first - address;
            }
            out->push_back({reinterpret_cast<char *>(address), part, nullptr});
            address += part;
            len_bytes -= part;
            continue;
        }
        if (r->kind == memory_kind::vmm || r->from != nullptr) {
            std::uint64_t access = r->from != nullptr ? r->from->access : r->access;
            std::uint64_t allowed = (access >> (2 * device)) & 3;
            if (allowed == 0 || (write && allowed != 3)) {
                return false;
            }
        }
        std::uint64_t inside = address - r->base;
        std::size_t part = std::min<std::uint64_t>(len_bytes, r->len_bytes - inside);
        char *at = r->memory != nullptr ? r->memory->alias + r->offset + inside
                                        : reinterpret_cast<char *>(address);
        out->push_back({at, part, r->memory});
        address += part;
        len_bytes -= part;
    }
    return true;
}

// ---------------------------------------------------------------- small allocations

CUresult small_heap::allocate(int device, std::uint64_t len_bytes, unsigned handle_types,
                              range *out)
{
    std::uint64_t need = round_up(len_bytes, small_alignment);
    std::uint64_t at = 0;
    for (page &p : pages_) {
        if (p.free.take(need, small_alignment, &at)) {
            out->base = p.base + at;
            out->memory = p.memory;
            out->offset = at;
            return CUDA_SUCCESS;
        }
    }
    CUresult why = CUDA_SUCCESS;
    page fresh;
    fresh.memory = make_block(device, block_granularity, handle_types, &why);
    if (fresh.memory == nullptr) {
        return why;
    }
    fresh.base = drv().space.reserve(block_granularity);
    if (fresh.base == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh.free.release(0, block_granularity);
    fresh.free.take(need, small_alignment, &at);
    out->base = fresh.base + at;
    out->memory = fresh.memory;
    out->offset = at;
    pages_.push_back(std::move(fresh));
    return CUDA_SUCCESS;
}

bool small_heap::release(const range &what)
{
    for (auto p = pages_.begin(); p != pages_.end(); ++p) {
        if (what.base - p->base < block_granularity) {
            p->free.release(what.offset, round_up(what.len_bytes, small_alignment));
            if (p->free.bytes() == block_granularity) {
                drv().space.unreserve(p->base, block_granularity);
                pages_.erase(p);
            }
            return true;
        }
    }
    return false;
}

small_heap::~small_heap()
{
    for (const page &p : pages_) {
        drv().space.unreserve(p.base, block_granularity);
    }
}

} // namespace softcuda
