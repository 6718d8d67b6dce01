// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// reduce_kernel_test.cc: what the reduce kernel is launched with, and its flags. A scripted driver;
// reduce_driver_test.cc asks one that combines. What all kernels have in common is in
// gather_kernel_test.cc.
#include "opal/mca/common/gpusm/gpu/reduce_kernel.h"
#include "opal/mca/common/gpusm/gpu/reduce_kernel_code.h"

#include "tests/unit/fake_driver.h"

#include <cstring>
#include <iterator>
#include <limits>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint64_t here = 0x10000000;
constexpr std::uint64_t there = 0x7000000000;

// The sum of a buffer here and one there, into both.
reduction sum_of_two(std::uint64_t elements, reduce_type type = reduce_type::float32,
                     std::uint64_t offset = 0)
{
    reduction made = {};
    made.sources[0] = made.targets[0] = here;
    made.sources[1] = made.targets[1] = there + offset;
    made.source_count = made.target_count = 2;
    made.elements = elements;
    made.op = reduce_op::sum;
    made.type = type;
    return made;
}

class ReduceKernel : public testing::Test {
  protected:
    ReduceKernel()
    {
        fake().stack = {handle_of<CUcontext>(0xc0)};
        EXPECT_TRUE(kernel_.load());
    }
    ~ReduceKernel() override { kernel_.unload(); }

    // Launches and returns what the driver was told.
    const fake_launch &launch(const reduction &what, std::uint32_t slot = 0)
    {
        EXPECT_EQ(kernel_.launch(stream_, slot, what), CUDA_SUCCESS);
        return fake().launches.back();
    }
    bool refused(const reduction &what, std::uint32_t slot = 0)
    {
        return CUDA_ERROR_INVALID_VALUE == kernel_.launch(stream_, slot, what);
    }

    driver_api api_ = reset_fake();
    const CUstream stream_ = handle_of<CUstream>(0x50);
    reduce_kernel kernel_{api_, 8};
};

