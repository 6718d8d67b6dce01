// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// segment_test.cc: a process's own segment: its file, its growth, its end, and the sweep.
#include "opal/mca/common/gpusm/shm/segment.h"

#include "tests/unit/shm_support.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using namespace gpusm_test;

// What a segment of this user could be called.
std::string some_path(const scratch_folder &folder)
{
    return segment_path(folder.path(), {1, 0, 1});
}

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
    segment first = make_segment(folder.path(), 3);
    segment kept = std::move(first);
    EXPECT_FALSE(first.valid());
    const std::string old_path = kept.path();
    EXPECT_TRUE(is_file(old_path));
    kept = make_segment(folder.path(), 3); // the nonce tells them apart
    EXPECT_NE(kept.path(), old_path);
    EXPECT_FALSE(is_file(old_path));
    EXPECT_TRUE(is_file(kept.path()));
    // The header is in memory that every peer can write to.
    kept.view().header->identity.nonce ^= 1;
    kept.view().header->identity.vpid += 1;
    kept = segment();
    EXPECT_EQ(folder.files(), 0U);
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

TEST(Segment, WithoutItsFolderThereIsNoneAndNothingToSweep)
{
    segment out;
    std::string why;
    const std::string nowhere = "/dev/shm/gpusm-no-such-folder";
    EXPECT_EQ(segment::create(small_options(nowhere, 0), &out, &why), status::system_failed);
    EXPECT_FALSE(out.valid());
    EXPECT_NE(why.find(nowhere), std::string::npos) << why;
    EXPECT_EQ(segment_sweep(nowhere), 0);
}

TEST(Segment, CarvedMemoryIsZeroAlignedAndNobodyElses)
{
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    std::size_t end_before = own.view().frag_offset;
    for (const std::size_t alignment : {granule_bytes, page_bytes}) {
        for (const std::size_t bytes : {1U, 64U, 65U, 4096U, 100000U, 33U}) {
            std::uint32_t granule = 0;
            ASSERT_EQ(own.carve(bytes, &granule, alignment), status::ok);
            const std::size_t offset = granule * granule_bytes;
            EXPECT_GE(offset, end_before);
            EXPECT_EQ(offset % alignment, 0U);
            unsigned char *memory = own.at(granule);
            EXPECT_EQ(std::count(memory, memory + bytes, 0), static_cast<std::ptrdiff_t>(bytes));
            std::memset(memory, 0xff, bytes);
            end_before = offset + bytes;
        }
    }
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
    EXPECT_EQ(own.carve(room, &granule, page_bytes), status::ok);
    std::memset(own.at(granule), 1, room);
    EXPECT_EQ(own.carve(1, &granule), status::no_memory);
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
    ASSERT_EQ(own.commit_exports(2), status::ok);
    EXPECT_EQ(header.exports_committed.load(), 9U) << "nothing new";
    ASSERT_EQ(own.commit_exports(4), status::ok);
    EXPECT_EQ(header.exports_committed.load(), 4U);
}

// --- a kernel whose posix_fallocate a signal interrupts, after which it begins at the beginning
// ---

std::size_t longest_that_gets_through = SIZE_MAX;
int interrupted = 0;

TEST(Segment, ItGetsMemoryWhereLongCallsForItAreAlwaysInterrupted)
{
    (void)alarm(30); // which would loop for ever
    const scratch_folder folder;
    segment_options options = small_options(folder.path(), 0);
    options.segment_bytes = 64U << 20;
    segment own = make_segment(options);
    std::uint32_t granule = 0;
    longest_that_gets_through = 64 * 1024;
    interrupted = 0;
    EXPECT_EQ(own.carve(32U << 20, &granule), status::ok);
    EXPECT_GT(interrupted, 0);
    struct stat about {};
    EXPECT_EQ(stat(own.path().c_str(), &about), 0);
    EXPECT_GE(about.st_blocks * 512, 32 << 20) << "there is memory behind all of it";
    longest_that_gets_through = SIZE_MAX;
}

