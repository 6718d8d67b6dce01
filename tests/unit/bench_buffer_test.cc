// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// bench_buffer_test.cc: the checker is checked: what the MPI tests and gpusm_perf -c rely on.
#include "bench/common/buffer.h"
#include "bench/common/placed.h"
#include "bench/common/numbers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace gpusm::bench;

std::unique_ptr<buffer> host_memory(std::size_t len_bytes, std::size_t offset_bytes = 0)
{
    std::string why;
    auto made = buffer::make(memory_kind::host, len_bytes, nullptr, &why, offset_bytes);
    EXPECT_NE(nullptr, made) << why;
    return made;
}

TEST(BenchBuffer, WhatWasFilledComparesEqualAndOneWrongBitIsNamedByPosition)
{
    constexpr std::size_t len = (3u << 20) + 77;
    auto memory = host_memory(len, 3);
    ASSERT_EQ("", memory->fill(0, len, 42));
    EXPECT_NE("", memory->compare(0, len, 43));
    for (std::size_t wrong : {std::size_t{0}, std::size_t{1} << 20, len - 1}) {
        EXPECT_EQ("", memory->compare(0, len, 42));
        auto *byte = static_cast<unsigned char *>(memory->at(wrong));
        *byte ^= 1;
        const std::string found = memory->compare(0, len, 42);
        EXPECT_EQ(0u, found.find("byte " + std::to_string(wrong) + " is ")) << found;
        *byte ^= 1;
    }
}

TEST(BenchBuffer, ShiftedContentIsWrong)
{
    auto memory = host_memory(4096);
    for (std::size_t shift : {1u, 8u, 256u}) {
        ASSERT_EQ("", memory->fill(0, 2048, 9));
        std::memmove(memory->at(shift), memory->data(), 2048 - shift);
        EXPECT_NE("", memory->compare(0, 2048, 9)) << shift;
    }
}

TEST(BenchBuffer, PiecesOfAMessageKeepTheirPosition)
{
    std::vector<unsigned char> whole(1000);
    write_pattern(whole.data(), whole.size(), 5, 0);
    for (std::size_t begin : {0u, 1u, 7u, 8u, 13u}) {
        std::vector<unsigned char> piece(500);
        write_pattern(piece.data(), piece.size(), 5, begin);
        EXPECT_EQ(0, std::memcmp(piece.data(), whole.data() + begin, piece.size())) << begin;
    }
}

TEST(BenchBuffer, PoisonIsNoticedToBeGone)
{
    auto memory = host_memory(256);
    ASSERT_EQ("", memory->poison());
    EXPECT_EQ("", memory->compare_poison(0, 256));
    *static_cast<unsigned char *>(memory->at(200)) ^= 1;
    EXPECT_EQ("", memory->compare_poison(0, 200));
    EXPECT_NE("", memory->compare_poison(0, 256));
}

TEST(BenchBuffer, GpuMemoryWithoutDeviceIsRefused)
{
    std::string why;
    EXPECT_EQ(nullptr, buffer::make(memory_kind::pool, 8, nullptr, &why));
    EXPECT_NE("", why);
}

std::vector<placed_message> messages_of(const placement &places, std::uint64_t first_seed)
{
    std::vector<placed_message> list;
    for (std::size_t i = 0; i < places.places; ++i) {
        list.push_back({places.at(i), places.len_bytes, first_seed + i});
    }
    return list;
}

TEST(BenchPlacement, SpacedMessagesKeepAlignmentAndGuardBytes)
{
    for (std::size_t len : {0u, 1u, 7u, 192u, 193u, 256u, 4096u, 65537u}) {
        const placement places = placement::spaced(len, 8, 1u << 20);
        EXPECT_EQ(8u, places.places) << len;
        for (std::size_t i = 0; i < 8; ++i) {
            EXPECT_EQ(0u, places.at(i) % placement::alignment) << len;
            EXPECT_GE(places.at(i), (0 == i ? 0 : places.at(i - 1) + len) + placement::guard_bytes)
                << len;
        }
        EXPECT_EQ(places.at(0), places.at(8)) << len;
        EXPECT_GE(places.end(), places.at(7) + len + placement::guard_bytes) << len;
    }
}

TEST(BenchPlacement, PlacesAreLimitedByBytesOfMessages)
{
    EXPECT_EQ(64u, placement::spaced(4u << 20, 64, 256u << 20).places);
    EXPECT_EQ(4u, placement::spaced(64u << 20, 64, 256u << 20).places);
    EXPECT_EQ(1u, placement::spaced(300u << 20, 64, 256u << 20).places);
}

