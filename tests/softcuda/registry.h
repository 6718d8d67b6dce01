// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// registry.h: how much of each device is taken, over all processes of this user.
#ifndef GPUSM_SOFTCUDA_REGISTRY_H
#define GPUSM_SOFTCUDA_REGISTRY_H

#include <cstdint>

namespace softcuda {

inline constexpr int max_devices = 16;

// A small shared file, <GPUSM_SOFTCUDA_DIR>/softcuda.<uid>.registry.v1, holds one row per
// (block of memory, process that has it mapped). A block's bytes count once, and as long as one
// row of a living process names it: memory that its owner freed stays taken until the last
// importer closes. The file lock and the proof of life are kernel locks of an open file, so a
// killed process leaves neither a lock nor a row that is believed. The last process to exit
// removes the file; after a kill the next process clears what was left.
//
// Where the file cannot be made (directory full or missing) each process counts for itself.
// All functions are thread-safe.
class registry {
  public:
    void open();
    void close(); // at exit: gives everything of this process back

    // False when the device (physical number) has not that much left. `shared` blocks of another
    // process are never refused.
    bool add(std::uint64_t block_id, int device, std::uint64_t bytes, std::uint64_t limit_bytes);
    void join(std::uint64_t block_id, int device, std::uint64_t bytes);
    void remove(std::uint64_t block_id);
    std::uint64_t used(int device);

  private:
    struct shared_table;
    class locked;
    void reap();
    void insert(std::uint64_t block_id, int device, std::uint64_t bytes);
    bool named(std::uint64_t block_id, std::uint32_t except) const;
    void drop(std::uint32_t row);
    void count_again();

    shared_table *table_ = nullptr;
    int fd_ = -1;
    std::uint32_t me_ = 0;
};

} // namespace softcuda

#endif
