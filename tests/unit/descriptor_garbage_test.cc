// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_garbage_test.cc: what a descriptor_socket does not take, and from whom; whatever came
// is closed, said in one line, and keeps nothing else from arriving.
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/descriptor_support.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

namespace {

using gpusm::descriptor_message;
using gpusm::descriptor_packet;
using gpusm::descriptor_socket;
using gpusm::status;
using gpusm_test::file_with;
using gpusm_test::good_message;
using gpusm_test::identity_of;
using gpusm_test::log_capture;
using gpusm_test::make_socket;
using gpusm_test::open_descriptors;
using gpusm_test::raw_message;
using gpusm_test::raw_sender;
using gpusm_test::result_in_child;
using gpusm_test::scratch_folder;
using gpusm_test::send_from;
using gpusm_test::text_in;

constexpr uid_t nobody = 65534;

template <typename Change> void change_packet(raw_message *message, Change &&change)
{
    descriptor_packet packet;
    std::memcpy(&packet, message->payload.data(), sizeof(packet));
    change(packet);
    std::memcpy(message->payload.data(), &packet, sizeof(packet));
}

// A message of three descriptors that something is wrong with.
struct garbage {
    const char *name;
    void (*spoil)(raw_message *);
    const char *said; // in the log
};
void PrintTo(const garbage &about, std::ostream *out)
{
    *out << about.name;
}

class WithFolder : public testing::Test {
  protected:
    void SetUp() override { (void)alarm(gpusm_test::child_deadline_s); }
    void TearDown() override { (void)alarm(0); }
    const scratch_folder folder_;
};
class DescriptorGarbage : public WithFolder, public testing::WithParamInterface<garbage> {};
class DescriptorReceiver : public WithFolder {};
class DescriptorSender : public WithFolder {};

INSTANTIATE_TEST_SUITE_P(
    Messages, DescriptorGarbage,
    testing::Values(
        garbage{"Empty", [](raw_message *m) { m->payload.clear(); }, "not from gpusm"},
        garbage{"Short", [](raw_message *m) { m->payload.resize(63); }, "not from gpusm"},
        garbage{"WithoutLengths", [](raw_message *m) { m->payload.resize(64); }, "length is wrong"},
        garbage{"ALengthTooFew", [](raw_message *m) { m->payload.resize(80); }, "length is wrong"},
        garbage{"AByteTooMuch", [](raw_message *m) { m->payload += 'x'; }, "length is wrong"},
        garbage{"LongerThanAnyMessage", [](raw_message *m) { m->payload.resize(5000); },
                "not from gpusm"},
        garbage{"WrongMagic",
                [](raw_message *m) { change_packet(m, [](auto &p) { p.magic ^= 1; }); },
                "not from gpusm"},
        garbage{"OtherVersion",
                [](raw_message *m) { change_packet(m, [](auto &p) { p.version += 1; }); },
                "another version"},
        garbage{"ForAnotherProcess",
                [](raw_message *m) { change_packet(m, [](auto &p) { p.to.nonce ^= 1; }); },
                "meant for another process"},
        garbage{"CountZero",
                [](raw_message *m) {
                    change_packet(m, [](auto &p) { p.label.count = 0; });
                    m->payload.resize(sizeof(descriptor_packet));
                },
                "length is wrong"},
        garbage{
            "CountTooLarge",
            [](raw_message *m) { change_packet(m, [](auto &p) { p.label.count = 0xffffffff; }); },
            "length is wrong"},
        garbage{
            "CountThatWrapsAround",
            [](raw_message *m) { change_packet(m, [](auto &p) { p.label.count = 0x20000003; }); },
            "length is wrong"},
        garbage{"NoDescriptors", [](raw_message *m) { m->fds.clear(); }, "number of its"},
        garbage{"OneDescriptorTooFew", [](raw_message *m) { m->fds.pop_back(); }, "number of its"},
        garbage{"OneDescriptorTooMany", [](raw_message *m) { m->fds.push_back(m->fds[0]); },
                "number of its"},
        garbage{"AsManyDescriptorsAsLinuxTakes",
                [](raw_message *m) { m->fds.assign(253, m->fds[0]); }, "number of its"}),
    [](const auto &about) { return about.param.name; });

TEST_P(DescriptorGarbage, IsDroppedWithOneLineAndItsDescriptorsAreClosed)
{
    descriptor_socket receiver = make_socket(folder_.path(), 2);
    const descriptor_socket sender = make_socket(folder_.path(), 1);
    const raw_sender raw;
    const auto file = file_with("good");
    raw_message message = good_message(2, {file.get(), file.get(), file.get()});
    GetParam().spoil(&message);
    const std::size_t before = open_descriptors();
    const log_capture log;
    ASSERT_EQ(raw.send(receiver.path(), message), 0);
    descriptor_message got;
    got.label.slot = 77;
    EXPECT_EQ(receiver.receive(&got), status::not_found);
    EXPECT_EQ(got.label.slot, 77U) << "outputs are written on success only";
    EXPECT_EQ(open_descriptors(), before);
    EXPECT_EQ(receiver.dropped(), 1U);
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_NE(log.text().find(GetParam().said), std::string::npos) << log.text();

    ASSERT_EQ(raw.send(receiver.path(), message), 0);
    ASSERT_EQ(send_from(sender, 1, folder_.path(), 2, 4, {file.get()}), status::ok);
    ASSERT_EQ(receiver.receive(&got), status::ok) << "what follows garbage arrives";
    EXPECT_EQ(text_in(got.fds[0].get()), "good");
    EXPECT_EQ(got.label.slot, 4U);
}

// So that the table above spoils what would otherwise be taken.
TEST_F(DescriptorReceiver, TakesAMessageThatNobodySpoilt)
{
    descriptor_socket receiver = make_socket(folder_.path(), 2);
    const auto file = file_with("raw");
    const int fd = file.get();
    ASSERT_EQ(raw_sender().send(receiver.path(), good_message(2, {fd, fd, fd})), 0);
    descriptor_message got;
    ASSERT_EQ(receiver.receive(&got), status::ok);
    EXPECT_EQ(got.label.from, identity_of(99)) << "who that is, the caller knows";
    EXPECT_EQ(text_in(got.fds[2].get()), "raw");
}

TEST_F(DescriptorReceiver, TakesNothingFromAnotherUser)
{
    if (0 != geteuid()) {
        GTEST_SKIP() << "only root can say that it is somebody else";
    }
    descriptor_socket receiver = make_socket(folder_.path(), 2);
    raw_message message = good_message(2, {0});
    const ucred other{getpid(), nobody, nobody};
    message.credentials = &other;
    const std::size_t before = open_descriptors();
    const log_capture log;
    ASSERT_EQ(raw_sender().send(receiver.path(), message), 0);
    descriptor_message got;
    EXPECT_EQ(receiver.receive(&got), status::not_found);
    EXPECT_EQ(open_descriptors(), before);
    EXPECT_NE(log.text().find("another user"), std::string::npos) << log.text();
}

TEST_F(DescriptorReceiver, GarbageCannotKeepItBusyNorFillTheLog)
{
    descriptor_socket receiver = make_socket(folder_.path(), 2);
    const descriptor_socket sender = make_socket(folder_.path(), 1);
    const raw_sender raw;
    raw_message nonsense = good_message(2, {0});
    nonsense.payload = "nonsense";
    const std::size_t before = open_descriptors();
    const log_capture log;
    descriptor_message got;
    std::uint32_t sent = 0;
    for (int round = 0; round < 5; ++round) {
        while (0 == raw.send(receiver.path(), nonsense)) {
            ++sent;
        }
        ASSERT_GT(sent, receiver.dropped() + descriptor_socket::most_dropped_at_once)
            << "the queue must hold more than one call drops";
        const std::uint32_t dropped = receiver.dropped();
        ASSERT_EQ(receiver.receive(&got), status::not_found);
        ASSERT_EQ(receiver.dropped(), dropped + descriptor_socket::most_dropped_at_once);
    }
    ASSERT_EQ(send_from(sender, 1, folder_.path(), 2, 4, {0}), status::ok);
    status last = status::not_found;
    for (std::uint32_t calls = 0; calls < sent && status::not_found == last; ++calls) {
        last = receiver.receive(&got);
    }
    EXPECT_EQ(last, status::ok) << "what is behind the garbage arrives";
    EXPECT_EQ(receiver.dropped(), sent);
    ASSERT_GT(sent, descriptor_socket::most_lines);
    EXPECT_EQ(log.count(), descriptor_socket::most_lines) << log.text();
    EXPECT_NE(log.text().find("no more is said"), std::string::npos) << log.text();
    got = descriptor_message();
    EXPECT_EQ(open_descriptors(), before);
}

TEST_F(DescriptorReceiver, WithoutRoomForTheDescriptorsTheMessageIsDroppedWhole)
{
    EXPECT_EQ(result_in_child([&] {
                  descriptor_socket receiver = make_socket(folder_.path(), 2);
                  const descriptor_socket sender = make_socket(folder_.path(), 1);
                  const std::vector<int> fds(40, 0);
                  EXPECT_EQ(send_from(sender, 1, folder_.path(), 2, 3, fds), status::ok);
                  EXPECT_EQ(send_from(sender, 1, folder_.path(), 2, 4, fds), status::ok);
                  const std::size_t before = open_descriptors();
                  const rlimit few{before + 20, 1000};
                  const rlimit enough{1000, 1000};
                  const log_capture log;
                  descriptor_message got;
                  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
                  // The second message goes the same way, in the same call.
                  EXPECT_EQ(receiver.receive(&got), status::not_found);
                  EXPECT_EQ(receiver.dropped(), 2U);
                  EXPECT_EQ(open_descriptors(), before) << "those that did find room";
                  EXPECT_EQ(log.count(), 2U);
                  EXPECT_NE(log.text().find("too many open files"), std::string::npos);
                  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &enough), 0);
                  EXPECT_EQ(send_from(sender, 1, folder_.path(), 2, 5, fds), status::ok);
                  EXPECT_EQ(receiver.receive(&got), status::ok);
                  EXPECT_EQ(got.label.slot, 5U);
                  return HasFailure() ? 1 : 0;
              }),
              0);
}

