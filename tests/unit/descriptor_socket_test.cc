// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_socket_test.cc: descriptors arrive with what they are; queues that are full, sockets
// that are gone, folders that do not serve, what the sweep removes; and what is not taken, and from
// whom: it is closed, said in one line, and keeps nothing else from arriving.
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/descriptor_support.h"

#include <memory>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <gtest/gtest.h>

using namespace gpusm_test;

namespace {

using namespace gpusm;

constexpr uid_t nobody = 65534;

bool exists(const std::string &path)
{
    struct stat about {};
    return 0 == lstat(path.c_str(), &about);
}

// Processes 1, which sends, and 2, which receives.
class DescriptorSocket : public testing::Test {
  protected:
    DescriptorSocket() { (void)alarm(child_deadline_s); }
    ~DescriptorSocket() override { (void)alarm(0); }

    std::string path_of(std::uint32_t vpid) const
    {
        return descriptor_socket_path(in_, identity_of(vpid));
    }
    status send(std::uint32_t to, std::uint32_t slot, const std::vector<int> &fds) const
    {
        return send_from(sender_, 1, in_, to, slot, fds);
    }
    status receive() { return receiver_->receive(&got_); }
    void expect_text(const char *expected) const
    {
        ASSERT_FALSE(got_.fds.empty());
        EXPECT_EQ(text_in(got_.fds.back().get()), expected);
    }

    const scratch_folder folder_;
    const std::string &in_ = folder_.path();
    const descriptor_socket sender_{in_, identity_of(1)};
    std::optional<descriptor_socket> receiver_{std::in_place, in_, identity_of(2)};
    const file_descriptor one_ = file_with("one");
    const file_descriptor two_ = file_with("two");
    const std::size_t open_before_ = open_descriptors();
    descriptor_message got_;
    const log_capture log_;
};

TEST_F(DescriptorSocket, ItsFileIsBesideTheSegmentsAndForThisUserOnlyWhateverTheUmask)
{
    const mode_t before = umask(0);
    const descriptor_socket own = make_socket(in_, 3);
    (void)umask(before);
    EXPECT_EQ(own.path().rfind(segment_path(in_, identity_of(3)), 0), 0U);
    struct stat about {};
    ASSERT_EQ(lstat(own.path().c_str(), &about), 0);
    EXPECT_TRUE(S_ISSOCK(about.st_mode));
    EXPECT_EQ(about.st_mode & 0777U, 0600U);
}

TEST_F(DescriptorSocket, ItsDestructorRemovesTheFileAndClosesWhatWasNotReceived)
{
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(send(2, 0, {ends[1]}), status::ok);
    (void)close(ends[1]);
    receiver_.reset();
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0) << "nobody holds the other end any more";
    (void)close(ends[0]);
    EXPECT_FALSE(exists(path_of(2)));
    EXPECT_EQ(open_descriptors(), open_before_ - 1);
}

