// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// memory.cc: see memory.h.
#include "driver.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>

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

bool free_ranges::take(std::uint64_t len, std::uint64_t alignment, std::uint64_t *at)
{
    for (auto it = free_.begin(); it != free_.end(); ++it) {
        const auto [from, has] = *it;
        const std::uint64_t start = round_up(from, alignment);
        if (start + len > from + has) {
            continue;
        }
        free_.erase(it);
        if (from < start) {
            free_[from] = start - from;
        }
        if (start + len < from + has) {
            free_[start + len] = from + has - (start + len);
        }
        bytes_ -= len;
        *at = start;
        return true;
    }
    return false;
}

// ---------------------------------------------------------------- blocks

namespace {

std::uint64_t own_bytes[max_devices]; // made by this process

const char *group()
{
    static const char *const text = std::getenv("GPUSM_SOFTCUDA_GROUP");
    return text != nullptr && *text != 0 ? text : "-";
}

// A block's file says in its name what it is.
bool parse_name(const char *link_text, std::string *of_group, block *out)
{
    char text[64] = {};
    const int found = std::sscanf(link_text, "/memfd:softcuda:%63[^:]:%d:%u", text, &out->device,
                                  &out->handle_types);
    *of_group = text;
    return found == 3;
}

// Length, inode and mapping of the file that the block has.
CUresult map_file(const block_ref &made, block_ref *out)
{
    struct stat st {};
    REQUIRE(fstat(made->fd, &st) == 0 && st.st_size > 0, CUDA_ERROR_INVALID_VALUE);
    made->len_bytes = static_cast<std::uint64_t>(st.st_size);
    made->inode = st.st_ino;
    void *at = mmap(nullptr, made->len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    made->fd, 0);
    REQUIRE(at != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    made->alias = static_cast<char *>(at);
    return give(out, made);
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
    if (own) {
        own_bytes[device] -= len_bytes;
    }
}

CUresult make_block(int device, std::uint64_t len_bytes, unsigned handle_types, block_ref *out)
{
    REQUIRE(len_bytes <= device_bytes - own_bytes[device], CUDA_ERROR_OUT_OF_MEMORY);
    auto made = std::make_shared<block>();
    made->device = device;
    made->handle_types = handle_types;
    char name[160];
    std::snprintf(name, sizeof(name), "softcuda:%.63s:%d:%u", group(), device, handle_types);
    made->fd = memfd_create(name, MFD_CLOEXEC);
    REQUIRE(made->fd >= 0 && ftruncate(made->fd, static_cast<off_t>(len_bytes)) == 0,
            CUDA_ERROR_OUT_OF_MEMORY);
    TRY(map_file(made, out));
    made->own = true;
    own_bytes[device] += len_bytes;
    return CUDA_SUCCESS;
}

CUresult adopt_block(int fd, block_ref *out)
{
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    char name[160] = {};
    std::string of_group;
    auto made = std::make_shared<block>();
    made->fd = fd;
    REQUIRE(readlink(link.c_str(), name, sizeof(name) - 1) > 0 &&
                parse_name(name, &of_group, made.get()),
            CUDA_ERROR_INVALID_VALUE);
    return map_file(made, out);
}

std::uint64_t taken_bytes(int device)
{
    std::unordered_set<std::uint64_t> seen;
    std::uint64_t sum = 0;
    DIR *processes = opendir("/proc");
    while (const dirent *process = readdir(processes)) {
        const std::string folder = std::string("/proc/") + process->d_name + "/fd";
        DIR *files = std::isdigit(process->d_name[0]) != 0 ? opendir(folder.c_str()) : nullptr;
        while (const dirent *file = files != nullptr ? readdir(files) : nullptr) {
            char name[160] = {};
            std::string of_group;
            struct stat st {};
            block what;
            if (readlinkat(dirfd(files), file->d_name, name, sizeof(name) - 1) > 0 &&
                parse_name(name, &of_group, &what) && of_group == group() &&
                what.device == device && fstatat(dirfd(files), file->d_name, &st, 0) == 0 &&
                seen.insert(st.st_ino).second) {
                sum += static_cast<std::uint64_t>(st.st_size);
            }
        }
        if (files != nullptr) {
            closedir(files);
        }
    }
    closedir(processes);
    return sum;
}

CUresult give_copy(int fd, void *out)
{
    const int copy = fcntl(fd, F_DUPFD, 0);
    REQUIRE(copy >= 0, CUDA_ERROR_OUT_OF_MEMORY);
    return give(static_cast<int *>(out), copy);
}

int open_foreign(int pid, int fd, std::uint64_t inode)
{
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    int mine = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat st {};
    if (mine >= 0 && (fstat(mine, &st) != 0 || st.st_ino != inode)) {
        close(mine); // the number means another file by now
        mine = -1;
    }
    return mine;
}

wire_place place_of(const range &what, std::uint32_t magic)
{
    return {magic,
            getpid(),
            what.memory->fd,
            what.memory->device,
            what.memory->inode,
            what.offset,
            what.len_bytes,
            {}};
}

CUresult open_place(const wire_place &place, block_ref *out)
{
    const int fd = open_foreign(place.pid, place.fd, place.inode);
    block_ref found;
    REQUIRE(fd >= 0, CUDA_ERROR_INVALID_VALUE);
    TRY(adopt_block(fd, &found));
    REQUIRE(place.offset < found->len_bytes && place.len_bytes <= found->len_bytes - place.offset,
            CUDA_ERROR_INVALID_VALUE);
    return give(out, std::move(found));
}

// ---------------------------------------------------------------- addresses

std::uint64_t address_space::reserve(std::uint64_t len_bytes)
{
    len_bytes = round_up(len_bytes, block_granularity);
    std::uint64_t at = 0;
    if (free_.take(len_bytes, block_granularity, &at)) {
        return at;
    }
    constexpr std::uint64_t usual_chunk = 64ull << 30;
    const std::uint64_t chunk = std::max(usual_chunk, len_bytes) + block_granularity;
    void *got = mmap(nullptr, chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) {
        return 0;
    }
    auto base = reinterpret_cast<std::uint64_t>(got);
    chunks_[base] = chunk;
    std::uint64_t first = round_up(base, block_granularity);
    free_.release(first, (base + chunk - first) / block_granularity * block_granularity);
    return free_.take(len_bytes, block_granularity, &at) ? at : 0;
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
            const unsigned allowed =
                access_of(r->from != nullptr ? r->from->access : r->access, device);
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
    const std::uint64_t need = round_up(len_bytes, small_alignment);
    std::uint64_t at = 0;
    auto in = std::find_if(pages_.begin(), pages_.end(),
                           [&](page &each) { return each.free.take(need, small_alignment, &at); });
    if (in == pages_.end()) {
        page fresh;
        TRY(make_block(device, block_granularity, handle_types, &fresh.memory));
        fresh.base = drv().space.reserve(block_granularity);
        REQUIRE(fresh.base != 0, CUDA_ERROR_OUT_OF_MEMORY);
        fresh.free.release(0, block_granularity);
        fresh.free.take(need, small_alignment, &at);
        in = pages_.insert(pages_.end(), std::move(fresh));
    }
    out->base = in->base + at;
    out->memory = in->memory;
    out->offset = at;
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
