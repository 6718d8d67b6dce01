// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_socket_test.cc: descriptors arrive with their label; queues that are full, sockets
// that are gone, names that are taken, folders that do not serve; and what the sweep removes.
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/descriptor_support.h"

#include <numeric>
#include <optional>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <gtest/gtest.h>

namespace {

using gpusm::descriptor_message;
using gpusm::descriptor_socket;
using gpusm::descriptor_socket_path;
using gpusm::file_descriptor;
using gpusm::status;
using gpusm_test::file_with;
using gpusm_test::identity_of;
using gpusm_test::log_capture;
using gpusm_test::make_socket;
using gpusm_test::open_descriptors;
using gpusm_test::other_process;
using gpusm_test::result_in_child;
using gpusm_test::scratch_folder;
using gpusm_test::send_from;
using gpusm_test::text_in;

constexpr uid_t nobody = 65534;

bool exists(const std::string &path)
{
    struct stat about {};
    return 0 == lstat(path.c_str(), &about);
}

class DescriptorSocket : public testing::Test {
  protected:
    void SetUp() override { (void)alarm(gpusm_test::child_deadline_s); }
    void TearDown() override { (void)alarm(0); }

    std::string path_of(std::uint32_t vpid) const
    {
        return descriptor_socket_path(folder_.path(), identity_of(vpid));
    }
    status send(const descriptor_socket &by, std::uint32_t to, std::uint32_t slot,
                const std::vector<int> &fds) const
    {
        return send_from(by, 1, folder_.path(), to, slot, fds);
    }

    const scratch_folder folder_;
    const std::string &in_ = folder_.path();
};

TEST_F(DescriptorSocket, ItsFileIsBesideTheSegmentsAndForThisUserOnlyWhateverTheUmask)
{
    const mode_t before = umask(0);
    const descriptor_socket own = make_socket(in_, 1);
    (void)umask(before);
    EXPECT_EQ(own.path().rfind(gpusm::segment_path(in_, identity_of(1)), 0), 0U);
    struct stat about {};
    ASSERT_EQ(lstat(own.path().c_str(), &about), 0);
    EXPECT_TRUE(S_ISSOCK(about.st_mode));
    EXPECT_EQ(about.st_mode & 0777U, 0600U);
}

TEST_F(DescriptorSocket, ItsDestructorRemovesTheFileAndClosesWhatWasNotReceived)
{
    const std::size_t before = open_descriptors();
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe(ends), 0);
    {
        const descriptor_socket sender = make_socket(in_, 1);
        const descriptor_socket receiver = make_socket(in_, 2);
        ASSERT_EQ(send(sender, 2, 0, {ends[1]}), status::ok);
        (void)close(ends[1]);
    }
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0) << "nobody holds the other end any more";
    (void)close(ends[0]);
    EXPECT_EQ(folder_.files(), 0U);
    EXPECT_EQ(open_descriptors(), before);
}

TEST_F(DescriptorSocket, AMovedOneKeepsItsFileUntilTheLastEnds)
{
    std::optional<descriptor_socket> kept;
    {
        descriptor_socket first = make_socket(in_, 2);
        kept.emplace(std::move(first));
        EXPECT_FALSE(first.valid());
        descriptor_message got;
        EXPECT_EQ(first.receive(&got), status::bad_argument);
        EXPECT_EQ(send(first, 2, 0, {0}), status::bad_argument);
    }
    const descriptor_socket sender = make_socket(in_, 1);
    const file_descriptor file = file_with("moved");
    ASSERT_EQ(send(sender, 2, 0, {file.get()}), status::ok);
    descriptor_message got;
    EXPECT_EQ(kept->receive(&got), status::ok);
    *kept = make_socket(in_, 3);
    EXPECT_FALSE(exists(path_of(2))) << "the file of the one that was replaced";
    EXPECT_TRUE(exists(path_of(3)));
    kept.reset();
    EXPECT_FALSE(exists(path_of(3)));
}

