// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// process_group_test.cc: groups of processes, played in one process, that meet by their boards;
// when they are to meet; and what a broken process may leave on a board.
#include "opal/mca/common/gpusm/process_group.h"

#include "opal/mca/common/gpusm/meeting_schedule.h"

#include "tests/unit/shm_support.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace gpusm;
using namespace gpusm_test;

// --- words

TEST(BoardWord, SaysHowFarItsOwnerIsInAMeeting)
{
    constexpr auto word = board_word::of(2, 9, meeting_stage::agrees);
    static_assert(meeting_stage::agrees == word.stage_in(2, 9));
    static_assert(meeting_stage::none == word.stage_in(2, 9 + board_places));
    static_assert(meeting_stage::ended == word.stage_in(2, 1));
    static_assert(meeting_stage::closed == word.stage_in(4, 9)); // another group has the board
    static_assert(meeting_stage::revoked ==
                  board_word::of(2, 9, meeting_stage::revoked).stage_in(2, 9));
}

TEST(BoardWord, NumbersWrapAround)
{
    constexpr std::uint32_t last = (1U << 28) - 1;
    constexpr auto word = board_word::of(2, last, meeting_stage::told);
    static_assert(meeting_stage::told == word.stage_in(2, last));
    static_assert(meeting_stage::none == word.stage_in(2, last + 8));
    static_assert(meeting_stage::ended ==
                  board_word::of(2, last + 8, meeting_stage::told).stage_in(2, last));
}

// --- groups

class ProcessGroup : public testing::Test {
  protected:
    static constexpr std::size_t ranks = 3;
    static constexpr board_key key = {7, 1};
    using groups = std::array<std::unique_ptr<process_group>, ranks>;

    std::unique_ptr<process_group> make(std::size_t rank, const board_key &of = key,
                                        bool with_all = true)
    {
        std::vector<peer *> members;
        for (std::size_t i = 0; i < ranks; ++i) {
            members.push_back(i == rank || (!with_all && i == (rank + 1) % ranks)
                                  ? nullptr
                                  : &processes_[rank].towards(processes_[i]));
        }
        return process_group::make(boards_[rank], of, members, rank);
    }
    groups make_all()
    {
        groups made;
        for (std::size_t i = 0; i < ranks; ++i) {
            made[i] = make(i);
        }
        for (const auto &each : made) {
            EXPECT_EQ(each->connect(), status::ok);
        }
        return made;
    }
    void decide(std::size_t rank, meets_in_groups what)
    {
        processes_[rank].its().own().view().header->meets = what;
    }
    static status reached(process_group &of, std::uint32_t meeting, meeting_stage least)
    {
        std::size_t next = 0;
        return of.reached(meeting, least, &next);
    }

    scratch_folder folder_;
    std::array<process, ranks> processes_ = {process(folder_.path(), 1), process(folder_.path(), 2),
                                             process(folder_.path(), 3)};
    std::array<board_list, ranks> boards_ = {board_list(processes_[0].its().own()),
                                             board_list(processes_[1].its().own()),
                                             board_list(processes_[2].its().own())};
};

TEST_F(ProcessGroup, WaitsForThoseThatHaveNotCome)
{
    const auto first = make(0);
    EXPECT_EQ(first->connect(), status::busy);
    const auto second = make(1);
    EXPECT_EQ(first->connect(), status::busy);
    const auto third = make(2);
    for (const auto *each : {&first, &second, &third}) {
        EXPECT_EQ((*each)->connect(), status::ok);
    }
}

TEST_F(ProcessGroup, AllKnowThatOneCannotReachAnother)
{
    const auto cannot = make(0, key, false);
    const auto second = make(1);
    const auto third = make(2);
    for (const auto *each : {&cannot, &second, &third}) {
        EXPECT_EQ((*each)->connect(), status::unsupported);
    }
}

TEST_F(ProcessGroup, WhoDoesNotMeetIsNotWaitedFor)
{
    const auto first = make(0);
    const auto second = make(1);
    decide(2, meets_in_groups::yes);
    EXPECT_EQ(first->connect(), status::busy);
    decide(2, meets_in_groups::no);
    EXPECT_EQ(first->connect(), status::unsupported);
    EXPECT_EQ(second->connect(), status::unsupported);
}

TEST_F(ProcessGroup, WhoStopsMeetingKeepsTheGroupsThatItHasABoardFor)
{
    const groups all = make_all();
    const auto another = make(0, {7, 2});
    decide(2, meets_in_groups::no);
    const auto late = make(1, {7, 2});
    EXPECT_EQ(another->connect(), status::unsupported);
    EXPECT_EQ(all[0]->connect(), status::ok);
}

