// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm_two_processes_test.cc: VMM memory that one process exports by file descriptor and another
// maps, on whatever driver there is.
#include "tests/unit/share_support.h"

#include <algorithm>

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

using namespace gpusm;

// An owner on one device, a reader on the same or another, and copies across every boundary.
void read_chunks(int owner_device, int reader_device, const std::vector<std::int64_t> &lengths)
{
    std::size_t total = 0;
    for (const std::int64_t each : lengths) {
        total += static_cast<std::size_t>(each);
    }
    together(
        [&](line &l) {
            const log_capture log;
            program p(mib, owner_device);
            const CUdeviceptr at = allocate_chunks(lengths, owner_device);
            store(at, pattern(total, 3));
            parcel out = parcel::of(p.device_of(at), at, total);
            EXPECT_EQ(out.lengths, std::vector<std::uint64_t>(lengths.begin(), lengths.end()));
            out.send(l);
            l.wait();
            EXPECT_EQ(load(at + total - 4, 4), "back") << "an importer may write, too";
            EXPECT_EQ(log.count(), 0U) << log.text();
        },
        [&](line &l) {
            program p(total, reader_device);
            const log_capture log;
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            ASSERT_EQ(in.map(p.on, &base), status::ok);
            EXPECT_EQ(copy_now(p.on, p.at, base, total), status::ok);
            EXPECT_TRUE(load(p.at, total) == pattern(total, 3));
            std::size_t boundary = 0;
            for (const std::uint64_t each : in.lengths) {
                boundary += each;
                const std::size_t begin = boundary - 70001;
                const std::size_t bytes = std::min<std::size_t>(150000, total - begin);
                store(p.at, std::string(bytes, 0));
                copy_by_kernel(p.on, p.at, base + begin, bytes);
                EXPECT_TRUE(load(p.at, bytes) == pattern(total, 3).substr(begin, bytes))
                    << boundary;
            }
            store(base + total - 4, "back");
            in.unmap(base);
            EXPECT_EQ(log.count(), 0U) << log.text();
            l.step();
        });
}

constexpr auto two = std::int64_t(2 * mib);

TEST(ShareVmm, APeerOnTheSameDeviceReadsAndWritesAnyNumberOfChunks)
{
    read_chunks(0, 0, {2 * two});
    read_chunks(0, 0, {two, 3 * two, 2 * two});
}

TEST(ShareVmm, APeerOnAnotherDeviceReadsThreeChunksAsOneRange)
{
    NEEDS_DEVICES(2)
    read_chunks(0, 1, {two, 3 * two, 2 * two});
    read_chunks(1, 0, {2 * two, two});
}

ALONE(ShareVmm, ARangeIsAsShareableAsItsWorstChunk)
{
    const log_capture log;
    program p;
    const CUdeviceptr at = allocate_chunks({two, two, -two, two, 0, two});
    const struct {
        std::int64_t begin, end;
        status expected;
    } ranges[] = {
        {0, two, status::ok},
        {1, 2 * two, status::ok},
        {0, 2 * two + 1, status::unsupported},
        {2 * two, 3 * two, status::unsupported},
        {3 * two - 1, 4 * two, status::unsupported},
        {3 * two, 4 * two, status::ok},
        {3 * two, 4 * two + 1, status::unsupported}, // a gap
        {4 * two, 5 * two, status::unsupported},
        {5 * two, 6 * two, status::ok},
    };
    for (const auto &each : ranges) {
        std::vector<memory_chunk> chunks;
        EXPECT_EQ(list_chunks(p.on, at + static_cast<std::uint64_t>(each.begin),
                              static_cast<std::uint64_t>(each.end - each.begin), &chunks),
                  each.expected)
            << each.begin << " to " << each.end;
    }
    EXPECT_EQ(log.count(), 0U) << log.text();
}

ALONE(ShareVmm, AsManyChunksAsAllowedGoOver)
{
    program p;
    constexpr std::size_t total = most_descriptors * 2 * mib;
    const CUdeviceptr at = allocate_chunks(std::vector<std::int64_t>(most_descriptors + 1, two));
    device &on = p.device_of(at);
    std::vector<memory_chunk> chunks;
    EXPECT_EQ(list_chunks(on, at, total + 1, &chunks), status::unsupported);
    store(at + total - 9, "the end");
    parcel out = parcel::of(on, at, total);
    std::uint64_t base = 0;
    ASSERT_EQ(out.map(on, &base), status::ok);
    EXPECT_EQ(load(base + total - 9, 7), "the end");
    out.unmap(base);
}

// --- how long it lives -------------------------------------------------------------------------

TEST(ShareVmm, WhatTheOwnerGivesUpIsFreedWithTheImportersMapping)
{
    constexpr std::size_t bytes = 512 * mib;
    together(
        [=](line &l) {
            program p;
            const CUdeviceptr at = allocate_chunks({std::int64_t(bytes)});
            device &on = p.device_of(at);
            std::vector<memory_chunk> before;
            std::vector<memory_chunk> after;
            EXPECT_EQ(list_chunks(on, at, 1, &before), status::ok);
            store(at + 7, "alive");
            parcel::of(on, at, 1).send(l);
            l.wait(); // mapped
            OK(CU(cuMemUnmap)(at, bytes));
            const std::size_t with_importer = free_bytes();
            l.step();
            l.wait(); // unmapped
            EXPECT_GE(free_bytes(), with_importer + bytes - slack_bytes);
            map_chunk(at, bytes, true, 0);
            EXPECT_EQ(list_chunks(on, at, 1, &after), status::ok);
            EXPECT_NE(after[0].buffer_id, before[0].buffer_id) << "other memory at the address";
        },
        [=](line &l) {
            program p;
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            ASSERT_EQ(in.map(p.on, &base), status::ok);
            l.step();
            l.wait(); // given up
            EXPECT_EQ(load(base + 7, 5), "alive");
            in.unmap(base);
            l.step();
        });
}

ALONE(ShareVmm, AnExportAloneKeepsNothingTaken)
{
    constexpr std::size_t bytes = 512 * mib;
    program p;
    const CUdeviceptr at = allocate_chunks({std::int64_t(bytes)});
    const std::size_t with_memory = free_bytes();
    parcel out = parcel::of(p.device_of(at), at, bytes);
    out.fds.clear();
    OK(CU(cuMemUnmap)(at, bytes));
    EXPECT_GE(free_bytes(), with_memory + bytes - slack_bytes);
}

ALONE(ShareVmm, ALengthThatTheDescriptorDoesNotHaveIsRefusedAndLeavesNothing)
{
    constexpr std::size_t bytes = 512 * mib;
    program p;
    const CUdeviceptr at = allocate_chunks({std::int64_t(bytes), two});
    device &on = p.device_of(at);
    store(at + bytes - 5, "right");
    parcel out = parcel::of(on, at, bytes + 1);
    std::uint64_t base = 42;
    out.lengths[1] += std::uint64_t(two);
    EXPECT_NE(out.map(on, &base), status::ok);
    out.lengths[1] = 2 * mib + 4096;
    EXPECT_EQ(out.map(on, &base), status::bad_peer);
    EXPECT_EQ(base, 42U);
    out.lengths[1] = 2 * mib;
    ASSERT_EQ(out.map(on, &base), status::ok);
    EXPECT_EQ(load(base + bytes - 5, 5), "right");
    out.unmap(base);
    const std::size_t with_memory = free_bytes();
    OK(CU(cuMemUnmap)(at, bytes));
    EXPECT_GE(free_bytes(), with_memory + bytes - slack_bytes) << "a failed mapping is left";
}

} // namespace
