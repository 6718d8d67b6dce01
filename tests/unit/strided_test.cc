// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// strided_test.cc: where the packed bytes of memory with gaps lie, which words a kernel may move,
// and the way in which copies are handed to it; on the host, without a driver.
#include "tests/unit/strided_support.h"

#include <bit>
#include <cstring>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint64_t somewhere = 0x7f0000000000;

// A side of a layout in host memory, as the functions of the host see it.
strided_side side_of(const any_layout &of, std::uint64_t begin, std::uint64_t address = somewhere)
{
    strided_side side{address, begin, of.layout};
    side.layout.blocks = reinterpret_cast<std::uint64_t>(of.host_list());
    return side;
}

// All bytes of a side lie where `places` says.
void expect_places(const strided_side &side, const std::vector<std::int64_t> &places)
{
    std::uint64_t known = 0; // until there the last answer tells
    for (std::uint64_t at = 0; at < places.size(); ++at) {
        const std::uint64_t wanted = somewhere + static_cast<std::uint64_t>(places[at]);
        const strided_place found = strided_place_of(side, at);
        ASSERT_EQ(found.address, wanted) << "byte " << at;
        ASSERT_EQ(strided_address(side, at), wanted);
        ASSERT_GE(found.together, 1U);
        for (std::uint64_t next = 1; next < found.together && at + next < places.size(); ++next) {
            ASSERT_EQ(places[at + next], places[at] + static_cast<std::int64_t>(next))
                << next << " bytes behind byte " << at;
        }
        ASSERT_TRUE(at >= known || at + found.together == known) << "byte " << at;
        known = at + found.together;
    }
}

// The same found for four bytes at once and with short indices, as the kernel does.
void expect_same_in_four(const strided_side &side, const std::vector<std::int64_t> &places)
{
    std::mt19937 random(static_cast<unsigned>(places.size()));
    for (int round = 0; round < 50; ++round) {
        std::uint32_t at[4];
        for (std::uint32_t &each : at) {
            each = static_cast<std::uint32_t>(random() % places.size());
        }
        strided_place found[4];
        strided_places(side, at, found);
        for (int i = 0; i < 4; ++i) {
            ASSERT_EQ(found[i].address, somewhere + static_cast<std::uint64_t>(places[at[i]]));
            ASSERT_EQ(found[i].together, strided_place_of(side, at[i]).together);
        }
    }
}

TEST(StridedPlaces, AreThoseOfPlainLoopsWhateverTheLayoutAndTheBeginning)
{
    std::mt19937 random(1);
    for (int round = 0; round < 1000; ++round) {
        SCOPED_TRACE(round);
        const any_layout any = random_layout(random, 1 + random() % 3);
        const std::uint64_t begin = random() % (3 * any.layout.element_bytes);
        const std::uint64_t len_bytes = 1 + random() % (3 * any.layout.element_bytes);
        const std::vector<std::int64_t> places = any.places(begin, len_bytes);
        ASSERT_EQ(places.size(), len_bytes);
        const strided_side side = side_of(any, begin);
        expect_places(side, places);
        expect_same_in_four(side, places);
    }
}

TEST(StridedPlaces, OfAListAreFoundWhateverItsLength)
{
    std::mt19937 random(2);
    for (std::size_t blocks = 1; blocks < 70; ++blocks) {
        SCOPED_TRACE(blocks);
        const any_layout any = irregular_layout(random, 1, blocks);
        const std::vector<std::int64_t> places = any.places(0, 2 * any.layout.element_bytes);
        expect_places(side_of(any, 0), places);
        expect_same_in_four(side_of(any, 0), places);
    }
}

