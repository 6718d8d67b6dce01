// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stage_support.h: what the tests of staging rings share.
#ifndef GPUSM_TESTS_UNIT_STAGE_SUPPORT_H
#define GPUSM_TESTS_UNIT_STAGE_SUPPORT_H

#include "opal/mca/btl/gpusm/shm/stage.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpusm {

inline constexpr std::size_t kibi = 1024;
// 64 blocks of 64 KiB, pieces of 32 to 256 KiB.
inline constexpr stage_shape usual{64 * kibi, 32 * kibi, 256 * kibi};
// Every piece is one block.
inline constexpr stage_shape even{64 * kibi, 64 * kibi, 64 * kibi};

inline status fetch(stage_ring *ring, std::uint32_t peer, std::uint32_t get,
                    std::uint64_t len_bytes)
{
    return ring->fetch(peer, get, 0x1000, len_bytes, nullptr, 0);
}

inline std::vector<stage_piece> cut_all(stage_ring *ring)
{
    std::vector<stage_piece> all;
    for (stage_piece each; ring->cut(&each);) {
        all.push_back(each);
    }
    return all;
}

inline std::vector<stage_word> all_words(stage_ring *ring)
{
    std::vector<stage_word> all;
    for (stage_word each; ring->next_word(&each);) {
        all.push_back(each);
    }
    return all;
}

} // namespace gpusm

#endif