// Where everybody may make files, somebody may make one with the name that a peer's socket will
// have.
TEST_F(DescriptorSender, SendsNothingToASocketOfAnotherUser)
{
    if (0 != geteuid()) {
        GTEST_SKIP() << "only root can give a file away";
    }
    const descriptor_socket sender = make_socket(folder_.path(), 1);
    descriptor_socket trap = make_socket(folder_.path(), 2);
    ASSERT_EQ(chown(trap.path().c_str(), nobody, nobody), 0);
    const log_capture log;
    EXPECT_EQ(send_from(sender, 1, folder_.path(), 2, 4, {0}), status::system_failed);
    EXPECT_EQ(log.count(), 1U) << log.text();
    EXPECT_NE(log.text().find(trap.path()), std::string::npos) << log.text();
    descriptor_message got;
    EXPECT_EQ(trap.receive(&got), status::not_found);
    EXPECT_EQ(trap.dropped(), 0U);
}

TEST_F(DescriptorSender, FollowsNoSymbolicLink)
{
    const descriptor_socket sender = make_socket(folder_.path(), 1);
    descriptor_socket elsewhere = make_socket(folder_.path(), 3);
    const std::string link = gpusm::descriptor_socket_path(folder_.path(), identity_of(2));
    ASSERT_EQ(symlink(elsewhere.path().c_str(), link.c_str()), 0);
    const log_capture log;
    EXPECT_EQ(send_from(sender, 1, folder_.path(), 2, 4, {0}), status::system_failed);
    EXPECT_EQ(log.count(), 1U) << log.text();
    descriptor_message got;
    EXPECT_EQ(elsewhere.receive(&got), status::not_found);
    EXPECT_EQ(elsewhere.dropped(), 0U);
}

} // namespace