// Lists of blocks of very different lengths, with long ones at either end and in the middle.
std::vector<any_layout> uneven_lists(std::mt19937 &random)
{
    using lengths = std::vector<std::uint64_t>;
    lengths alternating;
    lengths powers;
    for (int i = 0; i < 150; ++i) {
        alternating.push_back(0 == i % 2 ? 1 : 90);
        powers.push_back(std::uint64_t{1} << random() % 8);
    }
    lengths long_first(100, 1);
    long_first.front() = 2000;
    lengths long_last(100, 2);
    long_last.back() = 1999;
    lengths long_within(300, 3);
    long_within[150] = long_within[151] = 1000;
    std::vector<any_layout> lists;
    for (const lengths &each :
         {alternating, powers, long_first, long_last, long_within, lengths{1}, lengths{700},
          lengths{1, 700}, lengths{700, 1}, lengths(64, 16), lengths(65, 16), lengths(200, 1)}) {
        lists.push_back(listed_layout(random, 1, each));
    }
    return lists;
}

TEST(StridedPlaces, OfAListAreFoundHoweverUnevenItsBlocksAre)
{
    std::mt19937 random(5);
    for (const any_layout &any : uneven_lists(random)) {
        SCOPED_TRACE(any.layout.block_count);
        const std::uint64_t element_bytes = any.layout.element_bytes;
        const std::vector<std::int64_t> places = any.places(0, 3 * element_bytes);
        expect_places(side_of(any, 0), places);
        expect_same_in_four(side_of(any, 0), places);
        // The first and the last byte of an element, side by side with others.
        const auto last = static_cast<std::uint32_t>(element_bytes - 1);
        const std::uint32_t at[4] = {0, last, last + 1, 2 * last + 1};
        strided_place found[4];
        strided_places(side_of(any, 0), at, found);
        for (int i = 0; i < 4; ++i) {
            EXPECT_EQ(found[i].address, somewhere + static_cast<std::uint64_t>(places[at[i]]));
        }
    }
}

TEST(StridedGuide, NamesTheBlocksOfPartsOfAnElement)
{
    std::mt19937 random(6);
    int parts_with_many = 0;
    int parts_within_one = 0;
    for (const any_layout &any : uneven_lists(random)) {
        SCOPED_TRACE(any.layout.block_count);
        const strided_layout layout = side_of(any, 0).layout;
        const std::uint32_t count = layout.block_count;
        const std::uint64_t parts = ((layout.element_bytes - 1) >> layout.guide_shift) + 1;
        EXPECT_LE(parts, 2 * count);
        EXPECT_TRUE(0 == layout.guide_shift || parts >= count) << "more would have found room";
        EXPECT_LE(count * sizeof(strided_block) + (parts + 1) * sizeof(std::uint32_t),
                  any.list.size() * sizeof(strided_block));
        std::uint32_t nth = 0;
        for (std::uint32_t part = 0; part < parts; ++part) {
            const std::uint64_t begin = std::uint64_t{part} << layout.guide_shift;
            while (nth + 1 < count && any.list[nth + 1].before <= begin) {
                ++nth;
            }
            ASSERT_EQ(strided_guide(layout, part), nth) << "part " << part;
            const std::uint32_t next = strided_guide(layout, part + 1);
            parts_with_many += next > nth + 4 ? 1 : 0;
            parts_within_one += next == nth ? 1 : 0;
        }
        EXPECT_EQ(strided_guide(layout, static_cast<std::uint32_t>(parts)), count - 1);
    }
    EXPECT_GT(parts_with_many, 10);
    EXPECT_GT(parts_within_one, 10);
}

TEST(StridedGuide, LeavesOneBlockToLookAtWhereAllAreOfOneLength)
{
    std::mt19937 random(7);
    for (std::uint64_t length = 1; length < 70; ++length) {
        const any_layout any = listed_layout(random, 1, std::vector<std::uint64_t>(333, length));
        const strided_layout layout = side_of(any, 0).layout;
        const std::uint64_t parts = ((layout.element_bytes - 1) >> layout.guide_shift) + 1;
        for (std::uint32_t part = 0; part < parts; ++part) {
            ASSERT_LE(strided_guide(layout, part + 1) - strided_guide(layout, part), 1U)
                << length << " bytes, part " << part;
        }
    }
}

