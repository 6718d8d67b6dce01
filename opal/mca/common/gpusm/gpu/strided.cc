// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
#include "opal/mca/common/gpusm/gpu/strided.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gpusm {

namespace {

std::uint64_t bits_of(std::int64_t value)
{
    return static_cast<std::uint64_t>(value);
}

// An element is one block.
bool is_whole(const strided_layout &layout)
{
    return 0 == layout.blocks && 0 == layout.levels;
}

// All that is meant lies in one block.
bool is_one_run(const strided_side &side, std::uint64_t len_bytes)
{
    const strided_layout &layout = side.layout;
    const std::uint64_t begin = side.begin % layout.element_bytes;
    return is_whole(layout) && (len_bytes <= layout.element_bytes - begin ||
                                layout.element_bytes == bits_of(layout.extent));
}

// Of a side with those bits inside of an element.
std::uint64_t bits_of(const strided_side &side, std::uint64_t bits, std::uint64_t len_bytes)
{
    if (is_one_run(side, len_bytes)) {
        return strided_address(side, 0);
    }
    const bool has_one_element = side.begin <= side.layout.element_bytes &&
                                 len_bytes <= side.layout.element_bytes - side.begin;
    return side.address | side.begin | bits | (has_one_element ? 0 : bits_of(side.layout.extent));
}

bool is_valid(const strided_layout &layout)
{
    if (layout.blocks != 0) {
        return layout.element_bytes > 0 && layout.block_count > 0;
    }
    std::uint64_t bytes = layout.block_bytes;
    for (std::uint32_t level = 0; level < layout.levels && level < strided_levels; ++level) {
        bytes *= layout.level[level].count;
    }
    return layout.levels <= strided_levels && bytes > 0 && bytes == layout.element_bytes;
}

strided_side prepared(const strided_side &side, std::uint64_t len_bytes)
{
    if (is_one_run(side, len_bytes)) {
        return strided_contiguous(strided_address(side, 0), len_bytes);
    }
    strided_side made = side;
    strided_layout &layout = made.layout;
    made.address += side.begin / layout.element_bytes * bits_of(layout.extent);
    made.begin = side.begin % layout.element_bytes;
    const std::uint64_t most = made.begin + len_bytes;
    layout.element_bytes = std::min(layout.element_bytes, most);
    layout.block_bytes = std::min(layout.block_bytes, most);
    for (strided_level &level : layout.level) {
        level.count = std::min(level.count, most);
    }
    return made;
}

} // namespace

void strided_add_guide(strided_layout *layout, std::vector<strided_block> *list)
{
    const std::uint64_t count = list->size();
    // Two parts for each block: then most parts are shorter than a block of usual length.
    std::uint16_t shift = 0;
    while ((layout->element_bytes - 1) >> shift >= 2 * count) {
        ++shift;
    }
    const std::uint64_t parts = ((layout->element_bytes - 1) >> shift) + 1;
    const std::uint64_t bytes = (parts + 1) * sizeof(std::uint32_t);
    list->resize(count + (bytes + sizeof(strided_block) - 1) / sizeof(strided_block));
    auto *guide = reinterpret_cast<unsigned char *>(list->data() + count);
    std::uint32_t nth = 0;
    for (std::uint64_t part = 0; part <= parts; ++part) {
        while (nth + 1 < count && (*list)[nth + 1].before <= part << shift) {
            ++nth;
        }
        std::memcpy(guide + part * sizeof(nth), &nth, sizeof(nth));
    }
    layout->block_count = static_cast<std::uint32_t>(count);
    layout->guide_shift = shift;
}

std::uint64_t strided_bits(const strided_layout &layout, const strided_block *list)
{
    std::uint64_t bits = layout.element_bytes;
    if (list != nullptr) {
        for (const strided_block *each = list; each != list + layout.block_count; ++each) {
            bits |= bits_of(each->offset) | each->before;
        }
        return bits;
    }
    bits |= layout.block_bytes | bits_of(layout.first);
    for (std::uint32_t level = 0; level < layout.levels; ++level) {
        bits |= layout.level[level].count > 1 ? bits_of(layout.level[level].stride) : 0;
    }
    return bits;
}

std::uint32_t strided_word_bytes(const strided_side &source, std::uint64_t source_bits,
                                 const strided_side &destination, std::uint64_t destination_bits,
                                 std::uint64_t len_bytes)
{
    const std::uint64_t bits = len_bytes | bits_of(source, source_bits, len_bytes) |
                               bits_of(destination, destination_bits, len_bytes) |
                               strided_most_word;
    return 1U << std::countr_zero(bits);
}

bool strided_stays_in(const strided_side &side, std::uint64_t len_bytes, std::uint64_t base,
                      std::uint64_t memory_bytes)
{
    constexpr std::uint64_t most_bytes = std::uint64_t{1} << 40; // then nothing below overflows
    using wide = __int128;
    const strided_layout &layout = side.layout;
    if (0 != layout.blocks || 0 != side.begin || layout.levels > strided_levels ||
        0 == layout.block_bytes || 0 == len_bytes || layout.element_bytes > most_bytes ||
        len_bytes > most_bytes) {
        return false;
    }
    std::uint64_t bytes = layout.block_bytes;
    wide lowest = layout.first;
    wide end = lowest + layout.block_bytes;
    const auto take_turns = [&](std::uint64_t count, std::int64_t stride) {
        const wide far = (wide{count} - 1) * stride;
        (far < 0 ? lowest : end) += far;
    };
    for (std::uint32_t level = 0; level < layout.levels; ++level) {
        const std::uint64_t count = layout.level[level].count;
        if (0 == count || count > layout.element_bytes / bytes) {
            return false;
        }
        bytes *= count;
        take_turns(count, layout.level[level].stride);
    }
    if (bytes != layout.element_bytes) {
        return false;
    }
    take_turns((len_bytes - 1) / layout.element_bytes + 1, layout.extent);
    return lowest + side.address >= base && end + side.address <= wide{base} + memory_bytes;
}

bool strided_is_valid(const strided_copy &copy)
{
    return copy.len_bytes > 0 && std::has_single_bit(copy.word_bytes) &&
           copy.word_bytes <= strided_most_word && 0 == copy.len_bytes % copy.word_bytes &&
           is_valid(copy.source.layout) && is_valid(copy.destination.layout);
}

strided_copy strided_prepared(const strided_copy &copy)
{
    return {prepared(copy.source, copy.len_bytes), prepared(copy.destination, copy.len_bytes),
            copy.len_bytes, copy.word_bytes, 0};
}

} // namespace gpusm
