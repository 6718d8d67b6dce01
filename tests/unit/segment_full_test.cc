// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// segment_full_test.cc: a full /dev/shm, played by a tiny tmpfs that only this process sees: an
// error and never a SIGBUS, whatever is touched.
#include "opal/mca/common/gpusm/shm/node.h"

#include "tests/unit/shm_support.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/mount.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

// A mount namespace of our own, so that no mount outlives this process. Empty: done.
std::string enter_own_namespace()
{
    if (!enter_namespaces(CLONE_NEWNS)) {
        return std::string("unshare: ") + std::strerror(errno);
    }
    if (0 != mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr)) {
        return std::string("making mounts private: ") + std::strerror(errno);
    }
    return {};
}

class FullFileSystem : public testing::Test {
  protected:
    void TearDown() override
    {
        if (mounted_) {
            (void)umount2(folder_.path().c_str(), MNT_DETACH);
        }
    }
    // Why it could not be done; empty: it has been.
    std::string mount_tmpfs(const char *options)
    {
        static const std::string why_not = enter_own_namespace();
        if (!why_not.empty()) {
            return why_not;
        }
        mounted_ = 0 == mount("gpusm-test", folder_.path().c_str(), "tmpfs", 0, options);
        return mounted_ ? "" : std::strerror(errno);
    }
    // Takes all memory that is left.
    void fill()
    {
        const file_mapping filler(
            open((folder_.path() + "/filler").c_str(), O_RDWR | O_CREAT, 0600));
        ASSERT_GE(filler.fd(), 0);
        const std::string page(4096, 'x');
        while (static_cast<ssize_t>(page.size()) == write(filler.fd(), page.data(), page.size())) {
        }
        ASSERT_EQ(errno, ENOSPC);
    }
    // Where carve() was refused it does not ask again at once.
    static void carve_when_possible(segment &own, std::uint32_t *granule)
    {
        const deadline patience(10);
        status s = status::no_memory;
        while (status::no_memory == s && !patience.over()) {
            s = own.carve(4096, granule);
        }
        ASSERT_EQ(s, status::ok);
    }
    static int messages_handled(node &self)
    {
        const log_capture log;
        return self.poll(8, [](peer &, const frag_header &, const unsigned char *) {});
    }
    void make_room() { ASSERT_EQ(unlink((folder_.path() + "/filler").c_str()), 0); }

    scratch_folder folder_;
    bool mounted_ = false;
};

#define MOUNT_OR_SKIP(options)                                                                     \
    if (const std::string why_not = mount_tmpfs(options); !why_not.empty()) {                      \
        GTEST_SKIP() << "a tmpfs cannot be mounted here: " << why_not;                             \
    }

TEST_F(FullFileSystem, NoSegmentIsMadeAndNoFileIsLeft)
{
    MOUNT_OR_SKIP("size=16k");
    segment out;
    std::string why;
    EXPECT_EQ(segment::create(small_options(folder_.path(), 0), &out, &why), status::no_memory);
    EXPECT_FALSE(out.valid());
    EXPECT_NE(why, "");
    EXPECT_EQ(folder_.files(), 0U);
}

TEST_F(FullFileSystem, WithoutAFreeInodeIsNoMemoryToo)
{
    MOUNT_OR_SKIP("size=8m,nr_inodes=2");
    const segment first = make_segment(folder_.path(), 0);
    segment out;
    std::string why;
    EXPECT_EQ(segment::create(small_options(folder_.path(), 1), &out, &why), status::no_memory);
    EXPECT_NE(why, "");
}

TEST_F(FullFileSystem, CarvingAndExportsAnswerNoMemoryUntilThereIsRoomAgain)
{
    MOUNT_OR_SKIP("size=2m");
    segment own = make_segment(folder_.path(), 0);
    fill();
    const log_capture log;
    std::uint32_t granule = 0;
    std::size_t carved = 0;
    for (; carved < 1U << 20 && status::ok == own.carve(4096, &granule); carved += 4096) {
        std::memset(own.at(granule), 1, 4096);
    }
    EXPECT_LT(carved, 256U << 10) << "only what had memory from the start";
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(own.carve(4096, &granule), status::no_memory);
    }
    EXPECT_EQ(log.count(), 1U) << "it is said once\n" << log.text();
    EXPECT_EQ(own.commit_exports(4), status::no_memory);
    EXPECT_EQ(own.view().header->exports_committed.load(), 0U);
    make_room();
    const std::uint32_t last = granule;
    carve_when_possible(own, &granule);
    EXPECT_EQ(granule, last + 4096 / granule_bytes) << "what failed has taken nothing";
    std::memset(own.at(granule), 1, 4096);
    ASSERT_EQ(own.commit_exports(4), status::ok);
    own.view().exports[3].base = 1;
}

