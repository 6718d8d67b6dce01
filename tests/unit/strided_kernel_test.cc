// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// strided_kernel_test.cc: what the strided kernel is launched with, and its flags. A scripted
// driver; strided_driver_test.cc asks one that copies. What all kernels have in common is in
// gather_kernel_test.cc.
#include "opal/mca/common/gpusm/gpu/strided_kernel.h"
#include "opal/mca/common/gpusm/gpu/strided_kernel_code.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"
#include "tests/unit/strided_support.h"

#include <cstring>
#include <iterator>
#include <memory>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint64_t there = 0x7000000000;
constexpr std::uint64_t here = 0x10000000;

// A vector of blocks of 64 bytes in every 256, to contiguous memory.
strided_copy vector_copy(std::uint64_t len_bytes, std::uint32_t word_bytes = 16)
{
    strided_copy made{
        {there, 0, {}}, strided_contiguous(here, len_bytes), len_bytes, word_bytes, 0};
    made.source.layout = {.element_bytes = 64 * 1024,
                          .extent = 256 * 1024,
                          .levels = 1,
                          .block_bytes = 64,
                          .level = {{1024, 256}}};
    return made;
}

class StridedKernel : public testing::Test {
  protected:
    StridedKernel()
    {
        fake().stack = {handle_of<CUcontext>(0xc0)};
        EXPECT_TRUE(kernel_.load());
    }
    ~StridedKernel() override { kernel_.unload(); }

    CUresult try_launch(const std::vector<strided_copy> &copies, std::uint32_t slot = 0)
    {
        std::vector<const strided_copy *> list;
        for (const strided_copy &each : copies) {
            list.push_back(&each);
        }
        return kernel_.launch(stream_, slot, list.data(), static_cast<std::uint32_t>(list.size()));
    }
    // Launches and returns what the driver was told.
    const fake_launch &launch(const std::vector<strided_copy> &copies, std::uint32_t slot = 0)
    {
        EXPECT_EQ(try_launch(copies, slot), CUDA_SUCCESS);
        return fake().launches.back();
    }

    driver_api api_ = reset_fake();
    const CUstream stream_ = handle_of<CUstream>(0x50);
    strided_kernel kernel_{api_, 8};
};