TEST_F(DescriptorSocket, DescriptorsArriveWithTheirLabelAndLengthsInOrder)
{
    const descriptor_socket sender = make_socket(in_, 1);
    descriptor_socket receiver = make_socket(in_, 2);
    const file_descriptor one = file_with("one");
    const file_descriptor two = file_with("two");
    const std::size_t before = open_descriptors();
    ASSERT_EQ(send(sender, 2, 5, {one.get(), two.get()}), status::ok);
    ASSERT_EQ(send(sender, 2, 6, {two.get()}), status::ok);
    EXPECT_EQ(text_in(one.get()), "one") << "the caller keeps its descriptors";
    {
        descriptor_message got;
        ASSERT_EQ(receiver.receive(&got), status::ok);
        EXPECT_EQ(got.label.from, identity_of(1));
        EXPECT_EQ(got.label.generation, 12U);
        EXPECT_EQ(got.label.slot, 5U);
        ASSERT_EQ(got.label.count, 2U);
        EXPECT_EQ(got.lengths[0], 5000U);
        EXPECT_EQ(got.lengths[1], 5001U);
        EXPECT_EQ(text_in(got.fds[0].get()), "one");
        EXPECT_EQ(text_in(got.fds[1].get()), "two");
        EXPECT_EQ(got.fds.size(), 2U);
        EXPECT_EQ(fcntl(got.fds[0].get(), F_GETFD), FD_CLOEXEC);
        EXPECT_EQ(open_descriptors(), before + 2);

        ASSERT_EQ(receiver.receive(&got), status::ok);
        EXPECT_EQ(got.label.slot, 6U);
        EXPECT_EQ(text_in(got.fds[0].get()), "two");
        EXPECT_EQ(open_descriptors(), before + 1) << "those of the message before are closed";
        const int ours = got.fds[0].release();
        got = descriptor_message();
        EXPECT_EQ(text_in(ours), "two") << "it was released";
        (void)close(ours);
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST_F(DescriptorSocket, NothingThereIsNotFoundAndTheOutputStays)
{
    descriptor_socket receiver = make_socket(in_, 2);
    descriptor_message got;
    got.label.slot = 77;
    EXPECT_EQ(receiver.receive(&got), status::not_found);
    EXPECT_EQ(got.label.slot, 77U);
}

TEST_F(DescriptorSocket, AsManyAsAllowedArriveAtOnceAndOneMoreIsABadArgument)
{
    const descriptor_socket sender = make_socket(in_, 1);
    descriptor_socket receiver = make_socket(in_, 2);
    std::vector<file_descriptor> files;
    std::vector<int> fds;
    for (std::size_t i = 0; i <= gpusm::most_descriptors; ++i) {
        files.push_back(file_with(std::to_string(i)));
        fds.push_back(files.back().get());
    }
    EXPECT_EQ(send(sender, 2, 3, fds), status::bad_argument);
    EXPECT_EQ(send(sender, 2, 3, {}), status::bad_argument);
    fds.pop_back();
    const std::size_t before = open_descriptors();
    ASSERT_EQ(send(sender, 2, 3, fds), status::ok);
    {
        descriptor_message got;
        ASSERT_EQ(receiver.receive(&got), status::ok);
        ASSERT_EQ(got.label.count, gpusm::most_descriptors);
        for (std::size_t i = 0; i < gpusm::most_descriptors; ++i) {
            ASSERT_EQ(got.lengths[i], 3000 + i);
            ASSERT_EQ(text_in(got.fds[i].get()), std::to_string(i));
        }
        EXPECT_EQ(receiver.receive(&got), status::not_found);
    }
    EXPECT_EQ(open_descriptors(), before);
}

TEST_F(DescriptorSocket, ADescriptorThatIsNoneIsABadArgument)
{
    const descriptor_socket sender = make_socket(in_, 1);
    descriptor_socket receiver = make_socket(in_, 2);
    const file_descriptor file = file_with("whole");
    EXPECT_EQ(send(sender, 2, 0, {file.get(), -1}), status::bad_argument);
    descriptor_message got;
    EXPECT_EQ(receiver.receive(&got), status::not_found) << "nothing of it was sent";
}

TEST_F(DescriptorSocket, AFullQueueIsBusyAndTakesMoreOnceItWasRead)
{
    const descriptor_socket sender = make_socket(in_, 1);
    descriptor_socket receiver = make_socket(in_, 2);
    descriptor_socket third = make_socket(in_, 3);
    const file_descriptor file = file_with("queued");
    std::uint32_t sent = 0;
    status last = status::ok;
    while (status::ok == (last = send(sender, 2, sent, {file.get()})) && sent < 100000) {
        ++sent;
    }
    ASSERT_EQ(last, status::busy);
    ASSERT_GT(sent, 0U);
    descriptor_message got;
    ASSERT_EQ(receiver.receive(&got), status::ok);
    EXPECT_EQ(got.label.slot, 0U);
    EXPECT_EQ(send(sender, 2, sent, {file.get()}), status::ok);
    for (std::uint32_t slot = 1; slot <= sent; ++slot) {
        ASSERT_EQ(receiver.receive(&got), status::ok);
        ASSERT_EQ(got.label.slot, slot) << "in order, and what was refused is not there";
    }
    EXPECT_EQ(receiver.receive(&got), status::not_found);
}

// Linux bounds what a user may have on the way by the number of files that a process may have open.
TEST_F(DescriptorSocket, TooManyDescriptorsOnTheWayAreBusyToo)
{
    ASSERT_EQ(chmod(in_.c_str(), 0777), 0);
    EXPECT_EQ(result_in_child([&] {
                  const rlimit few{100, 100};
                  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
                  if (0 == geteuid()) { // whom no such bound holds
                      EXPECT_EQ(setresuid(nobody, nobody, nobody), 0);
                  }
                  const descriptor_socket sender = make_socket(in_, 1);
                  descriptor_socket receiver = make_socket(in_, 2);
                  const std::vector<int> fds(60, 0);
                  EXPECT_EQ(send(sender, 2, 0, fds), status::ok);
                  EXPECT_EQ(send(sender, 2, 1, fds), status::ok);
                  EXPECT_EQ(send(sender, 2, 2, fds), status::busy);
                  {
                      descriptor_message got;
                      EXPECT_EQ(receiver.receive(&got), status::ok);
                  }
                  EXPECT_EQ(send(sender, 2, 2, fds), status::ok);
                  return HasFailure() ? 1 : 0;
              }),
              0);
}

TEST_F(DescriptorSocket, WithoutASocketThePeerIsGone)
{
    const descriptor_socket sender = make_socket(in_, 1);
    const log_capture log;
    EXPECT_EQ(send(sender, 2, 0, {0}), status::peer_gone) << "not yet";
    {
        const descriptor_socket receiver = make_socket(in_, 2);
        EXPECT_EQ(send(sender, 2, 0, {0}), status::ok);
    }
    EXPECT_EQ(send(sender, 2, 0, {0}), status::peer_gone) << "not any more";
    EXPECT_EQ(send_from(sender, 1, in_ + "/nowhere", 2, 0, {0}), status::peer_gone);
    EXPECT_EQ(log.count(), 0U) << log.text();
}

TEST_F(DescriptorSocket, OfAKilledProcessOnlyAFileIsLeft)
{
    const descriptor_socket sender = make_socket(in_, 1);
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe(ends), 0);
    other_process receiver([&] {
        (void)close(ends[1]);
        return make_socket(in_, 2);
    });
    ASSERT_TRUE(receiver.ready());
    ASSERT_EQ(send(sender, 2, 0, {ends[1]}), status::ok);
    (void)close(ends[1]);
    receiver.end();
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0) << "what it did not receive is closed";
    (void)close(ends[0]);
    EXPECT_EQ(send(sender, 2, 0, {0}), status::peer_gone);
    EXPECT_TRUE(exists(path_of(2)));
}

