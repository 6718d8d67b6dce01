// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// handshake_test.cc: every state with every event, the pauses between questions, and two sides
// that talk to each other in every order of delivery.
#include "opal/mca/btl/gpusm/ipc/handshake.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using gpusm::handshake;
using gpusm::ipc_action;
using gpusm::ipc_event;
using gpusm::ipc_next;
using gpusm::ipc_state;

constexpr ipc_state all_states[] = {ipc_state::idle, ipc_state::asked, ipc_state::ready,
                                    ipc_state::refused};
constexpr ipc_event all_events[] = {ipc_event::gpu_message, ipc_event::ack, ipc_event::not_ready,
                                    ipc_event::refuse,      ipc_event::req, ipc_event::lost};

// Written from the header's words, not from its table. One row per state, in the order of
// all_events.
struct expected {
    ipc_state to;
    ipc_action action;
};
constexpr ipc_state idle = ipc_state::idle;
constexpr ipc_state asked = ipc_state::asked;
constexpr ipc_state ready = ipc_state::ready;
constexpr ipc_state refused = ipc_state::refused;
constexpr ipc_action none = ipc_action::none;

constexpr expected expectations[4][6] = {
    // gpu_message, ack, not_ready, refuse, req, lost
    {{asked, ipc_action::send_req},
     {idle, none},
     {idle, none},
     {idle, none},
     {idle, ipc_action::answer},
     {refused, none}},
    {{asked, none},
     {ready, ipc_action::open_gate},
     {idle, ipc_action::count_retry},
     {refused, ipc_action::tell_user},
     {asked, ipc_action::answer},
     {refused, none}},
    {{ready, none},
     {ready, none},
     {ready, none},
     {ready, none},
     {ready, ipc_action::answer},
     {refused, none}},
    {{refused, none},
     {refused, none},
     {refused, none},
     {refused, none},
     {refused, ipc_action::answer},
     {refused, none}},
};

TEST(HandshakeTable, EveryStateWithEveryEventDoesWhatTheHeaderSays)
{
    for (std::size_t s = 0; s < std::size(all_states); ++s) {
        for (std::size_t e = 0; e < std::size(all_events); ++e) {
            const gpusm::ipc_step step = ipc_next(all_states[s], all_events[e]);
            EXPECT_EQ(step.to, expectations[s][e].to) << "state " << s << ", event " << e;
            EXPECT_EQ(step.action, expectations[s][e].action) << "state " << s << ", event " << e;
        }
    }
}

TEST(HandshakeTable, NoPairIsListedTwice)
{
    std::set<std::pair<ipc_state, ipc_event>> seen;
    for (const gpusm::ipc_row &row : gpusm::ipc_table) {
        EXPECT_TRUE(seen.emplace(row.from, row.event).second);
    }
}

TEST(HandshakeTable, ARequestIsAnsweredInEveryStateAndMovesNothing)
{
    for (const ipc_state state : all_states) {
        EXPECT_EQ(ipc_next(state, ipc_event::req).action, ipc_action::answer);
        EXPECT_EQ(ipc_next(state, ipc_event::req).to, state);
    }
}

TEST(HandshakeTable, OnlyAnAckThatWasAskedForOpensTheGate)
{
    for (const ipc_state state : all_states) {
        for (const ipc_event event : all_events) {
            const bool opens = ipc_action::open_gate == ipc_next(state, event).action;
            EXPECT_EQ(opens, ipc_state::asked == state && ipc_event::ack == event);
        }
    }
}

TEST(HandshakeTable, NothingLeadsBackFromRefused)
{
    for (const ipc_event event : all_events) {
        EXPECT_EQ(ipc_next(ipc_state::refused, event).to, ipc_state::refused);
    }
}

TEST(Handshake, ItAsksOnceHoweverManyMessagesThereAre)
{
    handshake ours;
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::send_req);
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::none);
    }
    EXPECT_EQ(ours.step(ipc_event::ack), ipc_action::open_gate);
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::none);
    EXPECT_EQ(ours.state(), ipc_state::ready);
}

TEST(Handshake, RepeatedAndLateAnswersDoNothing)
{
    handshake ours;
    for (const ipc_event early : {ipc_event::ack, ipc_event::not_ready, ipc_event::refuse}) {
        EXPECT_EQ(ours.step(early), ipc_action::none);
    }
    EXPECT_EQ(ours.state(), ipc_state::idle);
    EXPECT_EQ(ours.retries(), 0U);
    (void)ours.step(ipc_event::gpu_message);
    EXPECT_EQ(ours.step(ipc_event::ack), ipc_action::open_gate);
    for (const ipc_event late : {ipc_event::ack, ipc_event::not_ready, ipc_event::refuse}) {
        EXPECT_EQ(ours.step(late), ipc_action::none);
        EXPECT_EQ(ours.state(), ipc_state::ready);
    }
    EXPECT_EQ(ours.retries(), 0U);
}

TEST(Handshake, TheUserIsToldOnce)
{
    handshake ours;
    (void)ours.step(ipc_event::gpu_message);
    EXPECT_EQ(ours.step(ipc_event::refuse), ipc_action::tell_user);
    EXPECT_EQ(ours.step(ipc_event::refuse), ipc_action::none);
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::none) << "never asks again";
    EXPECT_EQ(ours.step(ipc_event::ack), ipc_action::none);
    EXPECT_EQ(ours.state(), ipc_state::refused);
}