TEST(StridedGuide, StaysShortWhereAnElementIsHuge)
{
    constexpr std::uint64_t tib = 1ULL << 40;
    any_layout any;
    any.layout.element_bytes = tib + 12;
    any.layout.extent = 1LL << 42;
    any.list = {{100, 0}, {1LL << 41, 4}, {0, tib + 4}};
    strided_add_guide(&any.layout, &any.list);
    EXPECT_EQ(any.layout.block_count, 3U);
    EXPECT_LE(any.list.size(), 5U);
    EXPECT_GE(any.layout.guide_shift, 32U);
    const strided_side side = side_of(any, 0);
    EXPECT_EQ(strided_address(side, 3), somewhere + 103);
    EXPECT_EQ(strided_address(side, 4), somewhere + 2 * tib);
    EXPECT_EQ(strided_place_of(side, 5).together, tib - 1);
    EXPECT_EQ(strided_address(side, tib + 3), somewhere + 3 * tib - 1);
    EXPECT_EQ(strided_address(side, tib + 4), somewhere);
    EXPECT_EQ(strided_address(side, tib + 11), somewhere + 7);
    EXPECT_EQ(strided_address(side, tib + 12), somewhere + 4 * tib + 100);
    // Of a short copy all is found with indices of 32 bits.
    const strided_copy made = strided_prepared({side, strided_contiguous(somewhere, 64), 64, 1, 0});
    const std::uint32_t at[2] = {3, 63};
    strided_place found[2];
    strided_places(made.source, at, found);
    EXPECT_EQ(found[0].address, somewhere + 103);
    EXPECT_EQ(found[1].address, somewhere + 2 * tib + 59);
}

TEST(StridedPlaces, BeyondFourGibibytes)
{
    constexpr std::uint64_t gib = 1ULL << 30;
    strided_side side{somewhere, 5 * gib, {}};
    side.layout = {.element_bytes = 6 * gib,
                   .extent = -static_cast<std::int64_t>(20 * gib),
                   .levels = 2,
                   .block_bytes = gib,
                   .first = 7,
                   .level = {{3, 2 * gib}, {2, 8 * gib}}};
    EXPECT_EQ(strided_address(side, 0), somewhere + 7 + 8 * gib + 4 * gib);
    EXPECT_EQ(strided_place_of(side, 5).together, gib - 5);
    EXPECT_EQ(strided_address(side, gib + 1), somewhere + 8 - 20 * gib);
    EXPECT_EQ(strided_address(side, 11 * gib), somewhere + 7 - 40 * gib + 10 * gib);
}

TEST(StridedPlaces, OfContiguousMemoryAreItsBytes)
{
    const strided_side side = strided_contiguous(somewhere, 1000);
    EXPECT_EQ(strided_address(side, 0), somewhere);
    EXPECT_EQ(strided_address(side, 999), somewhere + 999);
    EXPECT_EQ(strided_place_of(side, 10).together, 990U);
}

// Every word of that length is aligned and lies together.
bool words_are_whole(const strided_side &side, const std::vector<std::int64_t> &places,
                     std::uint32_t word_bytes)
{
    for (std::size_t at = 0; at < places.size(); ++at) {
        const std::size_t in_word = at % word_bytes;
        const std::uint64_t address = side.address + static_cast<std::uint64_t>(places[at]);
        if (address % word_bytes != in_word) {
            return false;
        }
        if (in_word > 0 && places[at] != places[at - 1] + 1) {
            return false;
        }
    }
    return 0 == places.size() % word_bytes;
}

