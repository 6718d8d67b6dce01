// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_socket_test.cc: descriptors arrive with what they are; queues that are full, sockets
// that are gone, folders that do not serve, what the sweep removes; and what is not taken: it is
// closed, said in one line, and keeps nothing else from arriving. (Packets of any content:
// fuzz/fuzz_descriptors.cc.)
#include "opal/mca/common/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/descriptor_support.h"
#include "tests/unit/failing_recvmsg.h"

#include <cerrno>
#include <csignal>
#include <optional>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <gtest/gtest.h>

using namespace gpusm_test;

namespace {

using namespace gpusm;

constexpr uid_t nobody = 65534;
constexpr int killed = 255; // result_in_child of such a process

bool exists(const std::string &path)
{
    struct stat about {};
    return 0 == lstat(path.c_str(), &about);
}

// Root may write everywhere and have anything on the way; this process may not any more.
void be_nobody()
{
    if (0 == geteuid()) {
        EXPECT_EQ(setresuid(nobody, nobody, nobody), 0);
    }
}

// What no descriptor_socket would send: that packet, filled up to a length or cut short.
struct raw_message {
    descriptor_packet packet;
    std::vector<int> fds;
    std::size_t len_bytes = sizeof(packet) + 3 * sizeof(std::uint64_t);
};

// Sends it without any of the checks. An errno value, 0 for success.
int send_raw(const std::string &path, const raw_message &message)
{
    const file_descriptor by(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{AF_UNIX, {}};
    (void)path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    std::string payload(reinterpret_cast<const char *>(&message.packet), sizeof(message.packet));
    payload.resize(message.len_bytes, '\1');
    iovec part{payload.data(), payload.size()};
    alignas(cmsghdr) unsigned char control[2048] = {};
    msghdr head{&address, sizeof(address), &part, 1, control, 0, 0};
    if (const std::size_t bytes = message.fds.size() * sizeof(int); bytes > 0) {
        auto *rights = reinterpret_cast<cmsghdr *>(control);
        *rights = {CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
        std::memcpy(CMSG_DATA(rights), message.fds.data(), bytes);
        head.msg_controllen = CMSG_SPACE(bytes);
    }
    return sendmsg(by.get(), &head, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
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
    void expect_said(const std::string &what) const
    {
        EXPECT_NE(log_.text().find(what), std::string::npos) << log_.text();
    }
    // In a process of its own; one that is to be killed does that itself.
    template <typename Body> void in_child(Body &&body, int result = 0) const
    {
        const auto run = [&] {
            body();
            return HasFailure() ? 1 : 0;
        };
        EXPECT_EQ(result_in_child(run), result);
    }

    const scratch_folder folder_;
    const std::string &in_ = folder_.path();
    const descriptor_socket sender_{in_, identity_of(1)};
    std::optional<descriptor_socket> receiver_{std::in_place, in_, identity_of(2)};
    const file_descriptor one_ = file_with("one");
    const file_descriptor two_ = file_with("two");
    raw_message three_{
        {descriptor_magic, wire_version, 0, identity_of(2), identity_of(99), 1, 2, 3},
        {one_.get(), one_.get(), two_.get()}};
    const std::size_t open_before_ = open_descriptors();
    descriptor_message got_;
    const log_capture log_;
};

TEST_F(DescriptorSocket, ItsFileIsBesideTheSegmentsAndForThisUserOnlyWhateverTheUmask)
{
    const mode_t before = umask(0);
    const descriptor_socket own(in_, identity_of(3));
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

TEST_F(DescriptorSocket, AsManyAsAllowedArriveAtOnceAndOneMoreIsNotSent)
{
    std::vector<int> fds(most_descriptors + 1, one_.get());
    EXPECT_EQ(send(2, 3, fds), status::bad_argument);
    EXPECT_EQ(send(2, 3, {}), status::bad_argument);
    EXPECT_EQ(send(2, 3, {one_.get(), -1}), status::system_failed) << "one that is none";
    fds.pop_back();
    fds.back() = two_.get();
    ASSERT_EQ(send(2, 3, fds), status::ok);
    ASSERT_EQ(receive(), status::ok);
    EXPECT_EQ(got_.fds.size(), most_descriptors);
    EXPECT_EQ(got_.lengths.back(), 3000 + most_descriptors - 1);
    expect_text("two");
    EXPECT_EQ(receive(), status::not_found);
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
    in_child([&] {
        const rlimit few{200, 200};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        be_nobody(); // as no such bound holds root
        const descriptor_socket sender(in_, identity_of(3));
        descriptor_socket receiver(in_, identity_of(4));
        const std::vector<int> fds(120, 0);
        EXPECT_EQ(send_from(sender, 3, in_, 4, 0, fds), status::ok);
        EXPECT_EQ(send_from(sender, 3, in_, 4, 1, fds), status::ok);
        EXPECT_EQ(send_from(sender, 3, in_, 4, 2, fds), status::busy);
        EXPECT_EQ(receiver.receive(&got_), status::ok);
        got_ = {};
        EXPECT_EQ(send_from(sender, 3, in_, 4, 2, fds), status::ok);
    });
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
    in_child(
        [&] {
            const descriptor_socket own(in_, identity_of(3));
            ASSERT_EQ(send(3, 0, {ends[1]}), status::ok);
            (void)raise(SIGKILL);
        },
        killed);
    (void)close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0) << "what it did not receive is closed";
    (void)close(ends[0]);
    EXPECT_EQ(send(3, 0, {0}), status::peer_gone);
    EXPECT_TRUE(exists(path_of(3)));
}

TEST_F(DescriptorSocket, TheSweepRemovesASegmentWithItsSocketAndASocketWithoutASegmentAndNoOther)
{
    const scratch_folder other;
    const segment alive = make_segment(other.path(), 1);
    const descriptor_socket socket(other.path(), alive.identity());
    // Between bind's making of the file and its listening there nobody listens, but the segment is
    // held.
    const segment young = make_segment(other.path(), 2);
    const std::string newborn = descriptor_socket_path(other.path(), young.identity());
    const std::string orphan = descriptor_socket_path(other.path(), identity_of(3));
    const std::string foreign = other.path() + "/somebody-elses";
    for (const std::string &each : {newborn, orphan, foreign}) {
        ASSERT_EQ(mknod(each.c_str(), S_IFSOCK | 0600, 0), 0);
    }
    in_child(
        [&] {
            const segment its = make_segment(other.path(), 4);
            const descriptor_socket mortal(other.path(), its.identity());
            ASSERT_EQ(segment_sweep(other.path()), 1) << "the orphan";
            ASSERT_FALSE(exists(orphan));
            ASSERT_EQ(other.files(), 7U);
            (void)raise(SIGKILL);
        },
        killed);
    int swept = segment_sweep(other.path());
    swept += segment_sweep(other.path()); // the socket with the segment or after it
    EXPECT_EQ(swept, 2);
    for (const std::string &each : {alive.path(), socket.path(), young.path(), newborn, foreign}) {
        EXPECT_TRUE(exists(each)) << each;
    }
    EXPECT_EQ(other.files(), 5U);
}

TEST_F(DescriptorSocket, AFolderMayBeLongerThanAnAddressOfASocket)
{
    const std::string deep = in_ + "/" + std::string(200, 'm');
    ASSERT_EQ(mkdir(deep.c_str(), 0700), 0);
    {
        descriptor_socket receiver(deep, identity_of(2));
        ASSERT_EQ(send_from(sender_, 1, deep, 2, 0, {one_.get()}), status::ok);
        ASSERT_EQ(receiver.receive(&got_), status::ok);
        expect_text("one");
    }
    EXPECT_EQ(rmdir(deep.c_str()), 0) << "something was left in it";
}

TEST_F(DescriptorSocket, AnInterruptedReceiveGoesOn)
{
    ASSERT_EQ(send(2, 5, {one_.get()}), status::ok);
    fail_to_receive(100, EINTR);
    EXPECT_EQ(receive(), status::ok);
}

TEST_F(DescriptorSocket, WhatCannotBeReceivedNowArrivesLater)
{
    for (int round = 0; round < 3; ++round) {
        ASSERT_EQ(send(2, 5, {one_.get()}), status::ok);
        fail_to_receive(failures_in_a_row - 1, ENOMEM);
        for (unsigned i = 1; i < failures_in_a_row; ++i) {
            EXPECT_EQ(receive(), status::system_failed);
        }
        EXPECT_EQ(receive(), status::ok);
    }
    EXPECT_EQ(0U, log_.count()) << log_.text();
}

TEST_F(DescriptorSocket, OneThatCannotBeReceivedFromIsRemovedSoThatNobodyWaitsForRoomInIt)
{
    ASSERT_EQ(send(2, 5, {one_.get()}), status::ok);
    fail_to_receive(failures_in_a_row, ENOMEM);
    for (unsigned i = 0; i < failures_in_a_row; ++i) {
        EXPECT_TRUE(receiver_->valid());
        EXPECT_EQ(receive(), status::system_failed);
    }
    EXPECT_FALSE(receiver_->valid() || exists(path_of(2)));
    EXPECT_EQ(receive(), status::not_found);
    EXPECT_EQ(send(2, 5, {one_.get()}), status::peer_gone);
    expect_said("cannot receive file descriptors");
    receiver_.emplace(in_, identity_of(2)); // takes its place
    ASSERT_EQ(send(2, 5, {one_.get()}), status::ok);
    EXPECT_EQ(receive(), status::ok);
}

TEST_F(DescriptorSocket, OneThatCannotBeMadeSaysWhyAndNeitherSendsNorReceives)
{
    ASSERT_EQ(send(2, 4, {one_.get()}), status::ok);
    ASSERT_EQ(chmod(in_.c_str(), 0555), 0);
    const auto fails = [&](const std::string &folder, std::uint32_t vpid, int error) {
        const std::size_t before = open_descriptors();
        const std::size_t lines = log_.count();
        descriptor_socket made(folder, identity_of(vpid));
        EXPECT_FALSE(made.valid());
        EXPECT_EQ(open_descriptors(), before);
        EXPECT_EQ(log_.count(), lines + 1);
        expect_said(descriptor_socket_path(folder, identity_of(vpid)) + ": " +
                    std::strerror(error));
        EXPECT_EQ(made.receive(&got_), status::not_found);
        EXPECT_EQ(send_from(made, 1, in_, 2, 0, {0}), status::bad_argument);
    };
    fails(in_ + "/nowhere", 3, ENOENT);
    fails(in_, 2, EADDRINUSE); // what has its name is not replaced
    in_child([&] {
        be_nobody();
        fails(in_, 3, EACCES);
    });
    ASSERT_EQ(chmod(in_.c_str(), 0700), 0);
    EXPECT_EQ(receive(), status::ok) << "the first one lives on";
}

// --- what is not taken ---------------------------------------------------------------------------

class DescriptorGarbage : public DescriptorSocket,
                          public testing::WithParamInterface<fault<raw_message>> {};

const fault<raw_message> bad_messages[] = {
    {"Empty", [](raw_message *m) { m->len_bytes = 0; }},
    {"Short", [](raw_message *m) { m->len_bytes = 63; }},
    {"WithoutLengths", [](raw_message *m) { m->len_bytes = 64; }},
    {"ALengthTooFew", [](raw_message *m) { m->len_bytes = 80; }},
    {"AByteTooMuch", [](raw_message *m) { ++m->len_bytes; }},
    {"LongerThanAnyMessage", [](raw_message *m) { m->len_bytes = 5000; }},
    {"WrongMagic", [](raw_message *m) { m->packet.magic ^= 1; }},
    {"OtherVersion", [](raw_message *m) { m->packet.version += 1; }},
    {"ForAnotherProcess", [](raw_message *m) { m->packet.to.nonce ^= 1; }},
    {"CountZero",
     [](raw_message *m) {
         m->packet.count = 0;
         m->len_bytes = 64;
     }},
    {"CountTooLarge", [](raw_message *m) { m->packet.count = 0xffffffff; }},
    {"CountThatWrapsAround", [](raw_message *m) { m->packet.count = 0x20000003; }},
    {"NoDescriptors", [](raw_message *m) { m->fds.clear(); }},
    {"OneDescriptorTooFew", [](raw_message *m) { m->fds.pop_back(); }},
    {"OneDescriptorTooMany", [](raw_message *m) { m->fds.push_back(m->fds[0]); }},
    {"AsManyDescriptorsAsLinuxTakes", [](raw_message *m) { m->fds.assign(253, m->fds[0]); }},
};
static_assert(64 == sizeof(descriptor_packet));
INSTANTIATE_TEST_SUITE_P(Messages, DescriptorGarbage, testing::ValuesIn(bad_messages), name_of_row);

TEST_P(DescriptorGarbage, IsDroppedWithOneLineAndItsDescriptorsAreClosed)
{
    ASSERT_EQ(send_raw(path_of(2), three_), 0);
    ASSERT_EQ(receive(), status::ok) << "what is spoilt would else be taken";
    EXPECT_EQ(got_.from, identity_of(99)) << "who that is, the caller knows";
    got_ = {};
    got_.slot = 77;
    GetParam().spoil(&three_);
    ASSERT_EQ(send_raw(path_of(2), three_), 0);
    EXPECT_EQ(receive(), status::not_found);
    EXPECT_EQ(got_.slot, 77U) << "outputs are written on success only";
    EXPECT_EQ(open_descriptors(), open_before_);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    expect_said("not one from this version");

    ASSERT_EQ(send_raw(path_of(2), three_), 0);
    ASSERT_EQ(send(2, 4, {one_.get()}), status::ok);
    ASSERT_EQ(receive(), status::ok) << "what follows garbage arrives";
    expect_text("one");
    EXPECT_EQ(got_.slot, 4U);
}

TEST_F(DescriptorSocket, WithoutRoomForTheDescriptorsTheMessageIsDroppedWhole)
{
    in_child([&] {
        const std::vector<int> fds(40, 0);
        EXPECT_EQ(send(2, 3, fds), status::ok);
        EXPECT_EQ(send(2, 4, fds), status::ok);
        const rlimit few{open_before_ + 20, 1000};
        const rlimit enough{1000, 1000};
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        // The second message goes the same way, in the same call.
        EXPECT_EQ(receive(), status::not_found);
        EXPECT_EQ(open_descriptors(), open_before_) << "those that did find room";
        EXPECT_EQ(log_.count(), 2U);
        expect_said("too many open files");
        EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &enough), 0);
        EXPECT_EQ(send(2, 5, fds), status::ok);
        EXPECT_EQ(receive(), status::ok);
        EXPECT_EQ(got_.slot, 5U);
    });
}

// Where everybody may make files, somebody may make one with the name that a peer's socket will
// have.
TEST_F(DescriptorSocket, IsSentNothingIfItIsAnotherUsersOrBehindASymbolicLink)
{
    ASSERT_EQ(symlink(path_of(2).c_str(), path_of(3).c_str()), 0);
    EXPECT_EQ(send(3, 4, {0}), status::system_failed);
    expect_said(path_of(3));
    if (0 == geteuid()) { // who can give a file away
        ASSERT_EQ(chown(path_of(2).c_str(), nobody, nobody), 0);
        EXPECT_EQ(send(2, 4, {0}), status::system_failed);
        EXPECT_EQ(log_.count(), 2U) << log_.text();
        expect_said(path_of(2));
    }
    EXPECT_EQ(receive(), status::not_found);
}

} // namespace
