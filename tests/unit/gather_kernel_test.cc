// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gather_kernel_test.cc: what the gather kernel is launched with, and its flags. A scripted driver;
// gather_driver_test.cc asks one that copies. What is left when it cannot be loaded is in
// copy_engine_faults_test.cc.
#include "opal/mca/common/gpusm/gpu/gather_kernel.h"
#include "opal/mca/common/gpusm/gpu/gather_kernel_code.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <iterator>
#include <memory>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr std::uint32_t kib = 1024;
constexpr std::uint32_t mib = 1024 * kib;

class GatherKernel : public testing::Test {
  protected:
    GatherKernel()
    {
        fake().stack = {context_};
        make(32);
    }
    ~GatherKernel() override { kernel_->unload(); }

    void make(unsigned blocks)
    {
        if (kernel_ != nullptr) {
            kernel_->unload();
        }
        kernel_ = std::make_unique<gather_kernel>(api_, blocks);
        ASSERT_TRUE(kernel_->load());
    }
    gather_kernel &kernel() { return *kernel_; }

    // Launches and returns what the driver was told.
    const fake_launch &launch(std::vector<gather_copy> copies, std::uint32_t slot = 0)
    {
        for (gather_copy &each : copies) {
            each.first_piece = 0xdead; // has no meaning yet
        }
        EXPECT_EQ(kernel_->launch(stream_, slot, copies.data(),
                                  static_cast<std::uint32_t>(copies.size())),
                  CUDA_SUCCESS);
        return fake().launches.back();
    }
    static std::vector<gather_copy> same(std::size_t count, std::uint32_t len_bytes)
    {
        std::vector<gather_copy> copies;
        for (std::uint64_t i = 0; i < count; ++i) {
            copies.push_back({0x10000000 + i * len_bytes, 0x7000000000 + i * len_bytes, len_bytes});
        }
        return copies;
    }

    driver_api api_ = reset_fake();
    const CUcontext context_ = handle_of<CUcontext>(0xc0);
    const CUstream stream_ = handle_of<CUstream>(0x50);
    std::unique_ptr<gather_kernel> kernel_;
};

using GatherKernelLoad = GatherKernel;

TEST_F(GatherKernelLoad, HandsTheDriverCompiledCodeFirst)
{
    if (1 == std::size(gather_code)) {
        GTEST_SKIP() << "built without nvcc";
    }
    EXPECT_EQ(fake().calls["module_load_data"], 1);
    EXPECT_EQ(fake().module_text.substr(0, 4), "\x50\xed\x55\xba") << "as a fat binary begins";
}

TEST_F(GatherKernelLoad, HandsTheDriverTextThatDriversFromCuda118OnCompileForVoltaAndLater)
{
    kernel().unload();
    fake().calls.clear();
    fake().fail("module_load_data", 1, CUDA_ERROR_NO_BINARY_FOR_GPU);
    ASSERT_EQ(kernel().load(), std::size(gather_code) > 1) << "the text comes second";
    ASSERT_TRUE(kernel().load());
    const std::string &text = fake().module_text;
    EXPECT_NE(text.find("\n.version 7.8\n.target sm_70\n"), std::string::npos);
    EXPECT_NE(text.find("\n.visible .entry gpusm_gather("), std::string::npos);
    EXPECT_NE(text.find("\n.visible .entry gpusm_gather_few("), std::string::npos);
    EXPECT_EQ(fake().modules.begin()->second, context_);
    const int loads = fake().calls["module_load_data"];
    EXPECT_EQ(loads, 2);
    EXPECT_TRUE(kernel().load()) << "twice is once";
    EXPECT_EQ(fake().calls["module_load_data"], loads);
}