TEST_F(ProcessGroup, StagesAreReachedWhenAllHaveComeThere)
{
    const groups all = make_all();
    std::uint32_t meeting = 0;
    for (const auto &each : all) {
        ASSERT_EQ(each->begin(&meeting), status::ok);
        EXPECT_EQ(meeting, 0U);
    }
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::told), status::busy);
    for (std::size_t i = 0; i < ranks; ++i) {
        all[i]->say(0, "abc" + i, 1);
    }
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::told), status::ok);
    char said = 0;
    all[0]->read(2, 0, &said, 1);
    EXPECT_EQ(said, 'c');
    all[1]->store(0, meeting_stage::declines);
    all[2]->store(0, meeting_stage::agrees);
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::agrees), status::ok);
    EXPECT_TRUE(all[0]->is_at(1, 0, meeting_stage::declines));
    EXPECT_FALSE(all[0]->is_at(2, 0, meeting_stage::declines));
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::ended), status::busy);
    all[1]->store(0, meeting_stage::withdrew);
    all[2]->store(0, meeting_stage::ended);
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::ended), status::ok);
    EXPECT_TRUE(all[0]->is_at(1, 0, meeting_stage::withdrew));
}

TEST_F(ProcessGroup, AMeetingBeginsWhenAllHaveEndedOneBefore)
{
    const groups all = make_all();
    std::uint32_t meeting = 0;
    for (std::uint32_t i = 0; i < process_group::meetings_at_once; ++i) {
        ASSERT_EQ(all[0]->begin(&meeting), status::ok);
        all[0]->store(meeting, meeting_stage::ended);
        all[0]->leave(meeting);
    }
    EXPECT_EQ(all[0]->begin(&meeting), status::busy);
    all[1]->store(0, meeting_stage::ended);
    EXPECT_EQ(all[0]->begin(&meeting), status::busy);
    all[2]->store(0, meeting_stage::ended);
    ASSERT_EQ(all[0]->begin(&meeting), status::ok);
    EXPECT_EQ(meeting, process_group::meetings_at_once);
}

// One that is slow: the others have ended, and its own stage must stay until it has left.
TEST_F(ProcessGroup, AMeetingDoesNotBeginWhereThisProcessIsInOneBefore)
{
    const groups all = make_all();
    std::uint32_t meeting = 0;
    for (std::uint32_t i = 0; i < process_group::meetings_at_once; ++i) {
        for (const auto &each : all) {
            ASSERT_EQ(each->begin(&meeting), status::ok);
        }
        all[1]->store(meeting, meeting_stage::ended);
        all[2]->store(meeting, meeting_stage::ended);
    }
    EXPECT_EQ(all[0]->begin(&meeting), status::busy);
    all[0]->store(1, meeting_stage::ended);
    all[0]->leave(1);
    EXPECT_EQ(all[0]->begin(&meeting), status::busy);
    all[0]->store(0, meeting_stage::ended);
    EXPECT_EQ(all[0]->begin(&meeting), status::busy);
    all[0]->leave(0);
    EXPECT_EQ(all[0]->begin(&meeting), status::ok);
}

TEST_F(ProcessGroup, ABoardIsUsedAgainAndWhoIsLateSeesThatItsOwnerHasLeft)
{
    groups all = make_all();
    std::uint32_t meeting = 0;
    for (const auto &each : all) {
        ASSERT_EQ(each->begin(&meeting), status::ok);
    }
    all[1] = nullptr;
    EXPECT_TRUE(all[0]->is_at(1, 0, meeting_stage::closed));
    const auto another = make(1, {7, 2});
    EXPECT_TRUE(all[0]->is_at(1, 0, meeting_stage::closed));
    another->say(0, "x", 1);
    EXPECT_TRUE(all[0]->is_at(1, 0, meeting_stage::closed));
    const peer_segment &shared = processes_[0].towards(processes_[1]).shared();
    EXPECT_EQ(others_board().find(shared, key), others_board::found::not_yet);
    others_board found;
    ASSERT_EQ(found.find(shared, {7, 2}), others_board::found::open);
    EXPECT_EQ(found.stage_in(0), meeting_stage::told);
    EXPECT_EQ(shared.view().header->newest_board.load(),
              processes_[1].its().own().view().header->newest_board.load());
}