TEST(Segment, ItGivesUpWhereEveryCallForMemoryIsInterruptedAndTriesAgainLater)
{
    (void)alarm(30);
    const expect_lines log(1);
    const scratch_folder folder;
    segment own = make_segment(folder.path(), 0);
    std::uint32_t granule = 0;
    longest_that_gets_through = 0;
    EXPECT_EQ(own.carve(200000, &granule), status::no_memory);
    segment none;
    std::string why;
    EXPECT_EQ(segment::create(small_options(folder.path(), 1), &none, &why), status::no_memory);
    EXPECT_EQ(folder.files(), 1U);
    longest_that_gets_through = SIZE_MAX;
    status s = status::no_memory;
    for (const deadline end(10); status::ok != s && !end.over();) {
        s = own.carve(200000, &granule);
    }
    EXPECT_EQ(s, status::ok);
}

TEST(SegmentSweep, RemovesFilesOfTheDeadAndNeverOfTheLiving)
{
    const scratch_folder folder;
    const segment alive = make_segment(folder.path(), 0);
    write_orphan(alive.path() + companion_suffix, 0);
    write_orphan(alive.path() + ".window0", 4096);
    // With their companions, which the folder may list before them or after.
    for (std::uint32_t vpid = 5; vpid < 13; ++vpid) {
        const std::string dead =
            segment_path(folder.path(), {alive.identity().jobid, vpid, 0x1234});
        write_orphan(dead, 4096);
        write_orphan(dead + companion_suffix, 0);
        write_orphan(dead + ".window1", 4096);
        if (5 == vpid) {
            ASSERT_EQ(unlink(dead.c_str()), 0); // companions without a segment
        }
    }
    EXPECT_EQ(segment_sweep(folder.path()), 23);
    EXPECT_EQ(folder.files(), 3U);
    EXPECT_TRUE(is_file(alive.path()));
    EXPECT_TRUE(is_file(alive.path() + companion_suffix));
    EXPECT_TRUE(is_file(alive.path() + ".window0"));
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
    write_orphan(some_path(folder), 0);
    EXPECT_EQ(segment_sweep(folder.path()), 0);
    EXPECT_EQ(folder.files(), 7U);
}

// A lease delays whoever opens the file, for up to /proc/sys/fs/lease-break-time seconds.
TEST(SegmentSweep, DoesNotWaitForWhoeverHasALeaseOnAFile)
{
    const scratch_folder folder;
    const std::string path = some_path(folder);
    write_orphan(path, 4096);
    const pid_t holder = fork();
    if (0 == holder) {
        (void)signal(SIGIO, SIG_IGN);
        const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (0 == fcntl(fd, F_SETLEASE, F_WRLCK)) {
            (void)raise(SIGSTOP); // until it is killed
        }
        _exit(0);
    }
    int state = 0;
    ASSERT_EQ(waitpid(holder, &state, WUNTRACED), holder);
    if (!WIFSTOPPED(state)) {
        GTEST_SKIP() << "no lease can be had here";
    }
    const auto begin = std::chrono::steady_clock::now();
    const int removed = segment_sweep(folder.path());
    const auto took = std::chrono::steady_clock::now() - begin;
    (void)kill(holder, SIGKILL);
    (void)waitpid(holder, nullptr, 0);
    EXPECT_EQ(removed, 0);
    EXPECT_LT(took, std::chrono::milliseconds(500));
}

TEST(SegmentSweep, LeavesAloneFilesThatOthersOwn)
{
    const scratch_folder folder;
    const std::string path = some_path(folder);
    write_orphan(path, 4096);
    if (0 != chown(path.c_str(), 65534, 65534)) {
        GTEST_SKIP() << "giving a file away needs root";
    }
    EXPECT_EQ(segment_sweep(folder.path()), 0);
    EXPECT_TRUE(is_file(path));
}

} // namespace

// In the place of the C library's.
extern "C" int posix_fallocate(int fd, off_t offset, off_t len)
{
    using function = int(int, off_t, off_t);
    static auto *const real = reinterpret_cast<function *>(dlsym(RTLD_NEXT, "posix_fallocate"));
    if (static_cast<std::size_t>(len) > longest_that_gets_through) {
        ++interrupted;
        return EINTR;
    }
    return real(fd, offset, len);
}
