// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// descriptor_garbage_test.cc: what a descriptor_socket does not take, and from whom; whatever came
// is closed, said in one line, and keeps nothing else from arriving.
#include "opal/mca/btl/gpusm/ipc/descriptor_socket.h"

#include "tests/unit/descriptor_support.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <gtest/gtest.h>

using namespace gpusm_test;

namespace {

using namespace gpusm;

constexpr uid_t nobody = 65534;

template <typename Change> void change_packet(raw_message *message, Change &&change)
{
    descriptor_packet packet;
    std::memcpy(&packet, message->payload.data(), sizeof(packet));
    change(packet);
    std::memcpy(message->payload.data(), &packet, sizeof(packet));
}

// Processes 1, which sends, and 2, which receives.
class DescriptorReceiver : public testing::Test {
  protected:
    DescriptorReceiver() { (void)alarm(child_deadline_s); }
    ~DescriptorReceiver() override { (void)alarm(0); }
    status send(std::uint32_t slot, const std::vector<int> &fds, std::uint32_t to = 2) const
    {
        return send_from(sender_, 1, folder_.path(), to, slot, fds);
    }
    void expect_said(const char *what) const
    {
        EXPECT_NE(log_.text().find(what), std::string::npos) << log_.text();
    }

    const scratch_folder folder_;
    descriptor_socket receiver_ = make_socket(folder_.path(), 2);
    const descriptor_socket sender_ = make_socket(folder_.path(), 1);
    const file_descriptor file_ = file_with("good");
    raw_message three_ = good_message(2, {file_.get(), file_.get(), file_.get()});
    const std::size_t before_ = open_descriptors();
    descriptor_message got_;
    const log_capture log_;
};
class DescriptorGarbage : public DescriptorReceiver,
                          public testing::WithParamInterface<fault<raw_message>> {};

// Of three descriptors.
const fault<raw_message> bad_messages[] = {
    {"Empty", [](raw_message *m) { m->payload.clear(); }},
    {"Short", [](raw_message *m) { m->payload.resize(63); }},
    {"WithoutLengths", [](raw_message *m) { m->payload.resize(64); }},
    {"ALengthTooFew", [](raw_message *m) { m->payload.resize(80); }},
    {"AByteTooMuch", [](raw_message *m) { m->payload += 'x'; }},
    {"LongerThanAnyMessage", [](raw_message *m) { m->payload.resize(5000); }},
    {"WrongMagic", [](raw_message *m) { change_packet(m, [](auto &p) { p.magic ^= 1; }); }},
    {"OtherVersion", [](raw_message *m) { change_packet(m, [](auto &p) { p.version += 1; }); }},
    {"ForAnotherProcess",
     [](raw_message *m) { change_packet(m, [](auto &p) { p.to.nonce ^= 1; }); }},
    {"CountZero",
     [](raw_message *m) {
         change_packet(m, [](auto &p) { p.count = 0; });
         m->payload.resize(sizeof(descriptor_packet));
     }},
    {"CountTooLarge",
     [](raw_message *m) { change_packet(m, [](auto &p) { p.count = 0xffffffff; }); }},
    {"CountThatWrapsAround",
     [](raw_message *m) { change_packet(m, [](auto &p) { p.count = 0x20000003; }); }},
    {"NoDescriptors", [](raw_message *m) { m->fds.clear(); }},
    {"OneDescriptorTooFew", [](raw_message *m) { m->fds.pop_back(); }},
    {"OneDescriptorTooMany", [](raw_message *m) { m->fds.push_back(m->fds[0]); }},
    {"AsManyDescriptorsAsLinuxTakes", [](raw_message *m) { m->fds.assign(253, m->fds[0]); }},
};
INSTANTIATE_TEST_SUITE_P(Messages, DescriptorGarbage, testing::ValuesIn(bad_messages), name_of_row);

TEST_P(DescriptorGarbage, IsDroppedWithOneLineAndItsDescriptorsAreClosed)
{
    GetParam().spoil(&three_);
    ASSERT_EQ(send_raw(receiver_.path(), three_), 0);
    got_.slot = 77;
    EXPECT_EQ(receiver_.receive(&got_), status::not_found);
    EXPECT_EQ(got_.slot, 77U) << "outputs are written on success only";
    EXPECT_EQ(open_descriptors(), before_);
    EXPECT_EQ(log_.count(), 1U) << log_.text();
    expect_said("not one from this version");

    ASSERT_EQ(send_raw(receiver_.path(), three_), 0);
    ASSERT_EQ(send(4, {file_.get()}), status::ok);
    ASSERT_EQ(receiver_.receive(&got_), status::ok) << "what follows garbage arrives";
    EXPECT_EQ(text_in(got_.fds[0].get()), "good");
    EXPECT_EQ(got_.slot, 4U);
}

TEST_F(DescriptorReceiver, WhateverComesNothingStaysOpenAndWhatFollowsArrives)
{
    std::mt19937_64 random(4);
    int taken = 0;
    for (int round = 0; round < 1000; ++round) {
        raw_message spoilt = three_;
        for (std::uint64_t i = random() % 3; i > 0; --i) {
            std::uint64_t word = 0;
            char *at = &spoilt.payload[random() % (spoilt.payload.size() / sizeof(word)) * 8];
            std::memcpy(&word, at, sizeof(word));
            word = any_word(random, word);
            std::memcpy(at, &word, sizeof(word));
        }
        if (0 == random() % 4) {
            spoilt.payload.resize(random() % 4096);
        }
        if (0 == random() % 4) {
            spoilt.fds.resize(random() % 253, file_.get());
        }
        ASSERT_EQ(send_raw(receiver_.path(), spoilt), 0);
        if (status::ok == receiver_.receive(&got_)) {
            ++taken;
            ASSERT_TRUE(got_.fds.size() == spoilt.fds.size() &&
                        got_.fds.size() == got_.lengths.size());
            got_ = {};
        }
        ASSERT_EQ(open_descriptors(), before_);
    }
    EXPECT_GT(taken, 100);
    ASSERT_EQ(send(4, {file_.get()}), status::ok);
    EXPECT_EQ(receiver_.receive(&got_), status::ok);
}

// So that the table above spoils what would otherwise be taken.
TEST_F(DescriptorReceiver, TakesAMessageThatNobodySpoilt)
{
    ASSERT_EQ(send_raw(receiver_.path(), three_), 0);
    ASSERT_EQ(receiver_.receive(&got_), status::ok);
    EXPECT_EQ(got_.from, identity_of(99)) << "who that is, the caller knows";
    EXPECT_EQ(text_in(got_.fds[2].get()), "good");
}

TEST_F(DescriptorReceiver, IsSentNothingByAnotherUser)
{
    if (0 != geteuid()) {
        GTEST_SKIP() << "only root can be somebody else";
    }
    ASSERT_EQ(chmod(folder_.path().c_str(), 0777), 0);
    EXPECT_EQ(result_in_child([&] {
                  EXPECT_EQ(setresuid(nobody, nobody, nobody), 0);
                  EXPECT_EQ(send_raw(receiver_.path(), three_), EACCES);
                  return HasFailure() ? 1 : 0;
              }),
              0);
    EXPECT_EQ(receiver_.receive(&got_), status::not_found);
    EXPECT_EQ(log_.count(), 0U) << log_.text();
}

TEST_F(DescriptorReceiver, WithoutRoomForTheDescriptorsTheMessageIsDroppedWhole)
{
    EXPECT_EQ(result_in_child([&] {
                  const std::vector<int> fds(40, 0);
                  EXPECT_EQ(send(3, fds), status::ok);
                  EXPECT_EQ(send(4, fds), status::ok);
                  const rlimit few{before_ + 20, 1000};
                  const rlimit enough{1000, 1000};
                  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
                  // The second message goes the same way, in the same call.
                  EXPECT_EQ(receiver_.receive(&got_), status::not_found);
                  EXPECT_EQ(open_descriptors(), before_) << "those that did find room";
                  EXPECT_EQ(log_.count(), 2U);
                  expect_said("too many open files");
                  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &enough), 0);
                  EXPECT_EQ(send(5, fds), status::ok);
                  EXPECT_EQ(receiver_.receive(&got_), status::ok);
                  EXPECT_EQ(got_.slot, 5U);
                  return HasFailure() ? 1 : 0;
              }),
              0);
}

// Where everybody may make files, somebody may make one with the name that a peer's socket will
// have.
TEST_F(DescriptorReceiver, IsSentNothingIfItIsAnotherUsersOrBehindASymbolicLink)
{
    const std::string link = descriptor_socket_path(folder_.path(), identity_of(3));
    ASSERT_EQ(symlink(receiver_.path().c_str(), link.c_str()), 0);
    EXPECT_EQ(send(4, {0}, 3), status::system_failed);
    expect_said(link.c_str());
    if (0 == geteuid()) { // who can give a file away
        ASSERT_EQ(chown(receiver_.path().c_str(), nobody, nobody), 0);
        EXPECT_EQ(send(4, {0}), status::system_failed);
        EXPECT_EQ(log_.count(), 2U) << log_.text();
        expect_said(receiver_.path().c_str());
    }
    EXPECT_EQ(receiver_.receive(&got_), status::not_found);
}

} // namespace