TEST_F(StridedKernel, IsTextForDriversFromCuda118OnAndVoltaAndLaterWithAllItsEntries)
{
    kernel_.unload();
    fake().fail("module_load_data", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    ASSERT_EQ(kernel_.load(), std::size(strided_code) > 1) << "the text comes second";
    ASSERT_TRUE(kernel_.load());
    const std::string &text = fake().module_text;
    EXPECT_NE(text.find("\n.version 7.8\n.target sm_70\n"), std::string::npos);
    for (const char *entry :
         {"gpusm_strided_short_few(", "gpusm_strided_short(", "gpusm_strided_long_few(",
          "gpusm_strided_long(", "gpusm_strided_wide("}) {
        EXPECT_NE(text.find("\n.visible .entry " + std::string(entry)), std::string::npos) << entry;
    }
}

TEST_F(StridedKernel, HandsOverTheCopiesAndHowManyChunksComeBeforeEach)
{
    std::vector<strided_copy> copies;
    std::uint32_t chunks = 0;
    std::vector<std::uint32_t> before;
    for (std::uint32_t i = 0; i < strided_most_copies; ++i) {
        const std::uint32_t word_bytes = 1U << i % 5;
        const std::uint64_t chunk_bytes = 2048ULL * word_bytes;
        copies.push_back(vector_copy(i * chunk_bytes + (i % 2 > 0 ? 16 : chunk_bytes), word_bytes));
        before.push_back(chunks);
        chunks += i + 1;
    }
    const fake_launch &made = launch(copies, 3);
    EXPECT_STREQ(made.kernel, "gpusm_strided_long");
    EXPECT_EQ(made.threads, 512U);
    EXPECT_EQ(made.blocks, 8U) << "no more than are allowed";
    EXPECT_EQ(made.stream, stream_);
    EXPECT_EQ(made.strided.slot, 3U);
    EXPECT_EQ(made.strided.copies, std::uint32_t{strided_most_copies});
    EXPECT_EQ(made.strided.chunks, chunks);
    for (std::size_t i = 0; i < copies.size(); ++i) {
        const strided_work &work = made.strided.work[i];
        const strided_copy wanted = strided_prepared(copies[i]);
        EXPECT_EQ(std::memcmp(&work.copy, &wanted, sizeof(wanted)), 0) << i;
        EXPECT_EQ(work.first_chunk, before[i]) << i;
    }
}

TEST_F(StridedKernel, TheGridIsABlockForEachChunkUpToTheLimitAndTheEntryDependsOnCountAndLength)
{
    constexpr std::uint64_t gib = 1ULL << 30;
    const struct {
        std::size_t copies;
        std::uint64_t len_bytes;
        std::uint64_t begin;
        unsigned grid;
        const char *entry;
    } table[] = {
        {1, 16, 0, 1, "gpusm_strided_short_few"},
        {1, 8192, 0, 1, "gpusm_strided_short_few"},
        {1, 8208, 0, 2, "gpusm_strided_short_few"},
        {1, 65536, 0, 8, "gpusm_strided_short_few"}, // a word for each thread
        {1, 65552, 0, 3, "gpusm_strided_long_few"},
        {3, 40000, 0, 6, "gpusm_strided_long_few"},
        {4, 16, 0, 4, "gpusm_strided_short"},
        {4, 40000, 0, 8, "gpusm_strided_long"},
        {2, 2 * gib, 0, 8, "gpusm_strided_long_few"},
        {1, 2 * gib + 16, 0, 8, "gpusm_strided_wide"},
        {1, 2 * gib, 16, 8, "gpusm_strided_wide"},
        {1, gib, gib * 64, 8, "gpusm_strided_long_few"}, // of which whole elements are left out
    };
    for (const auto &each : table) {
        SCOPED_TRACE(each.len_bytes);
        std::vector<strided_copy> copies(each.copies, vector_copy(16));
        copies.back() = vector_copy(each.len_bytes);
        copies.back().source.begin = each.begin;
        if (each.copies > 1 && each.len_bytes < gib) {
            copies.assign(each.copies, copies.back());
        }
        const fake_launch &made = launch(copies);
        EXPECT_EQ(made.blocks, each.grid);
        EXPECT_STREQ(made.kernel, each.entry);
    }
}

TEST_F(StridedKernel, RefusesWhatIsOutOfRange)
{
    const auto refused = [&](const std::vector<strided_copy> &copies, std::uint32_t slot = 0) {
        return CUDA_ERROR_INVALID_VALUE == try_launch(copies, slot);
    };
    EXPECT_TRUE(refused({}));
    EXPECT_TRUE(refused(std::vector(strided_most_copies + 1, vector_copy(16))));
    EXPECT_TRUE(refused({vector_copy(16)}, strided_slots));
    EXPECT_TRUE(refused({vector_copy(16), vector_copy(24)})) << "half a word";
    EXPECT_TRUE(refused({vector_copy(1ULL << 42, 1)})) << "too many chunks";
    kernel_.unload();
    EXPECT_TRUE(refused({vector_copy(16)}));
    EXPECT_TRUE(fake().launches.empty());
}

TEST_F(StridedKernel, EachSlotHasAFlagOfItsOwnThatItsLaunchSets)
{
    std::set<std::uint64_t> lines;
    const auto &[start, page] = *fake().registered.begin();
    for (std::uint32_t slot = 0; slot < strided_slots; ++slot) {
        EXPECT_TRUE(kernel_.finished(slot)) << "before the first";
        const std::uint64_t flag =
            launch({vector_copy(16)}, slot).arguments.done - fake_device_view;
        EXPECT_GE(flag, start);
        EXPECT_LE(flag + sizeof(std::uint32_t), start + page.len_bytes);
        EXPECT_FALSE(kernel_.finished(slot));
        lines.insert(flag / 64);
    }
    EXPECT_EQ(lines.size(), std::size_t{strided_slots});
    for (std::uint32_t slot = 0; slot < strided_slots; ++slot) {
        fake().finish_launch(slot);
        EXPECT_TRUE(kernel_.finished(slot));
        EXPECT_EQ(slot + 1 < strided_slots, !kernel_.finished(strided_slots - 1));
    }
}

} // namespace
