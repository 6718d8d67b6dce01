// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// handshake_test.cc: every state with every event, and the pauses between questions.
#include "opal/mca/btl/gpusm/ipc/handshake.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;

constexpr ipc_state idle = ipc_state::idle;
constexpr ipc_state asked = ipc_state::asked;
constexpr ipc_state ready = ipc_state::ready;
constexpr ipc_state refused = ipc_state::refused;
constexpr ipc_action none = ipc_action::none;
constexpr ipc_state all_states[] = {idle, asked, ready, refused};
constexpr ipc_event all_events[] = {ipc_event::gpu_message, ipc_event::ack, ipc_event::not_ready,
                                    ipc_event::refuse};

// Written from the header's words, not from its table. One row per state, in the order of
// all_events.
constexpr std::pair<ipc_state, ipc_action> expectations[4][4] = {
    // gpu_message, ack, not_ready, refuse
    {{asked, ipc_action::send_req}, {idle, none}, {idle, none}, {idle, none}},
    {{asked, none},
     {ready, ipc_action::open_gate},
     {idle, ipc_action::count_retry},
     {refused, ipc_action::tell_user}},
    {{ready, none}, {ready, none}, {ready, none}, {ready, none}},
    {{refused, none}, {refused, none}, {refused, none}, {refused, none}},
};

TEST(HandshakeTable, EveryStateWithEveryEventDoesWhatTheHeaderSays)
{
    for (std::size_t s = 0; s < std::size(all_states); ++s) {
        for (std::size_t e = 0; e < std::size(all_events); ++e) {
            const ipc_row step = ipc_next(all_states[s], all_events[e]);
            EXPECT_EQ(step.to, expectations[s][e].first) << "state " << s << ", event " << e;
            EXPECT_EQ(step.action, expectations[s][e].second) << "state " << s << ", event " << e;
        }
    }
}

TEST(HandshakeTable, NoPairIsListedTwice)
{
    std::set<std::pair<ipc_state, ipc_event>> seen;
    for (const ipc_row &row : ipc_table) {
        EXPECT_TRUE(seen.emplace(row.from, row.event).second);
    }
}

TEST(Handshake, ItAsksOnceHoweverManyMessagesThereAre)
{
    handshake ours;
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::send_req);
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(ours.step(ipc_event::gpu_message), none);
    }
    EXPECT_EQ(ours.step(ipc_event::ack), ipc_action::open_gate);
    EXPECT_EQ(ours.step(ipc_event::gpu_message), none);
    EXPECT_EQ(ours.state(), ready);
}

TEST(Handshake, ThePauseBetweenQuestionsDoublesUpToItsBound)
{
    handshake ours;
    EXPECT_EQ(ours.step(ipc_event::gpu_message), ipc_action::send_req);
    std::uint32_t expected_pause = 1;
    for (std::uint32_t retry = 1; retry <= 20; ++retry) {
        EXPECT_EQ(ours.step(ipc_event::not_ready), ipc_action::count_retry);
        EXPECT_EQ(ours.step(ipc_event::not_ready), none) << "answered already";
        std::uint32_t pause = 0;
        while (none == ours.step(ipc_event::gpu_message)) {
            ASSERT_LT(++pause, 1000U);
        }
        EXPECT_EQ(pause, expected_pause) << "after retry " << retry;
        expected_pause = std::min(2 * expected_pause, handshake::longest_pause_messages);
    }
    EXPECT_EQ(expected_pause, handshake::longest_pause_messages);
    EXPECT_EQ(ours.step(ipc_event::ack), ipc_action::open_gate) << "CUDA was used late";
}

} // namespace
