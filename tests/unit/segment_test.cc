// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// segment_test.cc: a process's own segment: its file, its growth, its end, and the sweep.
#include "opal/mca/btl/gpusm/shm/segment.h"

#include "tests/unit/shm_support.h"

#include <algorithm>
#include <csignal>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

bool is_file(const std::string &path)
{
    return 0 == access(path.c_str(), F_OK);
}

// A file with that name whose owner nobody is.
void write_orphan(const std::string &path, std::size_t bytes)
{
    const file_mapping file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    ASSERT_GE(file.fd(), 0) << path;
    ASSERT_EQ(ftruncate(file.fd(), static_cast<off_t>(bytes)), 0);
}

TEST(Segment, TheHeaderSaysWhatWasAskedFor)
{
    const scratch_folder folder;
    const segment_options options = small_options(folder.path(), 7);
    const segment own = make_segment(options);
    const segment_header &header = *own.view().header;
    EXPECT_EQ(header.magic, segment_magic);
    EXPECT_EQ(header.version, wire_version);
    EXPECT_EQ(header.identity.jobid, options.jobid);
    EXPECT_EQ(header.identity.vpid, 7U);
    EXPECT_NE(header.identity.nonce, 0U);
    EXPECT_EQ(header.segment_bytes, options.segment_bytes);
    EXPECT_EQ(own.view().fifo.slots, options.fifo_slots);
    EXPECT_EQ(own.view().peer_slots, options.peer_slots);
    EXPECT_EQ(own.view().event_slots, options.event_slots);
    EXPECT_EQ(own.view().export_slots, options.export_slots);
}

TEST(Segment, ItsFileIsForItsOwnerOnlyAndTakesNoMoreMemoryThanItUses)
{
    const scratch_folder folder;
    segment_options options = small_options(folder.path(), 0);
    options.segment_bytes = 256U << 20;
    const segment own = make_segment(options);
    struct stat about {};
    ASSERT_EQ(stat(own.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777U, 0600U);
    EXPECT_EQ(about.st_size, static_cast<off_t>(options.segment_bytes));
    EXPECT_LT(about.st_blocks * 512, 1 << 20);
}

TEST(Segment, ItsFileGoesWithTheLastOneThatItWasMovedTo)
{
    const scratch_folder folder;
    std::optional<segment> kept;
    {
        segment first = make_segment(folder.path(), 0);
        kept.emplace(std::move(first));
        EXPECT_FALSE(first.valid());
    }
    const std::string old_path = kept->path();
    EXPECT_TRUE(is_file(old_path));
    *kept = make_segment(folder.path(), 1);
    EXPECT_FALSE(is_file(old_path));
    EXPECT_TRUE(is_file(kept->path()));
    // The header is in memory that every peer can write to.
    kept->view().header->identity.nonce ^= 1;
    kept->view().header->identity.vpid += 1;
    kept.reset();
    EXPECT_EQ(folder.files(), 0U);
}

TEST(Segment, TwoSegmentsOfOneProcessAreApart)
{
    const scratch_folder folder;
    segment one = make_segment(folder.path(), 3);
    segment two = make_segment(folder.path(), 3);
    EXPECT_FALSE(one.identity() == two.identity()) << "the nonce tells them apart";
    EXPECT_EQ(folder.files(), 2U);
    std::uint32_t granule_one = 0;
    std::uint32_t granule_two = 0;
    ASSERT_EQ(one.carve(64, &granule_one), status::ok);
    ASSERT_EQ(two.carve(64, &granule_two), status::ok);
    std::memset(one.at(granule_one), 0x55, 64);
    EXPECT_EQ(two.at(granule_two)[0], 0);
    ASSERT_EQ(fifo_post(one.view().fifo, {0, 1}), status::ok);
    fifo_message message{};
    EXPECT_FALSE(fifo_reader(two.view().fifo).peek(&message));
    EXPECT_TRUE(fifo_reader(one.view().fifo).peek(&message));
}

class ImpossibleSegment : public testing::TestWithParam<fault<segment_options>> {};

const fault<segment_options> impossible_options[] = {
    {"FifoSlotsNotAPowerOfTwo", [](segment_options *o) { o->fifo_slots = 12; }},
    {"NoFifoSlots", [](segment_options *o) { o->fifo_slots = 0; }},
    {"TooManyPeers", [](segment_options *o) { o->peer_slots = max_peer_slots + 1; }},
    {"TooSmall", [](segment_options *o) { o->segment_bytes = 4096; }},
    {"Empty", [](segment_options *o) { o->segment_bytes = 0; }},
    {"TooLarge", [](segment_options *o) { o->segment_bytes = max_segment_bytes + 1; }},
    {"HugeFifo", [](segment_options *o) { o->fifo_slots = 1U << 31; }},
    {"HugeExports", [](segment_options *o) { o->export_slots = 0xffffffffU; }},
};
INSTANTIATE_TEST_SUITE_P(Options, ImpossibleSegment, testing::ValuesIn(impossible_options),
                         name_of_row);

TEST_P(ImpossibleSegment, IsABadArgumentAndLeavesNoFile)
{
    const scratch_folder folder;
    segment_options options = small_options(folder.path(), 0);
    GetParam().spoil(&options);
    segment out;
    std::string why;
    EXPECT_EQ(segment::create(options, &out, &why), status::bad_argument);
    EXPECT_FALSE(out.valid());
    EXPECT_NE(why, "");
    EXPECT_EQ(folder.files(), 0U);
}

TEST(Segment, AFolderThatDoesNotExistIsASystemError)
{
    segment out;
    std::string why;
    const std::string nowhere = "/dev/shm/gpusm-no-such-folder";
    EXPECT_EQ(segment::create(small_options(nowhere, 0), &out, &why), status::system_failed);
    EXPECT_FALSE(out.valid());
    EXPECT_NE(why.find(nowhere), std::string::npos) << why;
}

TEST(Segment, CarvedMemoryIsZeroAlignedAndNobodyElses)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    std::size_t end_before = own.view().frag_offset;
    for (const std::size_t bytes : {1U, 64U, 65U, 4096U, 100000U, 33U}) {
        std::uint32_t granule = 0;
        ASSERT_EQ(own.carve(bytes, &granule), status::ok);
        const std::size_t offset = granule * granule_bytes;
        EXPECT_GE(offset, end_before);
        unsigned char *memory = own.at(granule);
        EXPECT_EQ(std::count(memory, memory + bytes, 0), static_cast<std::ptrdiff_t>(bytes));
        std::memset(memory, 0xff, bytes);
        end_before = offset + bytes;
    }
}

