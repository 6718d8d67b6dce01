// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// delegated_copies_test.cc: copies that one process asks another one for, both played in one
// process: who is asked, how far a copy is, and what happens when the other one is late, cannot,
// has ended, or writes nonsense. The other one: copies_for_others_test.cc.
#include "opal/mca/common/gpusm/delegated_copies.h"

#include "tests/unit/shm_support.h"
#include "tests/unit/test_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace {

using namespace gpusm;
using namespace gpusm_test;

constexpr device_uuid first_device = {1, 2, 3};
constexpr device_uuid second_device = {4, 5, 6};
constexpr std::int64_t wait_ns = 500'000;
std::int64_t time_ns = 0;

// --- words

TEST(DelegationWord, IsOfOneTurn)
{
    constexpr std::uint32_t word = delegation_word::of(7, delegation_stage::taken);
    static_assert(delegation_stage::taken == delegation_word::stage_in(word, 7));
    static_assert(delegation_stage::none == delegation_word::stage_in(word, 6));
    constexpr std::uint32_t last = UINT32_MAX;
    static_assert(
        delegation_stage::failed ==
        delegation_word::stage_in(delegation_word::of(last, delegation_stage::failed), last));
}

// --- the requester

class DelegatedCopies : public testing::Test, protected delegation_services {
  protected:
    DelegatedCopies()
    {
        time_ns = 0;
        (void)mine_.towards(lower_);
        (void)mine_.towards(higher_);
    }

    // As if that process used the device.
    static void use(own_delegation_board &of, const device_uuid &which, std::size_t at = 0)
    {
        used_device &told = of.get()->devices[at];
        std::copy(which.begin(), which.end(), told.uuid);
        told.in_use.store(1);
    }
    peer *submitter_of(const device_uuid &which, bool under_mps = false)
    {
        device on;
        on.index = next_device_++; // so that nothing is known of it
        on.uuid = which;
        on.under_mps = under_mps;
        return copies_.submitter_of(on);
    }
    status ask(delegated_request *request)
    {
        return copies_.ask(request, mine_.towards(lower_), {{}, {}, 100}, {{}, {}, 200}, 300,
                           first_device);
    }
    std::atomic<std::uint32_t> &word_of(const delegated_copy &message)
    {
        return board_of(lower_.towards(mine_), message.granule)->slots[message.slot].word;
    }
    // As the submitter does; false: it is at another stage.
    bool move(const delegated_copy &message, delegation_stage from, delegation_stage to)
    {
        std::uint32_t expected = delegation_word::of(message.turn, from);
        return word_of(message).compare_exchange_strong(expected,
                                                        delegation_word::of(message.turn, to));
    }
    // A launch for what has been taken, and its end, as the submitter's device tells it.
    void launch(const delegated_copy &message)
    {
        if (0 == flag_granule_) {
            EXPECT_EQ(lower_.its().own().carve(granule_bytes, &flag_granule_), status::ok);
        }
        delegation_slot &slot =
            board_of(lower_.towards(mine_), message.granule)->slots[message.slot];
        slot.flag_granule = flag_granule_;
        slot.flag_value = flag().load() + 2; // another launch comes before
        EXPECT_TRUE(move(message, delegation_stage::taken, delegation_stage::launched));
        flag().fetch_add(1);
    }
    void end_launch() { flag().fetch_add(1); }
    std::atomic<std::uint32_t> &flag()
    {
        return *reinterpret_cast<std::atomic<std::uint32_t> *>(
            lower_.its().own().at(flag_granule_));
    }
    // Asked for, answered with `to` after it has been taken, and over as that.
    status outcome_of(delegation_stage to)
    {
        delegated_request request{};
        EXPECT_EQ(ask(&request), status::ok);
        EXPECT_TRUE(move(sent_.back(), delegation_stage::offered, to));
        EXPECT_EQ(copies_.progress(), &request);
        EXPECT_TRUE(copies_.idle());
        return request.outcome;
    }

    scratch_folder folder_;
    process lower_{folder_.path(), 1};
    process mine_{folder_.path(), 2};
    process higher_{folder_.path(), 3};
    own_delegation_board of_lower_{lower_.its().own()};
    own_delegation_board of_higher_{higher_.its().own()};
    own_delegation_board board_{mine_.its().own()};
    delegated_copies copies_{*this, mine_.its(), board_, wait_ns / 1000, [] { return time_ns; }};
    std::vector<delegated_copy> sent_;
    bool can_send_ = true;
    std::uint32_t flag_granule_ = 0;

  private:
    bool send(peer &to, const delegated_copy &message) override
    {
        EXPECT_EQ(to.identity(), lower_.identity());
        sent_.push_back(message);
        EXPECT_EQ(to.attach(), status::ok);
        EXPECT_EQ(lower_.towards(mine_).attach(), status::ok);
        return can_send_;
    }
    std::uint32_t next_device_ = 0;
};