TEST(StridedWords, AreAlignedAndWholeAndAsLongAsTheLayoutsHaveThem)
{
    std::mt19937 random(3);
    int seen[17] = {};
    for (int round = 0; round < 3000; ++round) {
        SCOPED_TRACE(round);
        const std::uint64_t unit = 1U << random() % 6;
        const any_layout from = random_layout(random, unit);
        const any_layout to = random_layout(random, unit);
        const std::uint64_t some_odd = 0 == random() % 4 ? 1U << random() % 5 : 0;
        const std::uint64_t len_bytes =
            static_cast<std::uint64_t>(some(random, unit, 1, 50)) + some_odd;
        const std::uint64_t beginning[] = {static_cast<std::uint64_t>(some(random, unit, 0, 50)),
                                           static_cast<std::uint64_t>(some(random, unit, 0, 50))};
        const strided_side source = side_of(from, beginning[0], somewhere + 64);
        const strided_side destination = side_of(to, beginning[1]);
        const std::uint32_t word =
            strided_word_bytes(source, from.bits(), destination, to.bits(), len_bytes);
        ASSERT_LE(word, 16U);
        EXPECT_TRUE(words_are_whole(source, from.places(source.begin, len_bytes), word));
        EXPECT_TRUE(words_are_whole(destination, to.places(destination.begin, len_bytes), word));
        EXPECT_GE(word, std::min<std::uint64_t>({unit, 16, some_odd > 0 ? some_odd : 16}));
        ++seen[word];
    }
    for (const int each : {1, 2, 4, 8, 16}) {
        EXPECT_GT(seen[each], 50) << each;
    }
}

// A vector of 16 blocks of 32 bytes, and what makes its words shorter.
TEST(StridedWords, AreShortenedByEachThingThatMatters)
{
    const strided_side vector{somewhere, 0, {512, 2048, 0, 0, 0, 1, 32, 64, {{16, 64}}}};
    const auto word = [](const strided_side &side, std::uint64_t len_bytes) {
        const strided_side other = strided_contiguous(somewhere, len_bytes);
        const std::uint64_t bits = strided_bits(side.layout, nullptr);
        const std::uint64_t other_bits = strided_bits(other.layout, nullptr);
        const std::uint32_t there = strided_word_bytes(side, bits, other, other_bits, len_bytes);
        EXPECT_EQ(strided_word_bytes(other, other_bits, side, bits, len_bytes), there);
        return there;
    };
    const auto with = [&](auto change) {
        strided_side side = vector;
        change(side);
        return word(side, 1024);
    };
    EXPECT_EQ(word(vector, 1024), 16U);
    EXPECT_EQ(word(vector, 1028), 4U);
    EXPECT_EQ(with([](strided_side &s) { s.address += 8; }), 8U);
    EXPECT_EQ(with([](strided_side &s) { s.begin = 2; }), 2U);
    EXPECT_EQ(with([](strided_side &s) { s.layout.extent = -2044; }), 4U);
    EXPECT_EQ(with([](strided_side &s) { s.layout.first = 1; }), 1U);
    EXPECT_EQ(with([](strided_side &s) { s.layout.level[0].stride = 66; }), 2U);
    EXPECT_EQ(with([](strided_side &s) {
                  s.layout.block_bytes = 24;
                  s.layout.element_bytes = 384;
              }),
              8U);
    // Of no meaning: the extent of one element, the stride of one block, and where runs end.
    strided_side one = vector;
    one.layout.extent = 2047;
    EXPECT_EQ(word(one, 512), 16U);
    EXPECT_EQ(word(one, 528), 1U);
    EXPECT_EQ(with([](strided_side &s) {
                  s.layout.levels = 2;
                  s.layout.level[1] = {1, 3};
              }),
              16U);
    strided_side run = strided_contiguous(somewhere + 13, 1001);
    run.begin = 3;
    EXPECT_EQ(word(run, 512), 16U) << "one run from a multiple of 16 on";
}

TEST(StridedWords, OfAListAreShortenedByItsBlocks)
{
    const strided_block list[] = {{64, 0}, {0, 32}, {128, 48}};
    const auto word = [](const strided_block(&blocks)[3], std::uint64_t element_bytes) {
        strided_side side{somewhere, 0, {}};
        side.layout = {
            .element_bytes = element_bytes, .extent = 256, .blocks = 0x1000, .block_count = 3};
        const strided_side other = strided_contiguous(somewhere, 1024);
        return strided_word_bytes(side, strided_bits(side.layout, blocks), other,
                                  strided_bits(other.layout, nullptr), 1024);
    };
    EXPECT_EQ(word(list, 96), 16U);
    EXPECT_EQ(word(list, 92), 4U);
    EXPECT_EQ(word({{64, 0}, {0, 32}, {130, 48}}, 96), 2U);
    EXPECT_EQ(word({{64, 0}, {0, 32}, {128, 40}}, 96), 8U);
}

