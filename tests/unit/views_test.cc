// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// views_test.cc: addresses that stand for packed bytes, and the memory that bytes are packed into,
// on whatever driver there is. Each test runs in a process of its own.
#include "opal/mca/common/gpusm/views.h"

#include "tests/unit/gpu_memory_support.h"
#include "tests/unit/local_process_support.h"

#include <string>
#include <utility>
#include <vector>

using namespace softcuda_test;

namespace {

using namespace gpusm;
using namespace gpusm_test;

using blocks = std::vector<std::pair<std::int64_t, std::uint64_t>>; // place, length
const blocks regular = {{0, 16}, {64, 16}, {128, 16}};
const blocks irregular = {{100, 4}, {0, 24}, {40, 8}};
constexpr std::int64_t extent = 192;

shared_plan plan_of(const blocks &all)
{
    layout_builder builder;
    for (const auto &[offset, len_bytes] : all) {
        builder.add(offset, len_bytes);
    }
    return share(*builder.finish(extent));
}

// What is packed of so many elements in `memory`.
std::string packed(const std::string &memory, const blocks &all, std::size_t count)
{
    std::string out;
    for (std::size_t i = 0; i < count; ++i) {
        for (const auto &[offset, len_bytes] : all) {
            out += memory.substr(i * extent + static_cast<std::size_t>(offset), len_bytes);
        }
    }
    return out;
}

void unpack(const std::string &bytes, const blocks &all, std::size_t count, std::string *memory)
{
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        for (const auto &[offset, len_bytes] : all) {
            memory->replace(i * extent + static_cast<std::size_t>(offset), len_bytes, bytes, at,
                            len_bytes);
            at += len_bytes;
        }
    }
}

void *pointer(std::uint64_t address)
{
    return reinterpret_cast<void *>(address);
}

void copies_of(const blocks &all)
{
    (void)start();
    with_gpu gpu;
    constexpr std::size_t count = 100;
    const CUdeviceptr at = allocate(count * extent);
    std::string memory = pattern(count * extent, 1);
    store(at, memory);
    view *of = gpu.side().views.open(pointer(at), count, plan_of(all));
    ASSERT_NE(of, nullptr);
    EXPECT_EQ(gpu.side().views.find(of->address), of);
    EXPECT_EQ(of->len_bytes, packed(memory, all, count).size());

    // Out of it, from a place inside of a block on.
    constexpr std::size_t from = 5;
    std::string out(of->len_bytes - from, '\0');
    EXPECT_EQ(gpu.side().views.copy(out.data(), pointer(of->address + from), out.size()),
              status::ok);
    EXPECT_EQ(out, packed(memory, all, count).substr(from));

    // Into it. What is between the blocks stays.
    const std::string in = pattern(of->len_bytes, 2);
    EXPECT_EQ(gpu.side().views.copy(pointer(of->address), in.data(), in.size()), status::ok);
    unpack(in, all, count, &memory);
    EXPECT_EQ(load(at, memory.size()), memory);

    // Into another one.
    const CUdeviceptr other = allocate(count * extent);
    std::string there = pattern(count * extent, 3);
    store(other, there);
    view *second = gpu.side().views.open(pointer(other), count, plan_of(regular));
    ASSERT_NE(second, nullptr);
    const std::size_t both = std::min(of->len_bytes, second->len_bytes);
    EXPECT_EQ(gpu.side().views.copy(pointer(second->address), pointer(of->address), both),
              status::ok);
    std::string expected = packed(there, regular, count);
    expected.replace(0, both, in, 0, both);
    unpack(expected, regular, count, &there);
    EXPECT_EQ(load(other, there.size()), there);
    gpu.side().views.close(second);
    gpu.side().views.close(of);
}

ALONE(Views, StandForTheBytesOfBlocksInLoops)
{
    copies_of(regular);
}
ALONE(Views, StandForTheBytesOfListedBlocks)
{
    copies_of(irregular);
}

ALONE(Views, AreOfOneAllocationOfDeviceMemory)
{
    (void)start();
    with_gpu gpu;
    constexpr std::size_t count = 8;
    std::string host(count * extent, 'h');
    EXPECT_EQ(gpu.side().views.open(host.data(), count, plan_of(regular)), nullptr);
    const CUdeviceptr managed = allocate_managed(count * extent);
    view *in_managed = gpu.side().views.open(pointer(managed), count, plan_of(regular));
    ASSERT_NE(in_managed, nullptr);
    const std::string in(in_managed->len_bytes, 'm');
    std::memset(pointer(managed), 'g', count * extent);
    EXPECT_EQ(gpu.side().views.copy(pointer(in_managed->address), in.data(), in.size()),
              status::ok);
    std::string there(count * extent, 'g');
    unpack(in, regular, count, &there);
    EXPECT_EQ(0, std::memcmp(pointer(managed), there.data(), there.size()));
    gpu.side().views.close(in_managed);
    EXPECT_EQ(gpu.side().views.open(pointer(managed), 2 * count, plan_of(regular)), nullptr)
        << "it leaves the managed allocation";
    const CUdeviceptr at = allocate(mib);
    const std::size_t most = mib / extent;
    EXPECT_EQ(gpu.side().views.open(pointer(at), most + 10, plan_of(regular)), nullptr)
        << "it leaves the allocation";
    EXPECT_EQ(gpu.side().views.open(pointer(at), 0, plan_of(regular)), nullptr);
    // An address before the memory, of which the blocks lie in it.
    view *before = gpu.side().views.open(pointer(at - 4096), 3, plan_of({{4096, 8}, {4112, 8}}));
    ASSERT_NE(before, nullptr);
    gpu.side().views.close(before);
}