TEST_F(FullFileSystem, WhatIsTooMuchDoesNotStandInTheWayOfLess)
{
    MOUNT_OR_SKIP("size=2m");
    segment_options options = small_options(folder_.path(), 0);
    options.segment_bytes = 4U << 20;
    segment own = make_segment(options);
    const log_capture log;
    std::uint32_t granule = 0;
    EXPECT_EQ(own.carve(3U << 20, &granule), status::no_memory);
    EXPECT_EQ(own.carve(64U << 10, &granule), status::ok);
}

TEST_F(FullFileSystem, AllThatASegmentNeedsToWorkHasMemoryFromTheStart)
{
    MOUNT_OR_SKIP("size=2m");
    segment_options options = small_options(folder_.path(), 0);
    options.fifo_slots = 4096;
    EXPECT_EXIT(
        {
            segment own = make_segment(options);
            fill();
            std::memset(static_cast<void *>(own.view().events), 1,
                        options.event_slots * sizeof(event_slot));
            for (std::uint32_t i = 0; i < options.fifo_slots; ++i) {
                if (status::ok != fifo_post(own.view().fifo, {1, 1})) {
                    _exit(1);
                }
            }
            _exit(0);
        },
        testing::ExitedWithCode(0), "");
}

TEST_F(FullFileSystem, TheSlotsOfExpectedPeersHaveMemoryFromTheStart)
{
    MOUNT_OR_SKIP("size=2m");
    constexpr std::uint32_t in_a_page = page_bytes / sizeof(peer_slot);
    segment_options options = small_options(folder_.path(), 0);
    options.peer_slots = 4 * in_a_page;
    options.expected_peers = in_a_page + 1;
    const segment own = make_segment(options);
    peer_segment theirs;
    ASSERT_EQ(peer_segment::attach(folder_.path().c_str(), own.identity(), &theirs), status::ok);
    fill();
    std::uint32_t slot = 0;
    for (std::uint32_t i = 0; i < 2 * in_a_page; ++i) {
        ASSERT_EQ(theirs.claim_peer_slot({1, i, 3}, &slot), status::ok);
    }
    EXPECT_EQ(theirs.claim_peer_slot({1, 0, 4}, &slot), status::no_memory);
}

TEST_F(FullFileSystem, APeerThatFoundNoMemoryForItsSlotSendsWhenThereIsRoomAgain)
{
    MOUNT_OR_SKIP("size=4m");
    segment_options options = small_options(folder_.path(), 0);
    const segment target = make_segment(options);
    segment own = make_segment(folder_.path(), 1);
    outgoing fragment = make_fragment(own, "a");
    peer to(own.identity(), target.identity(), folder_.path());
    fill();
    const expect_lines log(1);
    ASSERT_EQ(to.post(&fragment), status::busy);
    const auto refused_for_long = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < refused_for_long) {
        ASSERT_FALSE(to.flush());
    }
    EXPECT_EQ(target.view().header->peers_claimed.load(), 0U) << "no slot is lost";
    make_room();
    const deadline patience(10);
    bool posted = false;
    while (!posted && !patience.over()) {
        posted = to.flush();
    }
    EXPECT_TRUE(posted);
    EXPECT_EQ(target.view().header->peers_claimed.load(), 1U);
}

// The slot's memory may never have been allocated.
TEST_F(FullFileSystem, AMessageFromAPeerSlotThatNobodyTookIsDropped)
{
    MOUNT_OR_SKIP("size=2m");
    EXPECT_EXIT(
        {
            segment_options options = small_options(folder_.path(), 0);
            options.peer_slots = 4096;
            node self(make_segment(options));
            fill();
            (void)fifo_post(self.own().view().fifo, {4000, 1000});
            _exit(messages_handled(self));
        },
        testing::ExitedWithCode(0), "");
}

// The granule lies in the peer's segment, but the peer has put no memory behind it.
TEST_F(FullFileSystem, AMessageWhoseFragmentHasNoMemoryIsDropped)
{
    MOUNT_OR_SKIP("size=4m");
    EXPECT_EXIT(
        {
            process self(folder_.path(), 0);
            process broken(folder_.path(), 1);
            (void)broken.send(self, "good");
            if (self.poll() != "1:good ") {
                _exit(100);
            }
            fill();
            const auto last_page = static_cast<std::uint32_t>(((1U << 20) - 4096) / granule_bytes);
            (void)fifo_post(self.its().own().view().fifo, {0, last_page});
            _exit(messages_handled(self.its()));
        },
        testing::ExitedWithCode(0), "");
}

} // namespace