TEST_F(ProcessGroup, WhoIsLateHearsOfAFailureOfAMemberThatHasLeftTheGroup)
{
    groups all = make_all();
    for (const auto &each : all) {
        std::uint32_t meeting = 0;
        ASSERT_EQ(each->begin(&meeting), status::ok);
    }
    all[1]->store(0, meeting_stage::failed);
    all[1] = nullptr;
    const auto another = make(1, {7, 2});
    another->say(0, "x", 1);
    EXPECT_TRUE(all[0]->is_at(1, 0, meeting_stage::failed));
    const peer_segment &shared = processes_[0].towards(processes_[1]).shared();
    EXPECT_EQ(others_board().find(shared, key), others_board::found::not_yet);
}

TEST_F(ProcessGroup, KeepsItsMembersMapped)
{
    peer &member = processes_[0].towards(processes_[1]);
    EXPECT_FALSE(member.is_kept_mapped());
    auto group = make(0);
    EXPECT_TRUE(member.is_kept_mapped());
    group = nullptr;
    EXPECT_FALSE(member.is_kept_mapped());
}

TEST_F(ProcessGroup, AMemberThatIsClosedIsGoneUnlessItHasComeThere)
{
    const groups all = make_all();
    all[1]->say(0, "x", 1);
    for (std::size_t i = 1; i < ranks; ++i) {
        processes_[0].towards(processes_[i]).close();
    }
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::told), status::peer_gone);
    all[2]->say(0, "x", 1);
    EXPECT_EQ(reached(*all[0], 0, meeting_stage::told), status::ok);
}

TEST_F(ProcessGroup, AMemberThatHadEndedBeforeItWasLookedAtDoesNotMeet)
{
    peer &left = *processes_[0].its().add_peer({1, 99, 99}, folder_.path());
    const auto group = process_group::make(
        boards_[0], key, {nullptr, &processes_[0].towards(processes_[1]), &left}, 0);
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->connect(), status::unsupported);
    EXPECT_TRUE(left.has_left_unseen());
}

TEST_F(ProcessGroup, AListOfBoardsThatMakesNoSenseClosesItsOwner)
{
    const auto first = make(0);
    const auto second = make(1);
    auto &newest = processes_[1].its().own().view().header->newest_board;
    for (const std::uint32_t nonsense : {1U, 0x00ffffffU, 0xffffffffU}) {
        newest = nonsense;
        others_board found;
        peer &owner = processes_[2].towards(processes_[1]);
        ASSERT_EQ(owner.attach(), status::ok);
        EXPECT_EQ(found.find(owner.shared(), key), others_board::found::nonsense) << nonsense;
    }
    EXPECT_EQ(first->connect(), status::peer_gone);
    EXPECT_TRUE(processes_[0].towards(processes_[1]).closed());
}

TEST_F(ProcessGroup, AListOfBoardsThatIsACircleIsNonsense)
{
    const auto second = make(1);
    segment &own = processes_[1].its().own();
    const std::uint32_t granule = own.view().header->newest_board;
    reinterpret_cast<board *>(own.at(granule))->next = granule;
    peer &owner = processes_[2].towards(processes_[1]);
    ASSERT_EQ(owner.attach(), status::ok);
    EXPECT_EQ(others_board().find(owner.shared(), {9, 9}), others_board::found::nonsense);
}

// --- when they meet

// Of so many calls, those in which the group meets, as "1 2 4 ". `on_device`: calls with device
// memory.
std::string meetings(int calls, const std::vector<int> &on_device = {})
{
    meeting_schedule schedule;
    std::string all;
    for (int call = 1; call <= calls; ++call) {
        if (schedule.is_due()) {
            all += std::to_string(call) + ' ';
            schedule.met(std::find(on_device.begin(), on_device.end(), call) != on_device.end());
        }
    }
    return all;
}

TEST(MeetingSchedule, EverFewerCallsOfAProgramWithHostMemory)
{
    EXPECT_EQ(meetings(70), "1 2 4 8 16 32 64 ");
}

TEST(MeetingSchedule, EachCallWhileThereIsDeviceMemory)
{
    EXPECT_EQ(meetings(6, {1, 2, 3, 4, 5, 6}), "1 2 3 4 5 6 ");
    EXPECT_EQ(meetings(12, {4}), "1 2 4 5 6 7 8 9 10 11 12 ");
}

TEST(MeetingSchedule, FewerAgainWhenNobodyHasHadAnyForAWhile)
{
    const std::string first = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 ";
    EXPECT_EQ(meetings(40, {1}), first + "18 20 24 32 ");
}

} // namespace