TEST(Handshake, RetriesAreCountedAndThePauseDoublesUpToItsBound)
{
    handshake ours;
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::send_req);
    std::uint32_t expected_pause = 1;
    for (std::uint32_t retry = 1; retry <= 20; ++retry) {
        EXPECT_EQ(ours.step(ipc_event::not_ready), ipc_action::count_retry);
        EXPECT_EQ(ours.step(ipc_event::not_ready), ipc_action::none) << "answered already";
        EXPECT_EQ(ours.retries(), retry);
        std::uint32_t pause = 0;
        while (ipc_action::none == ours.step(ipc_event::gpu_message)) {
            ASSERT_LT(++pause, 1000U);
        }
        EXPECT_EQ(pause, expected_pause) << "after retry " << retry;
        expected_pause = std::min(2 * expected_pause, handshake::longest_pause_messages);
    }
    EXPECT_EQ(expected_pause, handshake::longest_pause_messages);
    EXPECT_EQ(ours.step(ipc_event::ack), ipc_action::open_gate) << "CUDA was used late";
}

TEST(Handshake, APauseDoesNotHoldUpAnythingElse)
{
    handshake ours;
    (void)ours.step(ipc_event::gpu_message);
    (void)ours.step(ipc_event::not_ready);
    EXPECT_EQ(ours.step(ipc_event::req), ipc_action::answer);
    EXPECT_EQ(ours.step(ipc_event::lost), ipc_action::none);
    EXPECT_EQ(ours.state(), ipc_state::refused);
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::none);
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::none);
}

// --- two sides
// ------------------------------------------------------------------------------------

// How a side answers a REQ; it may have no CUDA context at first.
enum class mood { willing, unwilling, late };

struct side {
    explicit side(mood how_it_answers) : mind(how_it_answers) {}

    handshake ours;
    mood mind;
    int to_send = 0;      // GPU messages that it still wants to send
    int asked_before = 0; // REQs that have come in
    int gates_opened = 0;
    int users_told = 0;
    std::deque<ipc_event> inbox;
};

struct meeting {
    side a;
    side b;

    static void act(side &self, side &other, ipc_event event)
    {
        switch (self.ours.step(event)) {
        case ipc_action::none:
        case ipc_action::count_retry:
            break;
        case ipc_action::send_req:
            other.inbox.push_back(ipc_event::req);
            break;
        case ipc_action::open_gate:
            ++self.gates_opened;
            break;
        case ipc_action::tell_user:
            ++self.users_told;
            break;
        case ipc_action::answer: {
            const bool not_yet = mood::late == self.mind && self.asked_before++ < 1;
            other.inbox.push_back(
                not_yet ? ipc_event::not_ready
                        : (mood::unwilling == self.mind ? ipc_event::refuse : ipc_event::ack));
            break;
        }
        }
    }

    // One of four things that can happen next; false if it cannot.
    bool happen(int what)
    {
        side &self = 0 == what % 2 ? a : b;
        side &other = 0 == what % 2 ? b : a;
        if (what < 2) {
            if (self.inbox.empty()) {
                return false;
            }
            const ipc_event event = self.inbox.front();
            self.inbox.pop_front();
            act(self, other, event);
        } else {
            if (0 == self.to_send) {
                return false;
            }
            --self.to_send;
            act(self, other, ipc_event::gpu_message);
        }
        return true;
    }
};

// What one side must have come to, given how the other answers.
void expect_end(const side &self, mood other, const std::string &history)
{
    ASSERT_EQ(self.gates_opened + self.users_told, 1) << history;
    ASSERT_EQ(self.gates_opened, mood::unwilling == other ? 0 : 1) << history;
    ASSERT_EQ(self.ours.state(), mood::unwilling == other ? refused : ready) << history;
    ASSERT_EQ(self.ours.retries(), mood::late == other ? 1U : 0U) << history;
}

// Goes through every order in which things can happen. At the end a few more messages are sent
// on either side, so that a pause ends.
void explore(const meeting &now, const std::string &history, long *ends)
{
    bool anything = false;
    for (int what = 0; what < 4; ++what) {
        meeting next = now;
        if (next.happen(what)) {
            anything = true;
            explore(next, history + "ABab"[what], ends);
            if (testing::Test::HasFatalFailure()) {
                return;
            }
        }
    }
    if (anything) {
        return;
    }
    ++*ends;
    meeting last = now;
    last.a.to_send = last.b.to_send = 4;
    for (int i = 0; i < 40; ++i) {
        (void)last.happen(i % 4);
    }
    expect_end(last.a, last.b.mind, history + " (A)");
    expect_end(last.b, last.a.mind, history + " (B)");
}

TEST(HandshakeOfTwo, BothSidesAskingAtOnceEndsRightInEveryOrderOfDelivery)
{
    for (const mood a : {mood::willing, mood::unwilling, mood::late}) {
        for (const mood b : {mood::willing, mood::unwilling, mood::late}) {
            meeting start{side(a), side(b)};
            start.a.to_send = start.b.to_send = 3;
            long ends = 0;
            explore(start, "", &ends);
            ASSERT_FALSE(HasFatalFailure());
            EXPECT_GT(ends, 100);
        }
    }
}

// A broken peer, or one that says everything twice.
TEST(HandshakeOfTwo, EveryAnswerTwiceMakesNoDifference)
{
    meeting both{side(mood::willing), side(mood::late)};
    both.a.to_send = both.b.to_send = 6;
    for (int i = 0; i < 200; ++i) {
        side &self = 0 == i % 2 ? both.a : both.b;
        if (!self.inbox.empty() && ipc_event::req != self.inbox.front() && 0 == i % 3) {
            self.inbox.push_front(self.inbox.front());
        }
        (void)both.happen(i % 4);
        (void)both.happen(i % 2);
    }
    expect_end(both.a, mood::late, "A");
    expect_end(both.b, mood::willing, "B");
}

} // namespace
