// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// handshake_test.cc: every state with every event, and the pauses between questions.
#include "opal/mca/common/gpusm/ipc/handshake.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <gtest/gtest.h>

namespace {

using namespace gpusm;
using enum ipc_state;
using enum ipc_event;
using enum ipc_action;

constexpr ipc_state all_states[] = {idle, asked, ready, refused};
constexpr ipc_event all_events[] = {gpu_message, ack, not_ready, refuse};

// Written from the header's words, not from its table. One row per state, in the order of
// all_events.
constexpr std::pair<ipc_state, ipc_action> expectations[4][4] = {
    // gpu_message, ack, not_ready, refuse
    {{asked, send_req}, {idle, none}, {idle, none}, {idle, none}},
    {{asked, send_req}, {ready, open_gate}, {idle, count_retry}, {refused, tell_user}},
    {{ready, none}, {ready, none}, {ready, none}, {ready, none}},
    {{refused, none}, {refused, none}, {refused, none}, {refused, none}},
};

TEST(Handshake, EveryStateWithEveryEventDoesWhatTheHeaderSays)
{
    for (std::size_t s = 0; s < std::size(all_states); ++s) {
        for (std::size_t e = 0; e < std::size(all_events); ++e) {
            const ipc_row step = ipc_next(all_states[s], all_events[e]);
            EXPECT_EQ(step.to, expectations[s][e].first) << "state " << s << ", event " << e;
            EXPECT_EQ(step.action, expectations[s][e].second) << "state " << s << ", event " << e;
        }
    }
}

TEST(Handshake, ThePauseBetweenQuestionsDoublesUpToItsBound)
{
    handshake ours;
    EXPECT_EQ(ours.step(gpu_message), send_req);
    std::uint32_t expected_pause = 1;
    for (std::uint32_t retry = 1; retry <= 20; ++retry) {
        EXPECT_EQ(ours.step(not_ready), count_retry);
        EXPECT_EQ(ours.step(not_ready), none) << "answered already";
        std::uint32_t pause = 0;
        while (none == ours.step(gpu_message)) {
            ASSERT_LT(++pause, 1000U);
        }
        EXPECT_EQ(pause, expected_pause) << "after retry " << retry;
        expected_pause = std::min(2 * expected_pause, handshake::longest_pause_messages);
    }
    EXPECT_EQ(expected_pause, handshake::longest_pause_messages);
    EXPECT_EQ(ours.step(ack), open_gate) << "CUDA was used late";
}

TEST(Handshake, AQuestionThatNobodyAnswersIsAskedAgainAfterAPause)
{
    handshake ours;
    EXPECT_EQ(ours.step(gpu_message), send_req);
    for (int again = 0; again < 3; ++again) {
        for (std::uint32_t i = 0; i < handshake::longest_pause_messages; ++i) {
            EXPECT_EQ(ours.step(gpu_message), none);
        }
        EXPECT_EQ(ours.step(gpu_message), send_req) << "the answer may have been lost";
        EXPECT_EQ(ours.state(), asked);
    }
    EXPECT_EQ(ours.step(ack), open_gate);
    EXPECT_EQ(ours.step(gpu_message), none);
}

TEST(Handshake, AQuestionThatCouldNotBeSentIsAskedAgain)
{
    handshake ours;
    EXPECT_EQ(ours.step(gpu_message), send_req);
    EXPECT_EQ(ours.step(not_ready), count_retry); // as the caller reports it
    EXPECT_EQ(ours.step(gpu_message), none);
    EXPECT_EQ(ours.step(gpu_message), send_req);
}

} // namespace
