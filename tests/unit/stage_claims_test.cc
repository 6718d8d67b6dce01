// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// stage_claims_test.cc: what the other side of a staged get says about memory: where an owner's
// ring is, and where a reader's range may be written.
#include "opal/mca/btl/gpusm/shm/stage.h"

#include "tests/unit/shm_support.h"

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

namespace {

using gpusm::can_be_written;
using gpusm::share_kind;
using gpusm::stage_target;
using gpusm::status;

constexpr std::size_t kibi = 1024;

TEST(CanBeWritten, OnlyARangeThatEndsInTheExport)
{
    constexpr std::uint64_t base = 0x7000000000;
    constexpr std::uint64_t len = 64 * kibi;
    const auto holds = [](std::uint64_t address, std::uint64_t len_bytes) {
        stage_target target{};
        target.handle.kind = share_kind::legacy;
        target.handle.base = base;
        target.handle.len_bytes = len;
        target.address = address;
        return can_be_written(target, len_bytes);
    };
    EXPECT_TRUE(holds(base, len));
    EXPECT_TRUE(holds(base + len - 1, 1));
    EXPECT_TRUE(holds(base + len, 0));
    EXPECT_FALSE(holds(base, len + 1));
    EXPECT_FALSE(holds(base + 1, len));
    EXPECT_FALSE(holds(base + len, 1));
    EXPECT_FALSE(holds(base - 1, 1));
    EXPECT_FALSE(holds(0, 1));
    EXPECT_FALSE(holds(UINT64_MAX, 1));
    EXPECT_FALSE(holds(base + 1, UINT64_MAX)) << "its end wraps around";
    EXPECT_FALSE(holds(base + 1, UINT64_MAX - base)) << "likewise";
}

TEST(CanBeWritten, OnlyInWhatCanBeMapped)
{
    const auto of_kind = [](share_kind kind) {
        stage_target target{};
        target.handle.kind = kind;
        target.handle.len_bytes = 100;
        return can_be_written(target, 100);
    };
    EXPECT_TRUE(of_kind(share_kind::legacy));
    EXPECT_TRUE(of_kind(share_kind::descriptors));
    EXPECT_TRUE(of_kind(share_kind::pool));
    EXPECT_FALSE(of_kind(share_kind::none));
    EXPECT_FALSE(of_kind(share_kind::staged));
    EXPECT_FALSE(of_kind(share_kind::host));
    EXPECT_FALSE(of_kind(static_cast<share_kind>(99))) << "a peer's byte";
}

// What an owner says about its ring is believed as far as its segment goes.
TEST(PeerRing, IsHeldOnlyWhereTheSegmentHasMemory)
{
    const gpusm_test::scratch_folder folder;
    gpusm::segment own = gpusm_test::make_segment(folder.path(), 1);
    std::uint32_t granule = 0;
    ASSERT_EQ(own.carve(128 * kibi, &granule), status::ok);
    gpusm::peer_segment theirs;
    ASSERT_EQ(gpusm::peer_segment::attach(folder.path().c_str(), own.identity(), &theirs),
              status::ok);
    const std::uint64_t ring = granule * gpusm::granule_bytes;
    EXPECT_TRUE(theirs.holds(ring, 128 * kibi));
    EXPECT_TRUE(theirs.holds(ring, 0));
    EXPECT_FALSE(theirs.holds(theirs.view().frag_offset - 1, 1));
    EXPECT_FALSE(theirs.holds(0, 128 * kibi));
    EXPECT_FALSE(theirs.holds(ring, UINT64_MAX - ring + 1)) << "its end wraps around";
    EXPECT_FALSE(theirs.holds(UINT64_MAX, 1));
    const std::uint64_t committed = theirs.view().header->committed_bytes.load();
    EXPECT_TRUE(theirs.holds(ring, committed - ring));
    EXPECT_FALSE(theirs.holds(ring, committed - ring + 1));
    theirs.view().header->committed_bytes.store(UINT64_MAX); // a lie
    EXPECT_FALSE(theirs.holds(ring, (std::uint64_t{1} << 20) - ring + 1));
}

} // namespace