ALONE(Views, EndAndTheirAddressesMeanNothingThen)
{
    (void)start();
    with_gpu gpu;
    const CUdeviceptr at = allocate(mib);
    EXPECT_EQ(gpu.side().views.find(std::uint64_t{1} << 62), nullptr) << "there has been none";
    view *of = gpu.side().views.open(pointer(at), 4, plan_of(regular));
    ASSERT_NE(of, nullptr);
    const std::uint64_t address = of->address;
    EXPECT_TRUE(is_view_address(address));
    EXPECT_FALSE(is_view_address(at));
    std::string bytes(of->len_bytes + 1, '\0');
    EXPECT_EQ(gpu.side().views.copy(bytes.data(), pointer(address), bytes.size()),
              status::bad_argument)
        << "a byte more than there are";
    gpu.side().views.close(of);
    EXPECT_EQ(gpu.side().views.find(address), nullptr);
    EXPECT_EQ(gpu.side().views.copy(bytes.data(), pointer(address), 1), status::bad_argument);
    for (std::uint32_t i = 0; i < 2 * view_slots; ++i) {
        view *next = gpu.side().views.open(pointer(at), 4, plan_of(regular));
        ASSERT_NE(next, nullptr) << "the place of the last one is free";
        gpu.side().views.close(next);
    }
}

// Between two uses of a persistent request.
ALONE(Views, FindWhatIsThereNow)
{
    (void)start();
    with_gpu gpu;
    const CUdeviceptr at = allocate(2 * mib);
    view *of = gpu.side().views.open(pointer(at), 4, plan_of(regular));
    ASSERT_NE(of, nullptr);
    const unsigned long long first = of->buffer_id;
    OK(CU(cuMemFree)(at));
    std::string out(of->len_bytes, '\0');
    EXPECT_EQ(gpu.side().views.copy(out.data(), pointer(of->address), out.size()),
              status::bad_argument)
        << "nothing is there";
    const CUdeviceptr again = allocate(2 * mib);
    if (again == at) {
        const std::string memory = pattern(4 * extent, 7);
        store(again, memory);
        EXPECT_EQ(gpu.side().views.copy(out.data(), pointer(of->address), out.size()), status::ok);
        EXPECT_EQ(out, packed(memory, regular, 4));
        EXPECT_NE(of->buffer_id, first);
    }
    gpu.side().views.close(of);
}

ALONE(Views, ThatAreClosedOrTooShortAreNotTakenForMemoryWithoutGaps)
{
    (void)start();
    with_gpu gpu;
    const CUdeviceptr at = allocate(2 * mib);
    view *of = gpu.side().views.open(pointer(at), 4, plan_of(regular));
    ASSERT_NE(of, nullptr);
    const std::uint64_t address = of->address;
    const std::uint64_t len_bytes = of->len_bytes;
    strided_copy what;
    view_table &views = gpu.side().views;
    EXPECT_EQ(views.describe(at + mib, address, len_bytes, &what), status::ok);
    EXPECT_EQ(views.describe(at + mib, address + 8, len_bytes - 8, &what), status::ok);
    EXPECT_EQ(views.describe(at + mib, address + 8, len_bytes, &what), status::bad_argument);
    EXPECT_EQ(views.describe(address + 8, at + mib, len_bytes, &what), status::bad_argument);
    views.close(of);
    EXPECT_EQ(views.describe(at + mib, address, len_bytes, &what), status::bad_argument);
}

ALONE(PackedMemory, IsUsedAgainAndBounded)
{
    program p;
    packed_memory memory(driver());
    const packed_block one = memory.take(p.on, 100 * 1024);
    ASSERT_EQ(one.on, &p.on);
    EXPECT_GE(one.len_bytes, 100U * 1024);
    memory.give(one);
    EXPECT_EQ(memory.take(p.on, 128 * 1024).address, one.address);
    memory.give(one);
    EXPECT_EQ(memory.take(p.on, 2 * packed_memory::most_bytes).on, nullptr) << "beyond the bound";
    std::vector<packed_block> taken;
    for (packed_block each = memory.take(p.on, 32 * mib); each.on != nullptr;
         each = memory.take(p.on, 32 * mib)) {
        taken.push_back(each);
    }
    EXPECT_EQ(taken.size(), packed_memory::most_bytes / (32 * mib) - 1)
        << "what is free counts, too";
    memory.shrink(p.on);
    const packed_block last = memory.take(p.on, 32 * mib);
    EXPECT_EQ(last.on, &p.on) << "what was free has gone";
    memory.give(last);
    for (const packed_block &each : taken) {
        memory.give(each);
    }
}

} // namespace
