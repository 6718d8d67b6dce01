// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// strided_support.h: layouts of memory with gaps, made at random, and where their packed bytes lie,
// found by loops without any division.
#ifndef GPUSM_TESTS_STRIDED_SUPPORT_H
#define GPUSM_TESTS_STRIDED_SUPPORT_H

#include "opal/mca/common/gpusm/gpu/strided.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace gpusm_test {

// A layout, and its list of blocks with their guide in host memory, which is empty when it is a
// regular one. A kernel needs layout.blocks besides.
struct any_layout {
    gpusm::strided_layout layout{};
    std::vector<gpusm::strided_block> list;

    const gpusm::strided_block *host_list() const { return list.empty() ? nullptr : list.data(); }
    std::uint64_t bits() const { return gpusm::strided_bits(layout, host_list()); }

    // The places of an element's packed bytes, from its address on.
    std::vector<std::int64_t> element() const
    {
        std::vector<std::int64_t> places;
        if (list.empty()) {
            add_level(layout.levels, layout.first, &places);
        }
        for (std::size_t i = 0; i < layout.block_count; ++i) {
            const std::uint64_t end =
                i + 1 < layout.block_count ? list[i + 1].before : layout.element_bytes;
            for (std::uint64_t byte = 0; byte < end - list[i].before; ++byte) {
                places.push_back(list[i].offset + static_cast<std::int64_t>(byte));
            }
        }
        return places;
    }
    // Those of the packed bytes [begin, begin + len_bytes) of elements from address 0 on.
    std::vector<std::int64_t> places(std::uint64_t begin, std::uint64_t len_bytes) const
    {
        const std::vector<std::int64_t> one = element();
        std::vector<std::int64_t> all;
        std::int64_t at = 0;
        for (std::uint64_t packed = 0; packed < begin + len_bytes; at += layout.extent) {
            for (std::size_t i = 0; i < one.size() && packed < begin + len_bytes; ++i, ++packed) {
                if (packed >= begin) {
                    all.push_back(at + one[i]);
                }
            }
        }
        return all;
    }

  private:
    void add_level(std::uint32_t levels, std::int64_t at, std::vector<std::int64_t> *places) const
    {
        if (0 == levels) {
            for (std::uint64_t byte = 0; byte < layout.block_bytes; ++byte) {
                places->push_back(at + static_cast<std::int64_t>(byte));
            }
            return;
        }
        const gpusm::strided_level &level = layout.level[levels - 1];
        for (std::uint64_t i = 0; i < level.count; ++i, at += level.stride) {
            add_level(levels - 1, at, places);
        }
    }
};

// Some number of `unit`s, from `least` to `most`.
inline std::int64_t some(std::mt19937 &random, std::uint64_t unit, unsigned least, unsigned most)
{
    return static_cast<std::int64_t>(unit * (least + random() % (most - least + 1)));
}

inline std::int64_t either_sign(std::mt19937 &random, std::int64_t value)
{
    return 0 == random() % 2 ? value : -value;
}

// Blocks in up to four nested loops, in any direction; all lengths and places are multiples of
// `unit`.
inline any_layout regular_layout(std::mt19937 &random, std::uint64_t unit, std::uint32_t levels)
{
    any_layout made;
    made.layout.levels = static_cast<std::uint16_t>(levels);
    made.layout.first = either_sign(random, some(random, unit, 0, 9));
    std::int64_t span = some(random, unit, 1, 5);
    made.layout.block_bytes = made.layout.element_bytes = static_cast<std::uint64_t>(span);
    for (std::uint32_t level = 0; level < levels; ++level) {
        const std::uint64_t count = 1 + random() % 5;
        const std::int64_t stride = span + some(random, unit, 0, 3);
        made.layout.level[level] = {count, either_sign(random, stride)};
        made.layout.element_bytes *= count;
        span += static_cast<std::int64_t>(count - 1) * stride;
    }
    made.layout.extent = either_sign(random, span + some(random, unit, 0, 3));
    return made;
}

// Blocks of those lengths in packed order, which lie in memory in any order.
inline any_layout listed_layout(std::mt19937 &random, std::uint64_t unit,
                                const std::vector<std::uint64_t> &lengths)
{
    any_layout made;
    std::vector<std::size_t> in_memory(lengths.size());
    std::iota(in_memory.begin(), in_memory.end(), std::size_t{0});
    std::shuffle(in_memory.begin(), in_memory.end(), random);
    const std::int64_t begin = either_sign(random, some(random, unit, 0, 9));
    std::int64_t end = begin;
    made.list.resize(lengths.size());
    for (const std::size_t nth : in_memory) {
        end += some(random, unit, 0, 3);
        made.list[nth].offset = end;
        end += static_cast<std::int64_t>(lengths[nth]);
    }
    for (std::size_t nth = 0; nth < lengths.size(); ++nth) {
        made.list[nth].before = made.layout.element_bytes;
        made.layout.element_bytes += lengths[nth];
    }
    made.layout.extent = either_sign(random, end - begin + some(random, unit, 0, 3));
    gpusm::strided_add_guide(&made.layout, &made.list);
    return made;
}

// Blocks of any length, in any order; some are much longer than the others.
inline any_layout irregular_layout(std::mt19937 &random, std::uint64_t unit, std::size_t blocks)
{
    std::vector<std::uint64_t> lengths(blocks);
    for (std::uint64_t &length : lengths) {
        length = static_cast<std::uint64_t>(some(random, unit, 1, 0 == random() % 8 ? 60 : 5));
    }
    return listed_layout(random, unit, lengths);
}

inline any_layout random_layout(std::mt19937 &random, std::uint64_t unit)
{
    const unsigned kind = random() % 8;
    return kind <= gpusm::strided_levels ? regular_layout(random, unit, kind)
                                         : irregular_layout(random, unit, 1 + random() % 40);
}

} // namespace gpusm_test

#endif
