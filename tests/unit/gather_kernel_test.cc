// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// gather_kernel_test.cc: what the gather kernel is launched with, its flags, and what is left when
// the driver refuses something. A scripted driver; gather_driver_test.cc asks one that copies.
#include "opal/mca/btl/gpusm/gpu/gather_kernel.h"

#include "tests/unit/fake_driver.h"
#include "tests/unit/shm_support.h"

#include <initializer_list>
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

TEST_F(GatherKernelLoad, HandsTheDriverTextThatDriversFromCuda118OnCompileForVoltaAndLater)
{
    const std::string &text = fake().module_text;
    EXPECT_NE(text.find("\n.version 7.8\n.target sm_70\n"), std::string::npos);
    EXPECT_NE(text.find("\n.visible .entry gpusm_gather("), std::string::npos);
    EXPECT_NE(text.find("\n.visible .entry gpusm_gather_few("), std::string::npos);
    EXPECT_EQ(fake().modules.begin()->second, context_);
    EXPECT_TRUE(kernel().load()) << "twice is once";
    EXPECT_EQ(fake().calls["module_load_data"], 1);
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

TEST_F(GatherKernelLoad, ContextThatIsGoneIsAbandonedWithoutADriverCall)
{
    (void)launch(same(3, 100), 7);
    EXPECT_FALSE(kernel().finished(7)) << "the flag can still be looked at";
    const auto calls = fake().calls;
    kernel().unload(false);
    kernel().unload();
    EXPECT_FALSE(kernel().loaded());
    EXPECT_EQ(kernel().launch(stream_, 0, same(1, 10).data(), 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(fake().calls, calls) << "nothing is left to give back";
    fake().registered.clear(); // with the context
    ASSERT_TRUE(kernel().load());
    EXPECT_TRUE(kernel().finished(7)) << "nothing is in flight";
}

TEST_F(GatherKernelLoad, UnloadGivesEverythingBackAndLoadMayFollow)
{
    const log_capture log;
    for (const CUresult answer : {CUDA_SUCCESS, CUDA_ERROR_DEINITIALIZED}) { // the driver is down
        (void)launch(same(3, 100), 7);
        fake().finish_all();
        fake().fail("module_unload", 1, answer);
        fake().fail("mem_host_unregister", 1, answer);
        kernel().unload();
        kernel().unload();
        EXPECT_FALSE(kernel().loaded());
        EXPECT_EQ(fake().modules.empty() && fake().registered.empty(), CUDA_SUCCESS == answer);
        fake().registered.clear();
        ASSERT_TRUE(kernel().load());
        EXPECT_TRUE(kernel().finished(7)) << "nothing is in flight";
    }
    EXPECT_EQ(fake().calls["module_unload"], 2);
    EXPECT_EQ(fake().calls["mem_host_unregister"], 2);
    EXPECT_EQ(log.count(), 0U) << log.text();
}

TEST_F(GatherKernelLoad, ThatFailsLeavesNothingBehindAndSaysWhy)
{
    const std::pair<const char *, int> refused[] = {{"mem_host_register", 1},
                                                    {"mem_host_get_device_pointer", 1},
                                                    {"module_load_data", 1},
                                                    {"module_get_function", 1},
                                                    {"module_get_function", 2}};
    kernel().unload();
    for (const auto &[function, nth] : refused) {
        SCOPED_TRACE(function);
        const log_capture log(log_level::info);
        fake().fail(function, nth, CUDA_ERROR_INVALID_VALUE);
        EXPECT_FALSE(kernel().load());
        EXPECT_TRUE(fake().modules.empty());
        EXPECT_TRUE(fake().registered.empty());
        EXPECT_EQ(log.count(), 1U) << log.text();
        EXPECT_NE(log.text().find("CUDA_ERROR_INVALID_VALUE"), std::string::npos) << log.text();
        fake().heal();
    }
    EXPECT_TRUE(kernel().load());
}

TEST_F(GatherKernelLoad, SaysWhatTheCompilerOfTheDriverSaid)
{
    kernel().unload();
    api_.module_load_data = [](CUmodule *, const void *, unsigned count, CUjit_option *options,
                               void **values) {
        std::string text = "ptxas fatal: does not like it";
        char *log = nullptr;
        std::size_t room = 0;
        for (unsigned i = 0; i < count; ++i) {
            if (CU_JIT_ERROR_LOG_BUFFER == options[i]) {
                log = static_cast<char *>(values[i]);
            } else if (CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES == options[i]) {
                room = reinterpret_cast<std::uintptr_t>(values[i]);
            }
        }
        EXPECT_GT(room, 100U);
        text.append(room, '!'); // longer than there is room
        std::memcpy(log, text.data(), room);
        return CUDA_ERROR_INVALID_PTX;
    };
    const log_capture log(log_level::info);
    EXPECT_FALSE(kernel().load());
    EXPECT_NE(log.text().find("ptxas fatal: does not like it"), std::string::npos) << log.text();
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
                const auto len_bytes = static_cast<std::uint32_t>(1 + random() % longest);
                copies.push_back({random(), random(), len_bytes, 0});
            }
            const fake_launch &made = launch(copies, round % gather_slots);
            expect_covered(made, copies);
            if (HasFatalFailure()) {
                FAIL() << blocks << " blocks, round " << round;
            }
            fake().finish_all();
        }
    }
}