TEST(StridedCopy, IsValidWithLayoutsThatHaveTheBytesThatTheySay)
{
    const strided_side vector{somewhere, 0, {512, 2048, 0, 0, 0, 1, 32, 64, {{16, 64}}}};
    const strided_copy good{vector, strided_contiguous(somewhere, 1024), 1024, 16, 0};
    const auto with = [&](auto change) {
        strided_copy copy = good;
        change(copy);
        strided_copy turned = copy;
        std::swap(turned.source, turned.destination);
        EXPECT_EQ(strided_is_valid(copy), strided_is_valid(turned));
        return strided_is_valid(copy);
    };
    EXPECT_TRUE(with([](strided_copy &) {}));
    EXPECT_TRUE(with([](strided_copy &c) {
        c.source.layout.blocks = 0x1000;
        c.source.layout.block_count = 1;
        c.source.layout.block_bytes = c.source.layout.levels = 0;
    }));
    EXPECT_FALSE(with([](strided_copy &c) { c.len_bytes = 0; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.len_bytes = 1000; })) << "not of whole words";
    EXPECT_FALSE(with([](strided_copy &c) { c.word_bytes = 0; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.word_bytes = 12; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.word_bytes = 32; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.element_bytes = 0; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.element_bytes = 511; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.block_bytes = 0; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.level[0].count = 0; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.levels = 0; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.levels = strided_levels + 1; }));
    EXPECT_FALSE(with([](strided_copy &c) { c.source.layout.blocks = 0x1000; })) << "of 0 blocks";
}

TEST(StridedCopy, IsPreparedWithoutMovingAByte)
{
    std::mt19937 random(4);
    int runs = 0;
    for (int round = 0; round < 1000; ++round) {
        SCOPED_TRACE(round);
        const any_layout any = random_layout(random, 1);
        const std::uint64_t begin = random() % (4 * any.layout.element_bytes);
        const std::uint64_t len_bytes = 1 + random() % (2 * any.layout.element_bytes);
        const strided_copy copy{side_of(any, begin), strided_contiguous(somewhere, len_bytes),
                                len_bytes, 1, 0};
        ASSERT_TRUE(strided_is_valid(copy));
        const strided_copy made = strided_prepared(copy);
        EXPECT_EQ(made.len_bytes, len_bytes);
        EXPECT_EQ(made.word_bytes, 1U);
        expect_places(made.source, any.places(begin, len_bytes));
        const strided_layout &layout = made.source.layout;
        EXPECT_TRUE(0 == made.source.begin || made.source.begin < any.layout.element_bytes);
        EXPECT_LE(std::max(layout.element_bytes, layout.block_bytes),
                  made.source.begin + len_bytes);
        for (std::uint32_t level = 0; level < layout.levels; ++level) {
            EXPECT_LE(layout.level[level].count, made.source.begin + len_bytes);
        }
        runs += 0 == layout.levels && 0 == layout.blocks && 0 == made.source.begin ? 1 : 0;
    }
    EXPECT_GT(runs, 20);
}

TEST(StridedCopy, OfWhatHasNoGapIsPreparedAsContiguousMemory)
{
    const auto expect_run = [](const strided_side &side, std::uint64_t from) {
        const strided_side wanted = strided_contiguous(from, 100);
        const strided_copy made =
            strided_prepared({side, strided_contiguous(somewhere, 100), 100, 1, 0});
        EXPECT_EQ(std::memcmp(&made.source, &wanted, sizeof(wanted)), 0);
    };
    // Elements side by side, and a part of one.
    expect_run({somewhere, 25, {10, 10, 0, 0, 0, 0, 10, 3, {}}}, somewhere + 28);
    expect_run({somewhere, 350, {300, 999, 0, 0, 0, 0, 300, 3, {}}}, somewhere + 999 + 53);
}

} // namespace