TEST_F(DelegatedCopies, TheLowestThatUsesTheDeviceIsAsked)
{
    EXPECT_EQ(submitter_of(first_device), nullptr);
    use(of_higher_, first_device);
    EXPECT_EQ(submitter_of(first_device), nullptr) << "this process is lower";
    use(of_lower_, second_device, 3);
    EXPECT_EQ(submitter_of(first_device), nullptr) << "it uses another one";
    EXPECT_EQ(submitter_of(second_device), &mine_.towards(lower_));
    use(of_lower_, first_device, 15);
    EXPECT_EQ(submitter_of(first_device), &mine_.towards(lower_));
    EXPECT_EQ(submitter_of(first_device, true), nullptr) << "under MPS each copies its own";
    of_lower_.get()->devices[15].in_use.store(0);
    EXPECT_EQ(submitter_of(first_device), nullptr);
}

TEST_F(DelegatedCopies, WhereThereIsNobodyALookIsTakenNowAndThen)
{
    constexpr int looked_each_time = 64;
    device on;
    on.uuid = first_device;
    for (int i = 0; i < looked_each_time; ++i) {
        EXPECT_EQ(copies_.submitter_of(on), nullptr);
    }
    EXPECT_EQ(copies_.submitter_of(on), nullptr);
    use(of_lower_, first_device);
    int in_vain = 0;
    while (nullptr == copies_.submitter_of(on) && in_vain < 10 * looked_each_time) {
        ++in_vain;
    }
    EXPECT_GT(in_vain, 0);
    EXPECT_LE(in_vain, looked_each_time);
}

TEST_F(DelegatedCopies, WhoTellsThatItUsesTheDeviceAfterTheFirstQuestionsIsFoundAtOnce)
{
    device on;
    on.uuid = first_device;
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(copies_.submitter_of(on), nullptr);
    }
    use(of_lower_, first_device);
    EXPECT_EQ(copies_.submitter_of(on), &mine_.towards(lower_));
}

TEST_F(DelegatedCopies, NobodyIsAskedWhereNobodyIsWaitedFor)
{
    use(of_lower_, first_device);
    delegated_copies never(*this, mine_.its(), board_, 0);
    device on;
    on.uuid = first_device;
    EXPECT_EQ(never.submitter_of(on), nullptr);
}

TEST_F(DelegatedCopies, NobodyIsAskedWhoHasEnded)
{
    use(of_lower_, first_device);
    device on;
    on.uuid = first_device;
    EXPECT_EQ(copies_.submitter_of(on), &mine_.towards(lower_));
    mine_.towards(lower_).close();
    EXPECT_EQ(copies_.submitter_of(on), nullptr);
}

TEST_F(DelegatedCopies, IsDoneWhenTheSubmitterSaysSo)
{
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::ok);
    ASSERT_EQ(sent_.size(), 1U);
    const delegated_copy &message = sent_[0];
    EXPECT_EQ(message.source.address, 100U);
    EXPECT_EQ(message.target.address, 200U);
    EXPECT_EQ(message.len_bytes, 300U);
    EXPECT_TRUE(std::equal(first_device.begin(), first_device.end(), message.device_uuid));
    EXPECT_EQ(copies_.progress(), nullptr);
    EXPECT_TRUE(move(message, delegation_stage::offered, delegation_stage::taken));
    time_ns += 100 * wait_ns; // it is taken, and may be written
    EXPECT_EQ(copies_.progress(), nullptr);
    launch(message);
    EXPECT_EQ(copies_.progress(), nullptr);
    end_launch();
    EXPECT_EQ(copies_.progress(), &request);
    EXPECT_EQ(request.outcome, status::ok);
    EXPECT_TRUE(copies_.idle());
}

TEST_F(DelegatedCopies, WhatNobodyTakesIsWithdrawn)
{
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::ok);
    time_ns += wait_ns - 1;
    EXPECT_EQ(copies_.progress(), nullptr);
    time_ns += 1;
    EXPECT_EQ(copies_.progress(), &request);
    EXPECT_NE(request.outcome, status::ok);
    EXPECT_FALSE(move(sent_[0], delegation_stage::offered, delegation_stage::taken));
    // Nor when its slot is another copy's.
    EXPECT_EQ(ask(&request), status::ok);
    EXPECT_EQ(sent_[1].slot, sent_[0].slot);
    EXPECT_FALSE(move(sent_[0], delegation_stage::offered, delegation_stage::taken));
    EXPECT_TRUE(move(sent_[1], delegation_stage::offered, delegation_stage::refused));
    EXPECT_EQ(copies_.progress(), &request);
}

TEST_F(DelegatedCopies, OneThatIsInVainFourTimesIsLeftAloneForAWhile)
{
    use(of_lower_, first_device);
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(submitter_of(first_device), &mine_.towards(lower_)) << i;
        time_ns += 1;
        EXPECT_EQ(outcome_of(delegation_stage::refused), status::unsupported);
    }
    EXPECT_EQ(submitter_of(first_device), nullptr);
    clock_gained_ns += reach::first_pause_ns + 100'000'000; // the clock is a coarse one
    EXPECT_EQ(submitter_of(first_device), &mine_.towards(lower_));
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::ok);
    EXPECT_TRUE(move(sent_.back(), delegation_stage::offered, delegation_stage::taken));
    launch(sent_.back());
    end_launch();
    EXPECT_EQ(copies_.progress(), &request);
    EXPECT_EQ(request.outcome, status::ok);
    EXPECT_EQ(submitter_of(first_device), &mine_.towards(lower_));
}

