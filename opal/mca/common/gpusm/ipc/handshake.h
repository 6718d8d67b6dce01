// SPDX-License-Identifier: BSD-3-Clause
// Copyright (c) 2026 The gpusm authors
//
// ipc/handshake.h: does this peer fetch device memory? A question per direction:
//
//   we      REQ         ->  has the peer a CUDA context?
//   peer    ACK         ->  it has
//           NOT_READY   ->  not yet: ask later
//           REFUSE      ->  never
//
// Device memory is offered to the peer in every state but `refused`: no message waits for the
// answer, as the peer's ob1 asks for fragments of what cannot be fetched there. Both sides may ask
// at once. There is no tie to break, because the two answers are about
// different things: what the peer can do, and what we can. So what the
// peer asks is answered in every state and changes none.
// The machine is a table without side effects; the caller performs the action.
#ifndef GPUSM_IPC_HANDSHAKE_H
#define GPUSM_IPC_HANDSHAKE_H

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace gpusm {

enum class ipc_state : std::uint8_t {
    idle,    // nobody has asked, or the peer was not ready when we did, or the REQ did not go
    asked,   // a REQ is on its way
    ready,   // the peer fetches
    refused, // it cannot or will not
};

enum class ipc_event : std::uint8_t {
    gpu_message, // we are about to send it device memory that could be shared
    ack,
    not_ready, // or the REQ could not be sent
    refuse,
};

enum class ipc_action : std::uint8_t {
    none,
    send_req,    // and report `not_ready` if that fails
    open_gate,   // tell ob1 that get works to this peer, if it does not know yet
    count_retry, // the next gpu_message asks again, after a pause
    tell_user,   // once: messages to this peer go through host memory, and why
};

struct ipc_row {
    ipc_state from;
    ipc_event event;
    ipc_state to;
    ipc_action action;
};

// Pairs that are not listed change nothing: an answer that nobody waits for (late, repeated
// or made up by a broken peer). While a question is open a further message asks again only after a
// pause: the answer may have been lost.
inline constexpr ipc_row ipc_table[] = {
    {ipc_state::idle, ipc_event::gpu_message, ipc_state::asked, ipc_action::send_req},
    {ipc_state::asked, ipc_event::gpu_message, ipc_state::asked, ipc_action::send_req},
    {ipc_state::asked, ipc_event::ack, ipc_state::ready, ipc_action::open_gate},
    {ipc_state::asked, ipc_event::not_ready, ipc_state::idle, ipc_action::count_retry},
    {ipc_state::asked, ipc_event::refuse, ipc_state::refused, ipc_action::tell_user},
};

constexpr ipc_row ipc_next(ipc_state from, ipc_event event)
{
    for (const ipc_row &row : ipc_table) {
        if (row.from == from && row.event == event) {
            return row;
        }
    }
    return {from, event, from, ipc_action::none};
}

// The state of one direction, and the pauses between its questions. Not thread-safe but for
// state(): the caller holds its GPU lock.
class handshake {
  public:
    // The pause doubles with every NOT_READY: 1, 2, 4 ... messages, at most this many. There
    // is no last try, because a program may well use CUDA late.
    static constexpr std::uint32_t longest_pause_messages = 64;

    ipc_state state() const { return state_.load(std::memory_order_relaxed); }

    void start_anew()
    {
        state_.store(ipc_state::idle, std::memory_order_relaxed);
        pause_messages_ = 0;
        next_pause_ = 1;
    }

    // Moves on and returns what the caller has to do.
    ipc_action step(ipc_event event)
    {
        if (ipc_event::gpu_message == event && pause_messages_ > 0) {
            --pause_messages_;
            return ipc_action::none;
        }
        const ipc_row next = ipc_next(state(), event);
        state_.store(next.to, std::memory_order_relaxed);
        if (ipc_action::send_req == next.action) {
            pause_messages_ = longest_pause_messages;
        }
        if (ipc_action::count_retry == next.action) {
            pause_messages_ = next_pause_;
            next_pause_ = std::min(2 * next_pause_, longest_pause_messages);
        }
        return next.action;
    }

  private:
    std::atomic<ipc_state> state_{ipc_state::idle};
    std::uint32_t pause_messages_ = 0;
    std::uint32_t next_pause_ = 1;
};

} // namespace gpusm

#endif
