// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// view_directory_test.cc: blocks of a sender's, described in its segment and read by a receiver,
// and the garbage that a broken sender may leave there.
#include "opal/mca/common/gpusm/view_directory.h"

#include "tests/unit/shm_support.h"

#include <gtest/gtest.h>

#include <cstring>

namespace {

using namespace gpusm;
using namespace gpusm_test;

class ViewDirectory : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(sender_.attach(), status::ok); }

    // 4 blocks of 8 bytes, 100 bytes apart, in memory of 1000 bytes.
    remote_handle memory_{3, 7, share_kind::legacy, 0, 11, 5000, 1000};
    strided_side blocks_{5100, 0, {32, 400, 0, 0, 0, 1, 8, 0, {{4, 100}}}};

    bool publish(remote_handle *named)
    {
        return directory_.publish(memory_, blocks_, 1U << 20, 64, this, named);
    }
    bool read(const remote_handle &named)
    {
        return view_directory::read(sender_, named, &seen_memory_, &seen_blocks_);
    }
    // What is published next has these blocks; may a kernel be sent there?
    void expect(bool wanted, const char *why)
    {
        SCOPED_TRACE(why);
        remote_handle named{};
        ASSERT_TRUE(publish(&named));
        EXPECT_EQ(read(named), wanted);
        directory_.withdraw(named);
    }

    scratch_folder folder_;
    process one_{folder_.path(), 1};
    process two_{folder_.path(), 2};
    peer &sender_ = two_.towards(one_);
    view_directory directory_{one_.its().own()};
    remote_handle seen_memory_{};
    strided_side seen_blocks_{};
};

TEST_F(ViewDirectory, SaysWhereTheBlocksLieUntilItIsWithdrawn)
{
    remote_handle named{};
    ASSERT_TRUE(publish(&named));
    EXPECT_EQ(named.kind, share_kind::strided);
    EXPECT_EQ(named.base, 1U << 20);
    EXPECT_EQ(named.len_bytes, 64U);
    ASSERT_TRUE(read(named));
    EXPECT_EQ(std::memcmp(&seen_memory_, &memory_, sizeof(memory_)), 0);
    EXPECT_EQ(std::memcmp(&seen_blocks_, &blocks_, sizeof(blocks_)), 0);
    EXPECT_EQ(directory_.owner_of(named), this);
    directory_.withdraw(named);
    EXPECT_FALSE(read(named));
    EXPECT_EQ(directory_.owner_of(named), nullptr);
    remote_handle next{};
    ASSERT_TRUE(publish(&next));
    EXPECT_EQ(next.slot, named.slot);
    EXPECT_FALSE(read(named)) << "an older one than is there";
    EXPECT_TRUE(read(next));
    EXPECT_EQ(directory_.owner_of(named), nullptr);
    EXPECT_EQ(directory_.owner_of(next), this);
}

TEST_F(ViewDirectory, HasNoOwnerForAHandleThatNamesNothing)
{
    EXPECT_EQ(directory_.owner_of({}), nullptr) << "before the first one";
    remote_handle named{};
    ASSERT_TRUE(publish(&named));
    for (std::uint32_t wrong : {0U, named.slot - 1, named.slot + 1, named.slot + 3, ~0U}) {
        remote_handle other = named;
        other.slot = wrong;
        EXPECT_EQ(directory_.owner_of(other), nullptr) << wrong;
    }
    remote_handle none = named;
    none.slot += 3;
    none.generation = 0;
    EXPECT_EQ(directory_.owner_of(none), nullptr) << "one that is free";
    for (remote_handle &each : std::vector<remote_handle>(view_directory::descriptions - 1)) {
        ASSERT_TRUE(publish(&each));
    }
    remote_handle behind = named;
    behind.slot += 3 * view_directory::descriptions;
    EXPECT_EQ(directory_.owner_of(behind), nullptr);
}

TEST_F(ViewDirectory, IsFullAtSomeTimeAndHasRoomAgain)
{
    std::vector<remote_handle> all(view_directory::descriptions);
    for (remote_handle &each : all) {
        ASSERT_TRUE(publish(&each));
    }
    remote_handle more{};
    EXPECT_FALSE(publish(&more));
    for (const remote_handle &each : all) {
        EXPECT_TRUE(read(each));
    }
    directory_.withdraw(all[17]);
    EXPECT_TRUE(publish(&more));
    EXPECT_EQ(more.slot, all[17].slot);
}

TEST_F(ViewDirectory, LeadsAReceiverToNothingOutsideOfTheMemory)
{
    expect(true, "as it is: 2 elements");
    blocks_.address = 5000;
    expect(true, "at the beginning of the memory");
    blocks_.address = 4999;
    expect(false, "before it");
    blocks_.address = 6000 - 708;
    expect(true, "up to its end");
    blocks_.address += 1;
    expect(false, "behind it");
    blocks_ = {5900, 0, {32, -400, 0, 0, 0, 1, 8, -8, {{4, -100}}}};
    expect(true, "downwards");
    blocks_.address = 5707;
    expect(false, "downwards, and before it");
}

TEST_F(ViewDirectory, LeadsAReceiverToNoNonsense)
{
    for (const share_kind kind : {share_kind::none, share_kind::staged, share_kind::host,
                                  share_kind::strided, share_kind{77}}) {
        memory_.kind = kind;
        expect(false, "memory that is no export");
    }
    memory_.kind = share_kind::legacy;
    const strided_side good = blocks_;
    const auto with = [&](auto change, const char *why) {
        blocks_ = good;
        change(&blocks_);
        expect(false, why);
    };
    with([](strided_side *b) { b->begin = 1; }, "a beginning");
    with([](strided_side *b) { b->layout.blocks = 5000; }, "a list");
    with([](strided_side *b) { b->layout.levels = 5; }, "too many loops");
    with([](strided_side *b) { b->layout.block_bytes = 0; }, "no bytes");
    with([](strided_side *b) { b->layout.element_bytes = 33; }, "bytes that are in no block");
    with([](strided_side *b) { b->layout.level[0].count = 0; }, "a loop without turns");
    with([](strided_side *b) { b->layout.level[0].count = UINT64_MAX; }, "a loop without end");
    with([](strided_side *b) { b->layout.block_bytes = UINT64_MAX; }, "more bytes than elements");
    with(
        [](strided_side *b) {
            b->layout.element_bytes = b->layout.block_bytes = UINT64_MAX;
            b->layout.level[0].count = 1;
        },
        "more bytes than any memory");
    with([](strided_side *b) { b->layout.level[0].stride = INT64_MAX; }, "a stride that overflows");
    with([](strided_side *b) { b->layout.extent = INT64_MIN; }, "an extent that overflows");
    with([](strided_side *b) { b->layout.first = INT64_MAX; }, "a place that overflows");
    with(
        [](strided_side *b) {
            // Their product, in 64 bits, is 32.
            b->layout.levels = 2;
            b->layout.level[0] = {std::uint64_t{1} << 62, 0};
            b->layout.level[1] = {std::uint64_t{1} << 62, 0};
        },
        "a product that overflows");
}

TEST_F(ViewDirectory, IsLookedForInTheSegmentOnly)
{
    remote_handle named{};
    ASSERT_TRUE(publish(&named));
    for (const std::uint32_t slot : {0U, named.slot + 1, 0x7fffffffU, 0xffffffffU}) {
        remote_handle wrong = named;
        wrong.slot = slot;
        EXPECT_FALSE(read(wrong)) << slot;
    }
}

} // namespace
