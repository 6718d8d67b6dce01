// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/entry_patch.cc: what may be moved, the stub, and the eight bytes at the entry, which change
// in one store.
#include "opal/mca/btl/gpusm/gpu/entry_patch.h"

#include "opal/mca/btl/gpusm/base/log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

namespace gpusm {

// In the page behind the stub's code, which reads and writes it.
struct entry_patch::stub_data {
    std::atomic<std::uint64_t> running{0};     // threads that may be in the notice
    std::atomic<entry_notice> notice{nullptr}; // null: the stub only goes on
};

#if defined(__x86_64__) && defined(__LP64__)

namespace {

// An instruction; len_bytes 0: not one of those that may be moved.
struct instruction {
    std::size_t len_bytes = 0;
    std::size_t displacement_at = 0; // of four bytes, counted from the next instruction; 0: none
};

// Instructions that mean the same wherever they are, and those that name memory by its distance.
// A jump or a call is not among them, nor is a return: the function may end there, and another one
// begin within the bytes that are overwritten.
instruction decode(const unsigned char *at)
{
    const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
    if (0 == std::memcmp(at, endbr64, sizeof(endbr64))) {
        return {sizeof(endbr64)};
    }
    const std::size_t prefix = 0x40 == (at[0] & 0xf0) ? 1 : 0; // REX
    const bool wide = 1 == prefix && 0 != (at[0] & 8);
    const unsigned char code = at[prefix];
    if (0x50 == (code & 0xf0)) { // push, pop
        return {prefix + 1};
    }
    if (0xb8 == (code & 0xf8)) { // mov register, 4 bytes; wide: 8 bytes, which nobody needs here
        return {wide ? 0 : prefix + 5};
    }
    const unsigned char operands = at[prefix + 1];
    const bool registers_only = 0xc0 == (operands & 0xc0);
    const bool by_distance = 0x05 == (operands & 0xc7);
    switch (code) {
    case 0x31: // xor
    case 0x33:
    case 0x85: // test
    case 0x89: // mov
        return {registers_only ? prefix + 2 : 0};
    case 0x8b: // mov
        if (registers_only) {
            return {prefix + 2};
        }
        [[fallthrough]];
    case 0x8d: // lea
        return by_distance ? instruction{prefix + 6, prefix + 2} : instruction{};
    case 0x81: // sub or add with the stack pointer, 4 bytes
    case 0x83: // 1 byte
        if (0x48 == at[0] && (0xec == operands || 0xc4 == operands)) {
            return {0x81 == code ? std::size_t{7} : 4};
        }
        return {};
    default:
        return {};
    }
}

bool fits_in_four_bytes(std::int64_t distance)
{
    return distance == static_cast<std::int32_t>(distance);
}

std::int64_t distance_between(const unsigned char *from, const unsigned char *to)
{
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) -
                                     reinterpret_cast<std::uintptr_t>(from));
}

// Writes machine code; what it names is within 2 GiB.
class code_writer {
  public:
    explicit code_writer(unsigned char *at) : at_(at) {}

    void put(std::initializer_list<unsigned char> bytes)
    {
        at_ = std::copy(bytes.begin(), bytes.end(), at_);
    }
    // The distance of `target` from the next instruction, as the end of this one.
    void put_distance(const void *target)
    {
        const auto distance = static_cast<std::int32_t>(distance_between(
            at_ + sizeof(std::int32_t), static_cast<const unsigned char *>(target)));
        std::memcpy(at_, &distance, sizeof(distance));
        at_ += sizeof(distance);
    }
    void skip(std::size_t bytes) { at_ += bytes; }
    unsigned char *at() const { return at_; }

  private:
    unsigned char *at_;
};

constexpr std::int64_t reach_bytes = std::int64_t{1} << 31;
constexpr std::int64_t step_bytes = std::int64_t{1} << 20;