// What the driver allocates goes with the context that was current, which is the program's.
TEST_F(GatherKernelLoad, KeepsTheFlagsInAPageOfItsOwnThatEveryContextMayUseEachInALineOfItsOwn)
{
    ASSERT_EQ(fake().registered.size(), 1U);
    const auto &[start, page] = *fake().registered.begin();
    EXPECT_EQ(start % 4096, 0U);
    EXPECT_EQ(page.len_bytes % 4096, 0U) << "or it would share a page with somebody else's memory";
    EXPECT_EQ(page.flags, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    std::set<std::uint64_t> lines;
    for (std::uint32_t slot = 0; slot < gather_slots; ++slot) {
        const fake_launch &made = launch(same(1, 10), slot);
        const std::uint64_t flag = made.arguments.done - fake_device_view;
        EXPECT_GE(flag, start);
        EXPECT_LE(flag + sizeof(std::uint32_t), start + page.len_bytes);
        EXPECT_EQ(made.arguments.slot, slot);
        lines.insert(flag / 64);
    }
    EXPECT_EQ(lines.size(), std::size_t{gather_slots});
}

TEST_F(GatherKernelLoad, UnloadGivesEverythingBackUnlessTheContextIsGoneAndLoadMayFollow)
{
    const expect_lines log(0);
    struct {
        bool context_lives;
        CUresult answer;
    } const table[] = {
        {true, CUDA_SUCCESS}, {true, CUDA_ERROR_DEINITIALIZED}, {false, CUDA_SUCCESS}};
    for (const auto &[context_lives, answer] : table) {
        (void)launch(same(3, 100), 7);
        EXPECT_FALSE(kernel().finished(7));
        fake().fail("module_unload", 1, answer);
        fake().fail("mem_host_unregister", 1, answer);
        const auto calls = fake().calls;
        kernel().unload(context_lives);
        kernel().unload();
        EXPECT_FALSE(kernel().loaded());
        EXPECT_EQ(fake().calls == calls, !context_lives);
        EXPECT_EQ(fake().modules.empty() && fake().registered.empty(),
                  context_lives && CUDA_SUCCESS == answer);
        fake().modules.clear(); // with the context
        fake().registered.clear();
        ASSERT_TRUE(kernel().load());
        EXPECT_TRUE(kernel().finished(7)) << "nothing is in flight";
    }
}

TEST_F(GatherKernelLoad, SaysWhatTheCompilerOfTheDriverSaid)
{
    kernel().unload();
    api_.module_load_data = [](CUmodule *, const void *, unsigned count, CUjit_option *options,
                               void **values) {
        if (0 == count) {
            return CUDA_ERROR_NO_BINARY_FOR_GPU; // of the compiled code
        }
        std::string text = "ptxas fatal: does not like it";
        std::map<CUjit_option, void *> given;
        for (unsigned i = 0; i < count; ++i) {
            given[options[i]] = values[i];
        }
        const auto room =
            reinterpret_cast<std::uintptr_t>(given[CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]);
        EXPECT_GT(room, 100U);
        text.append(room, '!'); // longer than there is room
        std::memcpy(given[CU_JIT_ERROR_LOG_BUFFER], text.data(), room);
        return CUDA_ERROR_INVALID_PTX;
    };
    const log_capture log(log_level::info);
    EXPECT_FALSE(kernel().load());
    EXPECT_EQ(log.count(), 1U);
    EXPECT_NE(log.text().find("SOME_ERROR: ptxas fatal: does not like it"), std::string::npos)
        << log.text();
}

using GatherKernelLaunch = GatherKernel;

// Each copy is cut into pieces without a gap, and the pieces are numbered without one.
void expect_covered(const fake_launch &made, const std::vector<gather_copy> &copies)
{
    const auto &arguments = made.arguments;
    ASSERT_EQ(arguments.copies, copies.size());
    std::uint32_t piece = 0;
    for (std::size_t i = 0; i < copies.size(); ++i) {
        const gather_copy &copy = arguments.copy[i];
        ASSERT_EQ(copy.destination, copies[i].destination);
        ASSERT_EQ(copy.source, copies[i].source);
        ASSERT_EQ(copy.len_bytes, copies[i].len_bytes);
        ASSERT_EQ(copy.first_piece, piece) << "copy " << i;
        std::uint32_t covered = 0;
        for (; covered < copy.len_bytes; ++piece) {
            const gather_piece part = gather_piece_of(
                copy.destination, copy.len_bytes, piece - copy.first_piece, arguments.piece_shift);
            ASSERT_EQ(part.begin, covered);
            ASSERT_GT(part.end, part.begin);
            ASSERT_LE(part.end - part.begin, 1U << arguments.piece_shift);
            if (part.begin > 0) {
                ASSERT_EQ((copy.destination + part.begin) % gather_alignment, 0U);
            }
            covered = part.end;
        }
        ASSERT_EQ(covered, copy.len_bytes);
    }
    ASSERT_EQ(piece, arguments.pieces);
}

TEST_F(GatherKernelLaunch, EveryByteOfEveryCopyIsInOnePiece)
{
    std::mt19937 random(11);
    for (const unsigned blocks : {1U, 3U, 32U}) {
        make(blocks);
        for (int round = 0; round < 300; ++round) {
            const std::size_t count = 1 + random() % gather_most_copies;
            const std::uint32_t longest = 1U << random() % 22;
            std::vector<gather_copy> copies;
            for (std::size_t i = 0; i < count; ++i) {
                const std::uint32_t around[] = {2 * kib, 4 * kib, 64 * kib}; // pieces
                const std::uint32_t any_len = 0 == random() % 2
                                                  ? 1 + random() % longest
                                                  : around[random() % 3] - 3 + random() % 7;
                copies.push_back({random(), random(), any_len, 0});
            }
            const fake_launch &made = launch(copies, round % gather_slots);
            ASSERT_NO_FATAL_FAILURE(expect_covered(made, copies))
                << blocks << " blocks, round " << round;
            fake().finish_all();
        }
    }
}

TEST_F(GatherKernelLaunch, WorkIsDealtToAllWarpsOfTheGridAndTheGridFitsTheWork)
{
    struct {
        unsigned blocks;
        std::size_t copies;
        std::uint32_t len_bytes;
        std::uint32_t piece_bytes;
        unsigned grid;
    } const shapes[] = {
        {32, 1, 8, 2 * kib, 1},          // one warp of one block
        {32, 16, 8, 2 * kib, 1},         // sixteen of one
        {32, 17, 8, 2 * kib, 2},         // and one of the next
        {32, 32, 8, 2 * kib, 2},         // the most that are few
        {32, 33, 8, 2 * kib, 3},         //
        {32, 128, 8, 2 * kib, 8},        //
        {32, 64, 64 * kib, 4 * kib, 32}, // 4 MiB: 1024 pieces for 512 warps
        {32, 16, mib, 16 * kib, 32},     // 16 MiB: as many
        {32, 128, mib, 64 * kib, 32},    // no larger ones
        {4, 64, 64 * kib, 32 * kib, 4},  // fewer blocks, larger pieces
        {1, 1, 64 * kib, 2 * kib, 1},    // two for each warp
        {32, 1, gather_most_len, 64 * kib, 32},
    };
    for (const auto &each : shapes) {
        make(each.blocks);
        const fake_launch &made = launch(same(each.copies, each.len_bytes));
        EXPECT_EQ(1U << made.arguments.piece_shift, each.piece_bytes) << each.len_bytes;
        EXPECT_EQ(made.blocks, each.grid) << each.len_bytes;
        EXPECT_STREQ(made.kernel, each.copies <= 32 ? "gpusm_gather_few" : "gpusm_gather");
        EXPECT_EQ(made.threads, 512U);
        EXPECT_EQ(made.stream, stream_);
        EXPECT_EQ(made.context, context_);
    }
}

TEST_F(GatherKernelLaunch, RefusesWhatIsOutOfRange)
{
    const auto refused = [&](std::uint32_t slot, std::size_t count, std::uint32_t last_bytes) {
        std::vector<gather_copy> copies = same(gather_most_copies + 1, 10);
        copies[count > 0 ? count - 1 : 0].len_bytes = last_bytes;
        return CUDA_ERROR_INVALID_VALUE ==
               kernel().launch(stream_, slot, copies.data(), static_cast<std::uint32_t>(count));
    };
    EXPECT_TRUE(refused(0, 0, 10));
    EXPECT_TRUE(refused(0, gather_most_copies + 1, 10));
    EXPECT_TRUE(refused(gather_slots, 1, 10));
    EXPECT_TRUE(refused(0, 2, 0));
    EXPECT_TRUE(refused(0, 2, gather_most_len + 1));
    kernel().unload();
    EXPECT_TRUE(refused(0, 1, 10));
    EXPECT_TRUE(fake().launches.empty());
}

using GatherKernelFlag = GatherKernel;

TEST_F(GatherKernelFlag, IsSetByItsLaunchAndNoOther)
{
    std::set<std::uint32_t> values;
    EXPECT_TRUE(kernel().finished(5)) << "before the first";
    for (std::size_t round = 0; round < 100; ++round) {
        values.insert(launch(same(1, 10), 5).arguments.done_value);
        (void)launch(same(1, 10), 6);
        EXPECT_FALSE(kernel().finished(5)) << "by the launch before";
        fake().finish_launch(2 * round);
        EXPECT_TRUE(kernel().finished(5));
        EXPECT_FALSE(kernel().finished(6));
        fake().finish_launch(2 * round + 1);
        fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        EXPECT_NE(kernel().launch(stream_, 5, same(1, 10).data(), 1), CUDA_SUCCESS);
        EXPECT_TRUE(kernel().finished(5)) << "what the driver refused changes nothing";
    }
    EXPECT_EQ(values.size(), 100U);
    EXPECT_EQ(fake().calls["stream_query"] + fake().calls["event_query"], 0);
}

} // namespace
