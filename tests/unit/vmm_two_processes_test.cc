// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// vmm_two_processes_test.cc: VMM memory that goes by file descriptor: what can, how long it lives,
// and what is read right after a fill; on whatever driver there is.
#include "tests/unit/gpu_memory_support.h"

using namespace gpusm_test;
using namespace softcuda_test;

namespace {

using namespace gpusm;

constexpr auto two = std::int64_t(2 * mib);
// What a driver may need for itself while memory comes and goes; the tests move much more.
constexpr std::size_t slack_bytes = 64 * mib;

status list_chunks(const device &on, CUdeviceptr at, std::size_t len_bytes,
                   std::vector<memory_chunk> *out)
{
    return list_run(
        driver(), on, at, len_bytes, [](std::uint64_t) { return false; }, out);
}

ALONE(ShareVmm, ARangeIsTheChunksThatItTouchesAndAsShareableAsTheWorst)
{
    const log_capture log;
    program p;
    const CUdeviceptr at = allocate_chunks({two, 2 * two, -two, two, 0, two});
    const struct {
        std::int64_t begin, end;
        std::vector<std::int64_t> chunks; // none: unsupported
    } ranges[] = {
        {0, 0, {two}},
        {0, two, {two}},
        {two - 1, two + 1, {two, 2 * two}},
        {two, 3 * two, {2 * two}},
        {2 * two, 3 * two, {2 * two}},
        {0, 3 * two + 1, {}},
        {3 * two, 4 * two, {}},
        {4 * two - 1, 5 * two, {}},
        {4 * two, 5 * two, {two}},
        {4 * two, 5 * two + 1, {}}, // a gap
        {5 * two, 6 * two, {}},
        {6 * two, 7 * two, {two}},
    };
    for (const auto &each : ranges) {
        SCOPED_TRACE(testing::Message() << each.begin << " to " << each.end);
        const CUdeviceptr begin = at + static_cast<std::uint64_t>(each.begin);
        std::vector<memory_chunk> found;
        EXPECT_EQ(
            list_chunks(p.on, begin, static_cast<std::uint64_t>(each.end - each.begin), &found),
            each.chunks.empty() ? status::unsupported : status::ok);
        std::vector<std::int64_t> lengths;
        for (const memory_chunk &chunk : found) {
            lengths.push_back(static_cast<std::int64_t>(chunk.len_bytes));
            EXPECT_EQ(chunk.buffer_id, buffer_id(chunk.base));
        }
        EXPECT_TRUE(each.chunks.empty() || each.chunks == lengths);
        EXPECT_TRUE(each.chunks.empty() || begin - found[0].base < found[0].len_bytes);
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
    parcel out = parcel::of(share_kind::descriptors, on, at, total);
    std::uint64_t base = 0;
    ASSERT_EQ(out.map(on, &base), status::ok);
    EXPECT_EQ(load(base + total - 9, 7), "the end");
    out.unmap(on, base);
}

TEST(ShareVmm, WhatTheOwnerGivesUpIsFreedWithTheImportersMapping)
{
    constexpr std::size_t bytes = 512 * mib;
    together(
        [=](line &l) {
            program p;
            const CUdeviceptr at = allocate_chunks({std::int64_t(bytes)});
            store(at + 7, "alive");
            parcel::of(share_kind::descriptors, p.device_of(at), at, 1).send(l);
            l.wait(); // mapped
            OK(CU(cuMemUnmap)(at, bytes));
            const std::size_t with_importer = free_bytes();
            l.step();
            l.wait(); // unmapped
            EXPECT_GE(free_bytes(), with_importer + bytes - slack_bytes);
        },
        [=](line &l) {
            program p;
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            ASSERT_EQ(in.map(p.on, &base), status::ok);
            l.step();
            l.wait(); // given up
            EXPECT_EQ(load(base + 7, 5), "alive");
            in.unmap(p.on, base);
            l.step();
        });
}

ALONE(ShareVmm, ALengthThatTheDescriptorDoesNotHaveIsRefusedAndLeavesNothing)
{
    constexpr std::size_t bytes = 512 * mib;
    program p;
    const CUdeviceptr at = allocate_chunks({std::int64_t(bytes), two});
    device &on = p.device_of(at);
    store(at + bytes - 5, "right");
    parcel out = parcel::of(share_kind::descriptors, on, at, bytes + 1);
    std::uint64_t base = 42;
    out.chunks.lengths[1] += std::uint64_t(two);
    EXPECT_NE(out.map(on, &base), status::ok);
    out.chunks.lengths[1] = 2 * mib + 4096;
    EXPECT_EQ(out.map(on, &base), status::bad_peer);
    EXPECT_EQ(base, 42U);
    out.chunks.lengths[1] = 2 * mib;
    ASSERT_EQ(out.map(on, &base), status::ok);
    EXPECT_EQ(load(base + bytes - 5, 5), "right");
    out.unmap(on, base);
    const std::size_t with_memory = free_bytes();
    OK(CU(cuMemUnmap)(at, bytes));
    EXPECT_GE(free_bytes(), with_memory + bytes - slack_bytes) << "a failed mapping is left";
}

// A fill that returns before it is done, into memory that cannot be marked by itself.
TEST(ShareVmm, APeerReadsWhatASynchronousFillHasLeft)
{
    constexpr std::size_t bytes = 16 * mib;
    together(
        [=](line &l) {
            if (soft()) {
                setenv("GPUSM_SOFTCUDA_DELAY_US", "200000", 1);
            }
            program p;
            const CUdeviceptr at = allocate_chunks({std::int64_t(bytes)});
            device &on = p.device_of(at);
            OK(CU(cuMemsetD8)(at, 'a', bytes));
            EXPECT_EQ(make_copies_synchronous(driver(), on), status::ok);
            parcel::of(share_kind::descriptors, on, at, bytes).send(l);
            l.wait(); // read once
            OK(CU(cuMemsetD8)(at, 'b', bytes));
            l.step();
            l.wait();
        },
        [=](line &l) {
            program p;
            parcel in = parcel::receive(l);
            std::uint64_t base = 0;
            ASSERT_EQ(in.map(p.on, &base), status::ok);
            EXPECT_TRUE(load(base, bytes) == std::string(bytes, 'a')) << "begun before the mark";
            l.step();
            l.wait(); // filled anew
            EXPECT_TRUE(load(base, bytes) == std::string(bytes, 'b'));
            in.unmap(p.on, base);
            l.step();
        });
}

} // namespace