// Fresh memory that is near enough for jumps either way; null when there is no room.
unsigned char *map_near(const unsigned char *entry, std::size_t len_bytes)
{
    const auto place = reinterpret_cast<std::uintptr_t>(entry) / step_bytes * step_bytes;
    for (std::int64_t away = step_bytes; away < reach_bytes - 2 * step_bytes; away += step_bytes) {
        for (const std::int64_t offset : {-away, away}) {
            const std::uintptr_t wanted = place + static_cast<std::uintptr_t>(offset);
            void *got = mmap(reinterpret_cast<void *>(wanted), len_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (MAP_FAILED == got) {
                continue;
            }
            if (reinterpret_cast<std::uintptr_t>(got) == wanted) {
                return static_cast<unsigned char *>(got);
            }
            (void)munmap(got, len_bytes); // a kernel before 4.17 takes the address for a wish
        }
    }
    return nullptr;
}

// Is that code of this process alone, readable, and not writable? What is anything else is not
// treated as if it were.
bool is_ordinary_code(const void *at)
{
    std::FILE *maps = std::fopen("/proc/self/maps", "re");
    if (nullptr == maps) {
        return false;
    }
    const auto where = reinterpret_cast<std::uintptr_t>(at);
    bool found = false;
    char line[512];
    bool at_start = true; // a long path makes two of a line
    while (!found && std::fgets(line, sizeof(line), maps) != nullptr) {
        std::uintptr_t start = 0;
        std::uintptr_t end = 0;
        char rights[5] = "";
        found = at_start &&
                3 == std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, rights) &&
                where >= start && where < end && 0 == std::strcmp(rights, "r-xp");
        at_start = nullptr != std::strchr(line, '\n');
    }
    (void)std::fclose(maps);
    return found;
}

std::size_t page_bytes()
{
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

enum class exchange_result { done, somebody_elses, not_allowed };

// Replaces eight bytes of code at once, if they are `expected`. The page stays executable
// throughout, because other threads may be in it.
exchange_result exchange_code(std::uint64_t *at, std::uint64_t expected, std::uint64_t wanted)
{
    const std::size_t page = page_bytes();
    void *start = reinterpret_cast<void *>(reinterpret_cast<std::uintptr_t>(at) / page * page);
    if (0 != mprotect(start, page, PROT_READ | PROT_WRITE | PROT_EXEC)) {
        return exchange_result::not_allowed;
    }
    bool exchanged = false;
    // Not std::atomic_ref: sanitizers keep notes about what that changes, and have no room for
    // notes about code.
    asm volatile("lock cmpxchgq %[wanted], %[at]"
                 : "=@ccz"(exchanged), [at] "+m"(*at), "+a"(expected)
                 : [wanted] "r"(wanted)
                 : "memory");
    if (0 != mprotect(start, page, PROT_READ | PROT_EXEC)) {
        log_line(log_level::info, "a page of code stays writable");
    }
    return exchanged ? exchange_result::done : exchange_result::somebody_elses;
}

} // namespace

std::size_t move_instructions(const unsigned char *from, unsigned char *to)
{
    std::size_t moved = 0;
    while (moved < entry_jump_bytes) {
        const instruction next = decode(from + moved);
        if (0 == next.len_bytes) {
            return 0;
        }
        std::memcpy(to + moved, from + moved, next.len_bytes);
        if (next.displacement_at != 0) {
            std::int32_t displacement = 0;
            std::memcpy(&displacement, to + moved + next.displacement_at, sizeof(displacement));
            const std::int64_t from_there = displacement + distance_between(to, from);
            if (!fits_in_four_bytes(from_there)) {
                return 0;
            }
            displacement = static_cast<std::int32_t>(from_there);
            std::memcpy(to + moved + next.displacement_at, &displacement, sizeof(displacement));
        }
        moved += next.len_bytes;
    }
    return moved;
}

