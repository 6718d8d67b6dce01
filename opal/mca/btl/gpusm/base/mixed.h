// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// base/mixed.h: hashes of a few numbers, for small tables.
#ifndef GPUSM_BASE_MIXED_H
#define GPUSM_BASE_MIXED_H

#include <cstddef>
#include <cstdint>

namespace gpusm {

// By multiplication (Knuth, The Art of Computer Programming 3, 6.4).
inline std::uint64_t mixed(std::uint64_t so_far, std::uint64_t value)
{
    const std::uint64_t product = (so_far ^ value) * 0x9e3779b97f4a7c15U;
    return product ^ (product >> 32);
}

// Of memory: twice for its address, as buffers lie side by side.
inline std::uint64_t mixed_memory(std::uint64_t address, std::size_t len_bytes)
{
    return mixed(mixed(0, address), len_bytes);
}

// Its place in a table of 2^bits; the upper bits are the better ones. 1 to 64 bits.
inline std::size_t place_of_mixed(std::uint64_t hash, unsigned bits)
{
    return hash >> (64 - bits);
}

} // namespace gpusm

#endif