TEST_F(GatherKernelLaunch, PiecesOfEveryAlignmentAndLengthAroundThePieceCoverTheCopy)
{
    for (std::uint64_t beyond = 0; beyond < 256; ++beyond) {
        for (const std::uint32_t around : {2 * kib, 4 * kib, 64 * kib}) {
            std::vector<gather_copy> copies;
            for (std::uint32_t len = around - 3; len <= around + 3; ++len) {
                copies.push_back({0x100000 + beyond, 0x200000, len, 0});
            }
            expect_covered(launch(copies), copies);
            fake().finish_all();
        }
    }
}

TEST_F(GatherKernelLaunch, WorkIsDealtToAllWarpsOfTheGridAndTheGridFitsTheWork)
{
    struct shape {
        unsigned blocks;
        std::size_t copies;
        std::uint32_t len_bytes;
        std::uint32_t piece_bytes;
        unsigned grid;
    };
    const shape shapes[] = {
        {32, 1, 8, 2 * kib, 1},          // one warp of one block
        {32, 16, 8, 2 * kib, 1},         // sixteen of one
        {32, 17, 8, 2 * kib, 2},         // and one of the next
        {32, 128, 8, 2 * kib, 8},        //
        {32, 64, 64 * kib, 4 * kib, 32}, // 4 MiB: 1024 pieces for 512 warps
        {32, 16, mib, 16 * kib, 32},     // 16 MiB: as many
        {32, 128, mib, 64 * kib, 32},    // no larger ones
        {4, 64, 64 * kib, 32 * kib, 4},  // fewer blocks, larger pieces
        {1, 1, 64 * kib, 2 * kib, 1},    // two for each warp
        {32, 1, gather_most_len, 64 * kib, 32},
    };
    for (const shape &each : shapes) {
        make(each.blocks);
        const fake_launch &made = launch(same(each.copies, each.len_bytes));
        EXPECT_EQ(1U << made.arguments.piece_shift, each.piece_bytes) << each.len_bytes;
        EXPECT_EQ(made.blocks, each.grid) << each.len_bytes;
        EXPECT_EQ(made.threads, 512U);
        EXPECT_EQ(made.stream, stream_);
        EXPECT_EQ(made.context, context_);
    }
}

TEST_F(GatherKernelLaunch, FewCopiesAreTheShorterParameter)
{
    for (const std::size_t count : {1U, 16U, unsigned{gather_few_copies}}) {
        EXPECT_STREQ(launch(same(count, 50)).kernel, "gpusm_gather_few");
    }
    for (const std::size_t count : {gather_few_copies + 1U, 128U}) {
        EXPECT_STREQ(launch(same(count, 50)).kernel, "gpusm_gather");
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
    for (std::uint32_t slot = 0; slot < gather_slots; ++slot) {
        EXPECT_TRUE(kernel().finished(slot)) << "before the first";
        (void)launch(same(1, 10), slot);
        EXPECT_FALSE(kernel().finished(slot));
    }
    for (std::uint32_t done = 0; done < gather_slots; ++done) {
        fake().finish_launch(done);
        for (std::uint32_t slot = 0; slot < gather_slots; ++slot) {
            EXPECT_EQ(kernel().finished(slot), slot <= done);
        }
    }
    std::set<std::uint32_t> values;
    for (std::size_t round = 0; round < 100; ++round) {
        const fake_launch &made = launch(same(1, 10), 5);
        EXPECT_FALSE(kernel().finished(5)) << "by the launch before";
        EXPECT_TRUE(values.insert(made.arguments.done_value).second);
        fake().finish_launch(gather_slots + round);
        EXPECT_TRUE(kernel().finished(5));
    }
    EXPECT_EQ(fake().calls["stream_query"] + fake().calls["event_query"], 0);
}

TEST_F(GatherKernelFlag, OfALaunchThatTheDriverRefusedIsAsBefore)
{
    fake().fail("launch_kernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    const std::vector<gather_copy> copies = same(2, 10);
    EXPECT_EQ(kernel().launch(stream_, 3, copies.data(), 2), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    EXPECT_TRUE(kernel().finished(3));
    (void)launch(copies, 3);
    EXPECT_FALSE(kernel().finished(3));
    fake().finish_all();
    EXPECT_TRUE(kernel().finished(3));
}

} // namespace