TEST(Segment, MemoryCanBeginWithAPage)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    std::uint32_t granule = 0;
    ASSERT_EQ(own.carve(64, &granule), status::ok);
    ASSERT_EQ(own.carve(10000, &granule, page_bytes), status::ok);
    EXPECT_EQ(granule * granule_bytes % page_bytes, 0U);
    std::uint32_t behind = 0;
    ASSERT_EQ(own.carve(64, &behind), status::ok);
    EXPECT_GE(behind * granule_bytes, granule * granule_bytes + 10000);
    EXPECT_EQ(own.carve(std::size_t{1} << 30, &granule, page_bytes), status::no_memory);
}

TEST(Segment, ItCanBeCarvedUpToItsBoundAndNotBeyond)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    const std::size_t room = (1U << 20) - own.view().frag_offset;
    std::uint32_t granule = 0;
    for (const std::size_t bytes : {room + 1, SIZE_MAX - 100, SIZE_MAX}) {
        EXPECT_EQ(own.carve(bytes, &granule), status::no_memory) << bytes;
    }
    EXPECT_EQ(granule, 0U) << "outputs are written on success only";
    std::size_t carved = 0;
    while (status::ok == own.carve(8192, &granule)) {
        std::memset(own.at(granule), 1, 8192);
        carved += 8192;
        ASSERT_LE(carved, room);
    }
    EXPECT_GT(carved + 8192, room) << "it gave up too early";
    if (carved < room) {
        ASSERT_EQ(own.carve(room - carved, &granule), status::ok);
        std::memset(own.at(granule), 1, room - carved);
    }
    EXPECT_EQ(own.carve(1, &granule), status::no_memory);
}

TEST(Segment, ExportSlotsAreCommittedUpToTheirNumber)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    const auto &committed = own.view().header->exports_committed;
    EXPECT_EQ(committed.load(), 0U);
    EXPECT_EQ(own.commit_exports(3), status::ok);
    EXPECT_EQ(committed.load(), 3U);
    EXPECT_EQ(own.commit_exports(2), status::ok);
    EXPECT_EQ(committed.load(), 3U) << "it never shrinks";
    EXPECT_EQ(own.commit_exports(4), status::ok);
    EXPECT_EQ(committed.load(), 4U);
}