// Sizes around the chunks in which content is made: a chunk may hold many messages or a part of
// one.
TEST(BenchPlaced, EveryMessageAndEveryGuardByteIsCompared)
{
    for (std::size_t len : {0u, 7u, 1001u, 600000u, (1u << 20) - 256u, (1u << 20) + 1u}) {
        const placement places = placement::spaced(len, 5, 64u << 20);
        auto memory = host_memory(places.end(), 3);
        const auto messages = messages_of(places, 1);
        ASSERT_EQ("", fill_placed(*memory, places.end(), messages));
        EXPECT_EQ("", compare_placed(*memory, places.end(), messages)) << len;
        for (const placed_message &m : messages) {
            EXPECT_EQ("", memory->compare(m.offset, len, m.seed)) << len;
        }
        auto complaint_about = [&](std::size_t offset) {
            auto *byte = static_cast<unsigned char *>(memory->at(offset));
            *byte ^= 1;
            std::string found = compare_placed(*memory, places.end(), messages);
            *byte ^= 1;
            return found.substr(0, found.find(" is "));
        };
        EXPECT_EQ("guard byte 255 before message 0", complaint_about(0));
        EXPECT_EQ("guard byte 0 before message 0", complaint_about(places.at(0) - 1));
        EXPECT_EQ("guard byte 0 after message 1", complaint_about(places.at(1) + len));
        EXPECT_EQ("guard byte 63 after message 4", complaint_about(places.end() - 1));
        if (len > 0) {
            const std::string last = std::to_string(len - 1);
            EXPECT_EQ("message 0: byte 0", complaint_about(places.at(0)));
            EXPECT_EQ("message 1: byte " + last, complaint_about(places.at(1) + len - 1));
            EXPECT_EQ("message 4: byte 0", complaint_about(places.at(4)));
            auto swapped = messages;
            std::swap(swapped[0].seed, swapped[1].seed);
            const std::string found = compare_placed(*memory, places.end(), swapped, "block");
            EXPECT_EQ(0u, found.find("block 0: byte ")) << found;
        }
        // What receives is poisoned, not filled: both must agree on what is between messages.
        ASSERT_EQ("", memory->poison());
        for (const placed_message &m : messages) {
            ASSERT_EQ("", memory->fill(m.offset, len, m.seed));
        }
        EXPECT_EQ("", compare_placed(*memory, places.end(), messages)) << len;
    }
}

TEST(BenchNumbers, SizesHaveSuffixesAndLimits)
{
    std::size_t bytes = 0;
    const std::pair<const char *, std::size_t> good[] = {
        {"0", 0}, {"17", 17}, {"4K", 4096}, {"64M", 64u << 20}, {"1G", 1u << 30}};
    for (const auto &[text, meant] : good) {
        EXPECT_TRUE(parse_size(text, &bytes)) << text;
        EXPECT_EQ(meant, bytes);
        EXPECT_EQ(text, size_text(meant));
    }
    EXPECT_TRUE(parse_size("4k", &bytes));
    EXPECT_EQ(4096u, bytes);
    EXPECT_TRUE(parse_size("2147483647", &bytes));
    EXPECT_EQ(2147483647u, bytes);
    for (const char *bad : {"2G", "", "K", "4Q", "4KK", "-1", "1.5K", "99999999999999999999"}) {
        EXPECT_FALSE(parse_size(bad, &bytes)) << bad;
    }
}

TEST(BenchNumbers, NumbersAreWholeOrInDecimalNotation)
{
    int count = 0;
    EXPECT_TRUE(parse_count("128", 1, 128, &count));
    EXPECT_EQ(128, count);
    for (const char *bad : {"", "0", "129", "-1", "1x", "9999999999"}) {
        EXPECT_FALSE(parse_count(bad, 1, 128, &count)) << bad;
    }
    double value = 0;
    EXPECT_TRUE(parse_positive("0.25", 10, &value));
    EXPECT_EQ(0.25, value);
    for (const char *bad : {"", "0", "11", "-1", "1.2.3", "1e3"}) {
        EXPECT_FALSE(parse_positive(bad, 10, &value)) << bad;
    }
    EXPECT_EQ((std::vector<std::string>{"1", "", "2"}), split("1,,2"));
}

} // namespace