TEST_F(DescriptorSocket, DescriptorsArriveWithWhatTheyAreInOrder)
{
    ASSERT_EQ(send(2, 5, {one_.get(), two_.get()}), status::ok);
    ASSERT_EQ(send(2, 6, {one_.get()}), status::ok);
    ASSERT_EQ(receive(), status::ok);
    EXPECT_EQ(got_.from, identity_of(1));
    EXPECT_EQ(got_.generation, 12U);
    EXPECT_EQ(got_.slot, 5U);
    EXPECT_EQ(got_.lengths, (std::vector<std::uint64_t>{5000, 5001}));
    ASSERT_EQ(got_.fds.size(), 2U);
    EXPECT_EQ(text_in(got_.fds[0].get()), "one");
    EXPECT_EQ(text_in(got_.fds[1].get()), "two");
    EXPECT_EQ(fcntl(got_.fds[0].get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(open_descriptors(), open_before_ + 2);
    ASSERT_EQ(receive(), status::ok);
    EXPECT_EQ(got_.slot, 6U);
    expect_text("one");
    EXPECT_EQ(open_descriptors(), open_before_ + 1) << "those of the message before are closed";
    EXPECT_EQ(receive(), status::not_found);
    EXPECT_EQ(got_.slot, 6U) << "the output stays";
}

TEST_F(DescriptorSocket, AsManyAsAllowedArriveAtOnceAndOneMoreIsABadArgument)
{
    std::vector<file_descriptor> files;
    std::vector<int> fds;
    for (std::size_t i = 0; i <= most_descriptors; ++i) {
        files.push_back(file_with(std::to_string(i)));
        fds.push_back(files.back().get());
    }
    EXPECT_EQ(send(2, 3, fds), status::bad_argument);
    EXPECT_EQ(send(2, 3, {}), status::bad_argument);
    fds.pop_back();
    ASSERT_EQ(send(2, 3, fds), status::ok);
    ASSERT_EQ(receive(), status::ok);
    ASSERT_EQ(got_.fds.size(), most_descriptors);
    for (std::size_t i = 0; i < most_descriptors; ++i) {
        ASSERT_EQ(got_.lengths[i], 3000 + i);
        ASSERT_EQ(text_in(got_.fds[i].get()), std::to_string(i));
    }
    EXPECT_EQ(receive(), status::not_found);
}

TEST_F(DescriptorSocket, ADescriptorThatIsNoneIsNotSent)
{
    EXPECT_EQ(send(2, 0, {one_.get(), -1}), status::system_failed);
    EXPECT_EQ(receive(), status::not_found) << "nothing of it was sent";
}

TEST_F(DescriptorSocket, AFullQueueIsBusyAndTakesMoreOnceItWasRead)
{
    std::uint32_t sent = 0;
    status last = status::ok;
    while (status::ok == (last = send(2, sent, {one_.get()})) && sent < 100000) {
        ++sent;
    }
    ASSERT_EQ(last, status::busy);
    ASSERT_EQ(receive(), status::ok);
    EXPECT_EQ(got_.slot, 0U);
    EXPECT_EQ(send(2, sent, {one_.get()}), status::ok);
    for (std::uint32_t slot = 1; slot <= sent; ++slot) {
        ASSERT_EQ(receive(), status::ok);
        ASSERT_EQ(got_.slot, slot) << "in order, and what was refused is not there";
    }
    EXPECT_EQ(receive(), status::not_found);
}

// Linux bounds what a user may have on the way by the number of files that a process may have open.
TEST_F(DescriptorSocket, TooManyDescriptorsOnTheWayAreBusyToo)
{
    ASSERT_EQ(chmod(in_.c_str(), 0777), 0);
    EXPECT_EQ(result_in_child([&] {
                  const rlimit few{200, 200};
                  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
                  if (0 == geteuid()) { // whom no such bound holds
                      EXPECT_EQ(setresuid(nobody, nobody, nobody), 0);
                  }
                  const descriptor_socket sender = make_socket(in_, 3);
                  descriptor_socket receiver = make_socket(in_, 4);
                  const std::vector<int> fds(120, 0);
                  EXPECT_EQ(send_from(sender, 3, in_, 4, 0, fds), status::ok);
                  EXPECT_EQ(send_from(sender, 3, in_, 4, 1, fds), status::ok);
                  EXPECT_EQ(send_from(sender, 3, in_, 4, 2, fds), status::busy);
                  EXPECT_EQ(receiver.receive(&got_), status::ok);
                  got_ = {};
                  EXPECT_EQ(send_from(sender, 3, in_, 4, 2, fds), status::ok);
                  return HasFailure() ? 1 : 0;
              }),
              0);
}

TEST_F(DescriptorSocket, WithoutASocketThePeerIsGone)
{
    EXPECT_EQ(send(3, 0, {0}), status::peer_gone) << "not yet";
    receiver_.reset();
    EXPECT_EQ(send(2, 0, {0}), status::peer_gone) << "not any more";
    EXPECT_EQ(send_from(sender_, 1, in_ + "/nowhere", 2, 0, {0}), status::peer_gone);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(DescriptorSocket, OfAKilledProcessOnlyAFileIsLeft)
{
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe(ends), 0);
    const pid_t receiver = start_process([&] {
        (void)close(ends[1]);
        return std::make_unique<descriptor_socket>(in_, identity_of(3));
    });
    ASSERT_EQ(send(3, 0, {ends[1]}), status::ok);
    (void)close(ends[1]);
    end_process(receiver);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0) << "what it did not receive is closed";
    (void)close(ends[0]);
    EXPECT_EQ(send(3, 0, {0}), status::peer_gone);
    EXPECT_TRUE(exists(path_of(3)));
}

TEST_F(DescriptorSocket, TheSweepRemovesASegmentAndItsSocketTogether)
{
    const scratch_folder other;
    const segment alive = make_segment(other.path(), 1);
    const descriptor_socket socket(other.path(), alive.identity());
    const pid_t mortal = start_process([&] {
        segment its = make_segment(other.path(), 2);
        auto sock = std::make_unique<descriptor_socket>(other.path(), its.identity());
        return std::make_pair(std::move(its), std::move(sock));
    });
    EXPECT_EQ(other.files(), 4U);
    EXPECT_EQ(segment_sweep(other.path()), 0);
    end_process(mortal);
    int swept = segment_sweep(other.path());
    swept += segment_sweep(other.path()); // the socket with the segment or after it
    EXPECT_EQ(swept, 2);
    EXPECT_TRUE(exists(alive.path()));
    EXPECT_TRUE(exists(socket.path()));
    EXPECT_EQ(other.files(), 2U);
}

// Between bind's making of the file and its listening there nobody listens, but the segment is
// held.
TEST_F(DescriptorSocket, TheSweepRemovesASocketWhoseSegmentIsGoneAndNoOther)
{
    const scratch_folder other;
    const segment alive = make_segment(other.path(), 1);
    const std::string newborn = descriptor_socket_path(other.path(), alive.identity());
    const std::string orphan = descriptor_socket_path(other.path(), identity_of(2));
    const std::string foreign = other.path() + "/somebody-elses";
    for (const std::string &each : {newborn, orphan, foreign}) {
        ASSERT_EQ(mknod(each.c_str(), S_IFSOCK | 0600, 0), 0);
    }
    EXPECT_EQ(segment_sweep(other.path()), 1);
    EXPECT_TRUE(exists(newborn));
    EXPECT_FALSE(exists(orphan));
    EXPECT_TRUE(exists(foreign));
}

TEST_F(DescriptorSocket, AFolderMayBeLongerThanAnAddressOfASocket)
{
    const std::string middle = in_ + "/" + std::string(200, 'm');
    ASSERT_EQ(mkdir(middle.c_str(), 0700), 0);
    {
        const scratch_folder deep(middle.c_str());
        descriptor_socket receiver = make_socket(deep.path(), 2);
        ASSERT_EQ(send_from(sender_, 1, deep.path(), 2, 0, {one_.get()}), status::ok);
        ASSERT_EQ(receiver.receive(&got_), status::ok);
        expect_text("one");
    }
    EXPECT_EQ(rmdir(middle.c_str()), 0) << "something was left in it";
}

TEST_F(DescriptorSocket, OneThatCannotBeMadeSaysWhyAndNeitherSendsNorReceives)
{
    ASSERT_EQ(send(2, 4, {one_.get()}), status::ok);
    ASSERT_EQ(chmod(in_.c_str(), 0555), 0);
    const auto fails = [&](const std::string &folder, std::uint32_t vpid, int error) {
        const std::size_t before = open_descriptors();
        const std::size_t lines = log_.count();
        descriptor_socket made = make_socket(folder, vpid);
        EXPECT_FALSE(made.valid());
        EXPECT_EQ(open_descriptors(), before);
        EXPECT_EQ(log_.count(), lines + 1);
        EXPECT_NE(log_.text().find(descriptor_socket_path(folder, identity_of(vpid)) + ": " +
                                   std::strerror(error)),
                  std::string::npos)
            << log_.text();
        EXPECT_EQ(made.receive(&got_), status::not_found);
        EXPECT_EQ(send_from(made, 1, in_, 2, 0, {0}), status::bad_argument);
    };
    fails(in_ + "/nowhere", 3, ENOENT);
    fails(in_, 2, EADDRINUSE); // what has its name is not replaced
    EXPECT_EQ(result_in_child([&] {
                  if (0 == geteuid()) { // who may write everywhere
                      EXPECT_EQ(setresuid(nobody, nobody, nobody), 0);
                  }
                  fails(in_, 3, EACCES);
                  return HasFailure() ? 1 : 0;
              }),
              0);
    ASSERT_EQ(chmod(in_.c_str(), 0700), 0);
    EXPECT_EQ(receive(), status::ok) << "the first one lives on";
}

} // namespace