TEST(Segment, WhatOthersHaveStoredOverItsHeaderIsNotBelieved)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    segment_header &header = *own.view().header;
    std::uint32_t granule = 0;
    ASSERT_EQ(own.commit_exports(3), status::ok);
    header.committed_bytes.store(~0ULL);
    ASSERT_EQ(own.carve(100 * 1024, &granule), status::ok);
    const std::uint64_t committed = header.committed_bytes.load();
    EXPECT_GE(committed, granule * granule_bytes + 100 * 1024);
    EXPECT_LE(committed, 1U << 20);
    header.exports_committed.store(9);
    ASSERT_EQ(own.commit_exports(4), status::ok);
    EXPECT_EQ(header.exports_committed.load(), 4U);
}

TEST(SegmentSweep, RemovesFilesOfTheDeadAndNeverOfTheLiving)
{
    const scratch_folder folder;
    const segment alive = make_segment(folder.path(), 0);
    write_orphan(alive.path() + companion_suffix, 0);
    // With their companions, which the folder may list before them or after.
    for (std::uint32_t vpid = 5; vpid < 13; ++vpid) {
        const std::string dead =
            segment_path(folder.path(), {alive.identity().jobid, vpid, 0x1234});
        write_orphan(dead, 4096);
        write_orphan(dead + companion_suffix, 0);
        if (5 == vpid) {
            ASSERT_EQ(unlink(dead.c_str()), 0); // a companion without a segment
        }
    }
    EXPECT_EQ(segment_sweep(folder.path()), 15);
    EXPECT_EQ(folder.files(), 2U);
    EXPECT_TRUE(is_file(alive.path()));
    EXPECT_TRUE(is_file(alive.path() + companion_suffix));
    EXPECT_EQ(segment_sweep(folder.path()), 0);
}

TEST(SegmentSweep, LeavesAloneWhatIsNotASegmentOfThisUser)
{
    const scratch_folder folder;
    const std::string user = std::to_string(geteuid());
    for (const std::string &name :
         {std::string("/gpusm.") + std::to_string(geteuid() + 1) + ".00000001.0.1",
          std::string("/gpusm-other"), "/notgpusm." + user + ".1", "/gpusm." + user + "1.x.y"}) {
        write_orphan(folder.path() + name, 4096);
    }
    const std::string outside = folder.path() + "/keep";
    write_orphan(outside, 4096);
    ASSERT_EQ(symlink(outside.c_str(), (folder.path() + "/gpusm." + user + ".link").c_str()), 0);
    // Made a moment ago by a process that is about to lock it.
    write_orphan(folder.path() + "/gpusm." + user + ".00000001.0.2", 0);
    EXPECT_EQ(segment_sweep(folder.path()), 0);
    EXPECT_EQ(folder.files(), 7U);
}

// A lease delays whoever opens the file, for up to /proc/sys/fs/lease-break-time seconds.
TEST(SegmentSweep, DoesNotWaitForWhoeverHasALeaseOnAFile)
{
    const scratch_folder folder;
    const std::string path =
        folder.path() + "/gpusm." + std::to_string(geteuid()) + ".00000001.0.1";
    write_orphan(path, 4096);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t holder = fork();
    if (0 == holder) {
        (void)signal(SIGIO, SIG_IGN);
        const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
        const char held = 0 == fcntl(fd, F_SETLEASE, F_WRLCK) ? 'y' : 'n';
        (void)!write(ready[1], &held, 1);
        for (;;) {
            (void)pause();
        }
    }
    char held = 0;
    ASSERT_EQ(read(ready[0], &held, 1), 1);
    const auto begin = std::chrono::steady_clock::now();
    const int removed = segment_sweep(folder.path());
    const auto took = std::chrono::steady_clock::now() - begin;
    (void)kill(holder, SIGKILL);
    (void)waitpid(holder, nullptr, 0);
    (void)close(ready[0]);
    (void)close(ready[1]);
    if ('y' != held) {
        GTEST_SKIP() << "no lease can be had here";
    }
    EXPECT_EQ(removed, 0);
    EXPECT_LT(took, std::chrono::milliseconds(500));
}

TEST(SegmentSweep, LeavesAloneFilesThatOthersOwn)
{
    const scratch_folder folder;
    const std::string path =
        folder.path() + "/gpusm." + std::to_string(geteuid()) + ".00000001.0.1";
    write_orphan(path, 4096);
    if (0 != chown(path.c_str(), 65534, 65534)) {
        GTEST_SKIP() << "giving a file away needs root";
    }
    EXPECT_EQ(segment_sweep(folder.path()), 0);
    EXPECT_TRUE(is_file(path));
}

TEST(SegmentSweep, OfAFolderThatDoesNotExistRemovesNothing)
{
    EXPECT_EQ(segment_sweep("/dev/shm/gpusm-no-such-folder"), 0);
}

} // namespace
