// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gpu/entry_patch.h: to be told of every call of a function in another library, whoever makes it
// and however the caller came by its address.
//
//   move_instructions   the beginning of a function, rewritten to run elsewhere
//   entry_patch         the function's first bytes are a jump to a stub of ours
//
// The stub tells us, does what the overwritten instructions did, and jumps back behind them:
//
//   caller ─▶ function: jmp stub        stub: notice(first, second)
//                       rest  ◀─────────      the moved instructions; jmp rest
//
// So nothing of ours is on the stack while the function itself runs. For x86-64 only; elsewhere
// every function is one that cannot be patched.
#ifndef GPUSM_GPU_ENTRY_PATCH_H
#define GPUSM_GPU_ENTRY_PATCH_H

#include "opal/mca/btl/gpusm/base/status.h"

#include <cstddef>
#include <cstdint>

namespace gpusm {

// Called by the thread that calls the function, before it, with its first two arguments, which are
// integers or pointers as all others are. It may come from any thread and several at once, must
// not throw, and must not call the function. A function with one argument: the second is anything.
using entry_notice = void (*)(std::uint64_t first, std::uint64_t second);

// What a jump to anywhere within 2 GiB takes.
inline constexpr std::size_t entry_jump_bytes = 5;
// The most that move_instructions writes.
inline constexpr std::size_t most_moved_bytes = 11;

// Writes the instructions that the first `entry_jump_bytes` at `from` are part of to `to`, where
// they will be run, and returns how many bytes they are. 0: one of them is not on the short list of
// what a function begins with, or could not reach from `to` what it names.
std::size_t move_instructions(const unsigned char *from, unsigned char *to);

// A patch of one function. Installing and removing are for one thread at a time; calls of the
// function may come at any moment. One restriction is left to luck, as no process can stop its own
// threads: a thread must not just be between the first instructions, those that are moved.
// The 8 KiB of a stub stay mapped for good, because a thread may be in it, and because somebody who
// patches the same function later will jump there.
class entry_patch {
  public:
    entry_patch() = default;
    ~entry_patch() { remove(); }
    entry_patch(const entry_patch &) = delete;
    entry_patch &operator=(const entry_patch &) = delete;

    // From when this returns `ok`, calls of the function at `entry` are told to `notice`.
    // `unsupported`: that function cannot be patched safely, nothing has changed, and *why says in
    // a few words why; among others it is when somebody else has patched it before.
    status install(void *entry, entry_notice notice, const char **why);

    // No notice is being given when this returns, and none will be. The function gets its own
    // bytes back, unless somebody else has patched it since.
    void remove();

    bool installed() const { return data_ != nullptr; }

    // The address at which the function can be called without a notice; it remains valid. Null
    // before install.
    void *original() const { return original_; }

  private:
    struct stub_data;

    std::uint64_t *entry_ = nullptr; // the first 8 bytes of the function
    std::uint64_t before_ = 0;       // what they were
    std::uint64_t after_ = 0;        // what they are now, as long as they are ours
    void *original_ = nullptr;
    stub_data *data_ = nullptr; // null: not installed
};

} // namespace gpusm

#endif