TEST_F(DelegatedCopies, AWindowThatIsInVainCountsOnce)
{
    use(of_lower_, first_device);
    std::array<delegated_request, 8> window{};
    time_ns += 1;
    for (delegated_request &each : window) {
        EXPECT_EQ(ask(&each), status::ok);
    }
    time_ns += wait_ns;
    int over = 0;
    for (const delegated_request *each = copies_.progress(); each != nullptr; each = each->next) {
        over += status::ok != each->outcome ? 1 : 0;
    }
    EXPECT_EQ(over, 8);
    EXPECT_EQ(submitter_of(first_device), &mine_.towards(lower_));
}

TEST_F(DelegatedCopies, AProcessThatEndsLeavesItsCopiesToThisOne)
{
    delegated_request taken{};
    delegated_request offered{};
    EXPECT_EQ(ask(&taken), status::ok);
    EXPECT_EQ(ask(&offered), status::ok);
    EXPECT_TRUE(move(sent_[0], delegation_stage::offered, delegation_stage::taken));
    mine_.towards(lower_).close();
    EXPECT_EQ(copies_.progress(), &taken);
    EXPECT_EQ(taken.next, &offered);
    EXPECT_EQ(taken.outcome, status::peer_gone);
    EXPECT_NE(offered.outcome, status::ok);
}

TEST_F(DelegatedCopies, NonsenseIsNoSuccess)
{
    for (const std::uint32_t word :
         {0U, 0xffffffffU, delegation_word::of(99, delegation_stage::launched)}) {
        delegated_request request{};
        EXPECT_EQ(ask(&request), status::ok);
        word_of(sent_.back()).store(word);
        EXPECT_EQ(copies_.progress(), &request) << word;
        EXPECT_EQ(request.outcome, status::unsupported) << word;
    }
}

TEST_F(DelegatedCopies, AFlagThatIsNowhereTellsNothing)
{
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::ok);
    EXPECT_TRUE(move(sent_[0], delegation_stage::offered, delegation_stage::taken));
    launch(sent_[0]);
    board_of(lower_.towards(mine_), sent_[0].granule)->slots[sent_[0].slot].flag_granule = 0xffffff;
    end_launch();
    EXPECT_EQ(copies_.progress(), nullptr);
    mine_.towards(lower_).close();
    EXPECT_EQ(copies_.progress(), &request);
    EXPECT_EQ(request.outcome, status::peer_gone);
}

TEST_F(DelegatedCopies, NobodyLooksAtAFlagOfAProcessThatHasEnded)
{
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::ok);
    EXPECT_TRUE(move(sent_[0], delegation_stage::offered, delegation_stage::taken));
    launch(sent_[0]);
    end_launch();
    mine_.towards(lower_).close();
    EXPECT_TRUE(mine_.towards(lower_).unmap());
    EXPECT_EQ(copies_.progress(), &request);
    EXPECT_EQ(request.outcome, status::peer_gone);
}

// A launch that ends after others of its slot have ended, too; the count wraps.
TEST_F(DelegatedCopies, ALaterCountIsAnEnd)
{
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::ok);
    EXPECT_TRUE(move(sent_[0], delegation_stage::offered, delegation_stage::taken));
    launch(sent_[0]);
    board_of(lower_.towards(mine_), sent_[0].granule)->slots[sent_[0].slot].flag_value = UINT32_MAX;
    flag().store(UINT32_MAX - 1);
    EXPECT_EQ(copies_.progress(), nullptr);
    flag().store(3);
    EXPECT_EQ(copies_.progress(), &request);
    EXPECT_EQ(request.outcome, status::ok);
}

TEST_F(DelegatedCopies, ThereAreAsManyAtOnceAsSlots)
{
    std::vector<delegated_request> all(delegation_slots + 1);
    for (std::uint32_t i = 0; i < delegation_slots; ++i) {
        EXPECT_EQ(ask(&all[i]), status::ok);
    }
    EXPECT_EQ(ask(&all.back()), status::busy);
    EXPECT_TRUE(move(sent_[5], delegation_stage::offered, delegation_stage::failed));
    EXPECT_EQ(copies_.progress(), &all[5]);
    EXPECT_EQ(ask(&all.back()), status::ok);
    EXPECT_EQ(sent_.back().slot, sent_[5].slot);
}

TEST_F(DelegatedCopies, AMessageThatCannotBeSentAsksForNothing)
{
    can_send_ = false;
    delegated_request request{};
    EXPECT_EQ(ask(&request), status::peer_gone);
    EXPECT_TRUE(copies_.idle());
}

} // namespace