TEST_F(DescriptorSocket, TheSweepRemovesASegmentAndItsSocketTogether)
{
    const gpusm::segment alive = gpusm_test::make_segment(in_, 1);
    descriptor_socket socket;
    std::string why;
    ASSERT_EQ(descriptor_socket::create(in_, alive.identity(), &socket, &why), status::ok);
    other_process mortal([&] {
        auto its = std::make_pair(gpusm_test::make_segment(in_, 2), descriptor_socket());
        EXPECT_EQ(descriptor_socket::create(in_, its.first.identity(), &its.second, &why),
                  status::ok);
        return its;
    });
    ASSERT_TRUE(mortal.ready());
    EXPECT_EQ(folder_.files(), 4U);
    EXPECT_EQ(gpusm::segment_sweep(in_), 0);
    mortal.end();
    int swept = 0;
    for (int i = 0; i < 2; ++i) { // the socket with the segment or after it
        swept += gpusm::segment_sweep(in_);
    }
    EXPECT_EQ(swept, 2);
    EXPECT_TRUE(exists(alive.path()));
    EXPECT_TRUE(exists(socket.path()));
    EXPECT_EQ(folder_.files(), 2U);
}

// Between bind's making of the file and its listening there nobody listens, but the segment is
// held.
TEST_F(DescriptorSocket, TheSweepLeavesANewbornSocketAlone)
{
    const gpusm::segment alive = gpusm_test::make_segment(in_, 1);
    const std::string newborn = descriptor_socket_path(in_, alive.identity());
    ASSERT_EQ(mknod(newborn.c_str(), S_IFSOCK | 0600, 0), 0);
    EXPECT_EQ(gpusm::segment_sweep(in_), 0);
    EXPECT_TRUE(exists(newborn));
}