TEST_F(ReduceKernel, IsTextForDriversFromCuda118OnAndVoltaAndLaterWithAllItsEntries)
{
    kernel_.unload();
    fake().fail("module_load_data", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    ASSERT_EQ(kernel_.load(), std::size(reduce_code) > 1) << "the text comes second";
    ASSERT_TRUE(kernel_.load());
    const std::string &text = fake().module_text;
    EXPECT_NE(text.find("\n.version 7.8\n.target sm_70\n"), std::string::npos);
    for (const char *entry : {"gpusm_reduce(", "gpusm_reduce_any("}) {
        EXPECT_NE(text.find("\n.visible .entry " + std::string(entry)), std::string::npos) << entry;
    }
}

TEST_F(ReduceKernel, HandsOverTheReductionAndHowItsBytesAreDealtOut)
{
    const reduction what = sum_of_two(1000003, reduce_type::int16, 4);
    const fake_launch &made = launch(what, 3);
    EXPECT_STREQ(made.kernel, "gpusm_reduce_any");
    EXPECT_EQ(made.threads, 512U);
    EXPECT_EQ(made.blocks, 8U) << "no more than are allowed";
    EXPECT_EQ(made.stream, stream_);
    EXPECT_EQ(made.reduce.slot, 3U);
    EXPECT_EQ(made.reduce.vectors, 125000U);
    EXPECT_EQ(made.reduce.tail_bytes, 6U);
    EXPECT_EQ(made.reduce.word_bytes, 4U);
    EXPECT_EQ(made.reduce.tail_word_bytes, 2U);
    EXPECT_EQ(std::memcmp(&made.reduce.what, &what, sizeof(what)), 0);
}

TEST_F(ReduceKernel, TheGridDependsOnTheLengthAndTheEntryOnTheAlignment)
{
    const struct {
        std::uint64_t elements; // of 4 bytes
        std::uint64_t offset;
        unsigned grid;
        const char *entry;
        unsigned word_bytes;
    } table[] = {
        {1, 0, 1, "gpusm_reduce_any", 16},      {4, 0, 1, "gpusm_reduce", 16},
        {2048, 0, 1, "gpusm_reduce", 16},       {2049, 0, 2, "gpusm_reduce_any", 16},
        {2052, 0, 2, "gpusm_reduce", 16},       {8 * 2048, 0, 8, "gpusm_reduce", 16},
        {1ULL << 40, 0, 8, "gpusm_reduce", 16}, {4, 8, 1, "gpusm_reduce_any", 8},
        {4, 12, 1, "gpusm_reduce_any", 4},      {4, 6, 1, "gpusm_reduce_any", 2},
        {4, 15, 1, "gpusm_reduce_any", 1},
    };
    for (const auto &each : table) {
        SCOPED_TRACE(each.elements);
        const fake_launch &made =
            launch(sum_of_two(each.elements, reduce_type::int32, each.offset));
        EXPECT_EQ(made.blocks, each.grid);
        EXPECT_STREQ(made.kernel, each.entry);
        EXPECT_EQ(made.reduce.word_bytes, each.word_bytes);
    }
}

TEST_F(ReduceKernel, OneBufferOutOfAlignmentAsksForShorterWordsOfAll)
{
    reduction what = sum_of_two(64);
    what.targets[1] += 8;
    EXPECT_EQ(launch(what).reduce.word_bytes, 8U);
    what.sources[1] += 4;
    EXPECT_EQ(launch(what).reduce.word_bytes, 4U);
    // What is behind the last one is of no account.
    what = sum_of_two(64);
    what.targets[2] = what.sources[2] = 1;
    EXPECT_STREQ(launch(what).kernel, "gpusm_reduce");
}

TEST_F(ReduceKernel, RefusesWhatIsNotDefinedOrOutOfRange)
{
    const auto with = [](auto change) {
        reduction what = sum_of_two(16);
        change(what);
        return what;
    };
    EXPECT_FALSE(refused(with([](reduction &) {})));
    fake().launches.clear();
    EXPECT_TRUE(refused(with([](reduction &r) { r.op = reduce_op::band; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.op = reduce_op::count; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.type = reduce_type::count; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.type = static_cast<reduce_type>(255); })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.type = reduce_type::int_int; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.source_count = 0; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.target_count = 0; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.source_count = reduce_most_ranks + 1; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.target_count = reduce_most_ranks + 1; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.elements = 0; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.elements = 1ULL << 62; }))) << "2^64 bytes";
    EXPECT_TRUE(refused(with([](reduction &r) { r.elements = (1ULL << 62) - 1; })))
        << "its end has no address";
    constexpr std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
    EXPECT_TRUE(refused(with([](reduction &r) { r.sources[1] = last - 62; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.targets[0] = last - 62; })));
    EXPECT_TRUE(refused(with([](reduction &r) { r.sources[0] = 0; })));
    EXPECT_TRUE(refused(sum_of_two(16), reduce_slots));
    kernel_.unload();
    EXPECT_TRUE(refused(sum_of_two(16)));
    EXPECT_TRUE(fake().launches.empty());
}

TEST_F(ReduceKernel, ALaunchThatTheDriverRefusesLeavesItsSlotAsItWas)
{
    fake().fail("launch_kernel", 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(kernel_.launch(stream_, 1, sum_of_two(16)), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(kernel_.finished(1));
    (void)launch(sum_of_two(16), 1);
    EXPECT_FALSE(kernel_.finished(1));
    fake().finish_launch(0);
    EXPECT_TRUE(kernel_.finished(1));
}

TEST_F(ReduceKernel, EachSlotHasAFlagOfItsOwnThatItsLaunchSets)
{
    std::set<std::uint64_t> lines;
    for (std::uint32_t slot = 0; slot < reduce_slots; ++slot) {
        EXPECT_TRUE(kernel_.finished(slot)) << "before the first";
        lines.insert(launch(sum_of_two(16), slot).reduce.done / 64);
        EXPECT_FALSE(kernel_.finished(slot));
    }
    EXPECT_EQ(lines.size(), std::size_t{reduce_slots});
    for (std::uint32_t slot = 0; slot < reduce_slots; ++slot) {
        fake().finish_launch(slot);
        EXPECT_TRUE(kernel_.finished(slot));
        EXPECT_EQ(slot + 1 < reduce_slots, !kernel_.finished(reduce_slots - 1));
    }
}

} // namespace