status entry_patch::install(void *entry, entry_notice notice, const char **why)
{
    // Aligned, so that the bytes are in one cache line and change for everybody at once.
    constexpr std::uintptr_t alignment = 16;
    const auto refuse = [why](const char *reason) {
        *why = reason;
        return status::unsupported;
    };
    if (installed()) {
        return refuse("it is patched already");
    }
    if (0 != reinterpret_cast<std::uintptr_t>(entry) % alignment) {
        return refuse("its entry is not aligned");
    }
    if (!is_ordinary_code(entry)) {
        return refuse("it is not in a page of ordinary code");
    }
    auto *const code = static_cast<unsigned char *>(entry);
    unsigned char probe[most_moved_bytes];
    std::memcpy(probe, code, sizeof(probe));
    if (0 == decode(probe).len_bytes) {
        return refuse("it begins with an instruction that is not known to be movable; somebody "
                      "else may have patched it");
    }
    const std::size_t page = page_bytes();
    unsigned char *const stub = map_near(code, 2 * page);
    if (nullptr == stub) {
        return refuse("there is no free address space near it");
    }
    auto *const data = new (stub + page) stub_data;

    code_writer writer(stub);
    writer.put({0xf0, 0x48, 0xff, 0x05}); // lock inc running
    writer.put_distance(&data->running);
    // Seven registers: those of arguments, and what tells a variadic function how many are not in
    // them. The stack is aligned for a call then.
    writer.put({0x57, 0x56, 0x52, 0x51, 0x41, 0x50, 0x41, 0x51, 0x50});
    writer.put({0x48, 0x8b, 0x05}); // mov rax, notice
    writer.put_distance(&data->notice);
    writer.put({0x48, 0x85, 0xc0}); // test rax, rax
    writer.put({0x74, 0x02});       // jz behind the call
    writer.put({0xff, 0xd0});       // call rax
    writer.put({0x58, 0x41, 0x59, 0x41, 0x58, 0x59, 0x5a, 0x5e, 0x5f});
    writer.put({0xf0, 0x48, 0xff, 0x0d}); // lock dec running
    writer.put_distance(&data->running);
    unsigned char *const original = writer.at();
    const std::size_t moved = move_instructions(code, original);
    writer.skip(moved);
    writer.put({0xe9}); // jmp behind the moved instructions
    writer.put_distance(code + moved);

    const auto give_up = [&](const char *reason) {
        (void)munmap(stub, 2 * page); // nobody has ever been there
        return refuse(reason);
    };
    if (0 == moved) {
        return give_up("its first instructions cannot be moved");
    }
    if (0 != mprotect(stub, page, PROT_READ | PROT_EXEC)) {
        return give_up("the system does not let a process make code");
    }
    data->notice.store(notice);
    auto *const word = static_cast<std::uint64_t *>(entry);
    std::uint64_t before = 0;
    std::memcpy(&before, entry, sizeof(before));
    unsigned char with_jump[sizeof(before)];
    std::memcpy(with_jump, &before, sizeof(before));
    const auto distance =
        static_cast<std::int32_t>(distance_between(code + entry_jump_bytes, stub));
    with_jump[0] = 0xe9;
    std::memcpy(with_jump + 1, &distance, sizeof(distance));
    std::uint64_t after = 0;
    std::memcpy(&after, with_jump, sizeof(after));
    switch (exchange_code(word, before, after)) {
    case exchange_result::done:
        break;
    case exchange_result::somebody_elses:
        return give_up("somebody else is patching it");
    case exchange_result::not_allowed:
        return give_up("the system does not let a process change its code");
    }
    entry_ = word;
    before_ = before;
    after_ = after;
    original_ = original;
    data_ = data;
    return status::ok;
}

void entry_patch::remove()
{
    if (!installed()) {
        return;
    }
    if (exchange_result::done != exchange_code(entry_, after_, before_)) {
        log_line(log_level::info, "a patched function stays so: somebody else has patched it, too, "
                                  "or the system does not let us");
    }
    data_->notice.store(nullptr);
    // A notice takes no time worth speaking of. One that never ends was interrupted for good, as in
    // a process that was forked meanwhile.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (data_->running.load() != 0 && std::chrono::steady_clock::now() < deadline) {
        (void)sched_yield();
    }
    data_ = nullptr;
}

#else

std::size_t move_instructions(const unsigned char *, unsigned char *)
{
    return 0;
}

status entry_patch::install(void *, entry_notice, const char **why)
{
    *why = "it is not made for this processor";
    return status::unsupported;
}

void entry_patch::remove()
{
}

#endif

} // namespace gpusm