TEST_F(DescriptorSocket, TheSweepRemovesASocketWhoseSegmentIsGone)
{
    const std::string other = in_ + "/somebody-elses";
    ASSERT_EQ(mknod(other.c_str(), S_IFSOCK | 0600, 0), 0);
    ASSERT_EQ(mknod(path_of(2).c_str(), S_IFSOCK | 0600, 0), 0);
    EXPECT_EQ(gpusm::segment_sweep(in_), 1);
    EXPECT_FALSE(exists(path_of(2)));
    EXPECT_TRUE(exists(other));
}

TEST_F(DescriptorSocket, WhatHasItsNameIsNotReplaced)
{
    descriptor_socket receiver = make_socket(in_, 2);
    const descriptor_socket sender = make_socket(in_, 1);
    ASSERT_EQ(send(sender, 2, 4, {0}), status::ok);
    descriptor_socket second;
    std::string why;
    EXPECT_EQ(descriptor_socket::create(in_, identity_of(2), &second, &why), status::system_failed);
    EXPECT_NE(why.find(path_of(2)), std::string::npos) << why;
    EXPECT_NE(why.find(std::strerror(EADDRINUSE)), std::string::npos) << why;
    EXPECT_FALSE(second.valid());
    descriptor_message got;
    EXPECT_EQ(receiver.receive(&got), status::ok) << "the first one lives on";
}

TEST_F(DescriptorSocket, AFolderMayBeLongerThanAnAddressOfASocket)
{
    const std::string middle = in_ + "/" + std::string(200, 'm');
    ASSERT_EQ(mkdir(middle.c_str(), 0700), 0);
    {
        const scratch_folder deep(middle.c_str());
        descriptor_socket receiver = make_socket(deep.path(), 2);
        const descriptor_socket sender = make_socket(deep.path(), 1);
        const file_descriptor file = file_with("far away");
        const std::size_t before = open_descriptors();
        ASSERT_EQ(send_from(sender, 1, deep.path(), 2, 0, {file.get()}), status::ok);
        EXPECT_EQ(open_descriptors(), before);
        descriptor_message got;
        ASSERT_EQ(receiver.receive(&got), status::ok);
        EXPECT_EQ(text_in(got.fds[0].get()), "far away");
        receiver = descriptor_socket();
        EXPECT_EQ(deep.files(), 1U);
    }
    EXPECT_EQ(rmdir(middle.c_str()), 0) << "something was left in it";
}

TEST_F(DescriptorSocket, AFolderWithoutWritePermissionSaysSo)
{
    ASSERT_EQ(chmod(in_.c_str(), 0555), 0);
    EXPECT_EQ(result_in_child([&] {
                  if (0 == geteuid()) { // who may write everywhere
                      EXPECT_EQ(setresuid(nobody, nobody, nobody), 0);
                  }
                  const std::size_t before = open_descriptors();
                  const log_capture log;
                  descriptor_socket out;
                  std::string why;
                  EXPECT_EQ(descriptor_socket::create(in_, identity_of(1), &out, &why),
                            status::system_failed);
                  EXPECT_NE(why.find(in_), std::string::npos) << why;
                  EXPECT_NE(why.find(std::strerror(EACCES)), std::string::npos) << why;
                  EXPECT_EQ(log.count(), 0U) << "the caller says it";
                  EXPECT_FALSE(out.valid());
                  EXPECT_EQ(open_descriptors(), before);
                  return HasFailure() ? 1 : 0;
              }),
              0);
    EXPECT_EQ(folder_.files(), 0U);
    ASSERT_EQ(chmod(in_.c_str(), 0700), 0);
}

TEST_F(DescriptorSocket, AFolderThatDoesNotExistSaysSo)
{
    descriptor_socket out;
    std::string why;
    EXPECT_EQ(descriptor_socket::create(in_ + "/nowhere", identity_of(1), &out, &why),
              status::system_failed);
    EXPECT_NE(why.find(std::strerror(ENOENT)), std::string::npos) << why;
}

} // namespace
